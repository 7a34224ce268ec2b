// Moving whole rows of any dtype: out[i] = in[index[i]] and out[index[i]] = in[i].
//
// Bound by memory. Without work arrays, so that XLA may capture it in a command buffer. A thread moves one word of the
// widest kind that divides the row, so that neighbouring threads touch neighbouring words of a row.

#include <cstdint>

#include "common/cuda/arguments.cuh"
#include "common/cuda/queue.cuh"

namespace jztree {
namespace {

// Places outside the array are left out; nothing in this library asks for them.
template <typename Word, bool Scatter>
__global__ void move_words(const Word* in, const int32_t* index, int64_t rows, int64_t limit, int64_t words,
                           Word* out) {
  int64_t thread = thread_index();
  if (thread >= rows * words) return;
  int64_t row = words == 1 ? thread : thread / words, word = thread - row * words, other = index[row];
  if (other < 0 || other >= limit) return;
  int64_t from = Scatter ? row : other, to = Scatter ? other : row;
  out[to * words + word] = in[from * words + word];
}

template <bool Scatter>
ffi::Error move(cudaStream_t stream, DeviceMemory scratch, ffi::AnyBuffer in, ffi::Buffer<ffi::S32> index,
                ffi::Result<ffi::AnyBuffer> out) {
  return guarded([&] {
    int64_t rows = static_cast<int64_t>(index.element_count());
    auto from = in.dimensions(), to = out->dimensions();
    if (from.size() == 0 || to.size() != from.size() || in.element_type() != out->element_type() ||
        (Scatter ? from[0] : to[0]) != rows)
      return invalid("rows were to be moved between arrays that do not fit together.");
    if (rows == 0 || from[0] == 0 || in.size_bytes() == 0) return ffi::Error::Success();
    int64_t bytes = static_cast<int64_t>(in.size_bytes()) / from[0];
    Queue queue(stream, scratch);
    auto run = [&](auto word) {
      using Word = decltype(word);
      int64_t words = bytes / static_cast<int64_t>(sizeof(Word));
      queue.launch_over(rows * words, move_words<Word, Scatter>, static_cast<const Word*>(in.untyped_data()),
                        index.typed_data(), rows, Scatter ? to[0] : from[0], words,
                        static_cast<Word*>(out->untyped_data()));
    };
    if (bytes % 8 == 0) {
      run(uint64_t{});
    } else if (bytes % 4 == 0) {
      run(uint32_t{});
    } else {
      run(uint8_t{});
    }
    return ffi::Error::Success();
  });
}

}  // namespace

JZTREE_CAPTURED_HANDLER(jztree_gather_rows, move<false>);
JZTREE_CAPTURED_HANDLER(jztree_scatter_rows, move<true>);

}  // namespace jztree
