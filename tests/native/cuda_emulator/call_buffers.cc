#include "call_buffers.h"

#include <xla/ffi/api/ffi.h>

#include <cstring>

#include "fibers.h"

namespace emulator {

CallBuffers::CallBuffers(XLA_FFI_CallFrame* frame) {
  copy(frame->args.args, frame->args.size, false);
  copy(frame->rets.rets, frame->rets.size, true);
  frame->args.args = arguments_.data();
  frame->rets.rets = results_.data();
}

CallBuffers::~CallBuffers() {
  for (const Copy& copy : copies_) {
    if (!copy.is_result && !copy.replaced && std::memcmp(copy.of, copy.piece.data, copy.piece.bytes) != 0)
      fail("a kernel wrote to an argument.");
    if (copy.is_result || copy.replaced) std::memcpy(copy.of, copy.piece.data, copy.piece.bytes);
    Heap::global().give_back(copy.piece);
  }
}

void CallBuffers::copy(void** buffers, int64_t count, bool results) {
  std::vector<void*>& pointers = results ? results_ : arguments_;
  std::vector<XLA_FFI_Buffer>& copied = results ? result_buffers_ : argument_buffers_;
  copied.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    copied.push_back(*static_cast<XLA_FFI_Buffer*>(buffers[i]));
    copied.back().data = on_device(copied.back(), results);
    pointers.push_back(&copied.back());
  }
}

void* CallBuffers::on_device(const XLA_FFI_Buffer& buffer, bool result) {
  size_t bytes = xla::ffi::ByteWidth(static_cast<xla::ffi::DataType>(buffer.dtype));
  for (int64_t d = 0; d < buffer.rank; ++d) bytes *= static_cast<size_t>(buffer.dims[d]);
  if (bytes == 0) return nullptr;
  for (Copy& copy : copies_)
    if (result && !copy.is_result && !copy.replaced && copy.of == buffer.data) {
      copy.replaced = true;
      return copy.piece.data;
    }
  Heap::Piece piece = Heap::global().take(bytes, result ? 128 : 16);
  if (result) {
    Heap::spoil(piece);
  } else {
    std::memcpy(piece.data, buffer.data, bytes);
  }
  copies_.push_back({buffer.data, piece, result, false});
  return piece.data;
}

}  // namespace emulator
