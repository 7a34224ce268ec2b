#include "arguments.h"

#include <utility>

#include "xla/ffi/api/ffi.h"

namespace jztree {
namespace {

std::string type_name(XLA_FFI_DataType type) {
  switch (type) {
    case XLA_FFI_DataType_F32: return "float32";
    case XLA_FFI_DataType_F64: return "float64";
    case XLA_FFI_DataType_S32: return "int32";
    case XLA_FFI_DataType_U32: return "uint32";
    default: return "XLA's dtype " + std::to_string(static_cast<int>(type));
  }
}

std::string words(const Buffer& buffer) {
  std::string text = type_name(buffer.type) + " (";
  for (int i = 0; i < buffer.rank; ++i)
    text += (i > 0 ? ", " : "") + (buffer.dims[i] == any ? std::string("any") : std::to_string(buffer.dims[i]));
  return text + (buffer.rank == 1 ? ",)" : ")");
}

bool same_kind(const Buffer& a, const Buffer& b) {
  bool same = a.type == b.type && a.rank == b.rank;
  for (int i = 0; same && i < a.rank; ++i) same = a.dims[i] == b.dims[i];
  return same;
}

}  // namespace

int64_t Buffer::elements() const {
  int64_t product = 1;
  for (int i = 0; i < rank; ++i) product *= dims[i];
  return product;
}

int64_t Buffer::bytes() const {
  return elements() * static_cast<int64_t>(xla::ffi::ByteWidth(static_cast<xla::ffi::DataType>(type)));
}

void Attributes::refuse(const char* name) {
  throw Refusal(std::string("a kernel was called without the attribute ") + name + ".");
}

Arguments::Arguments(const char* kernel, std::vector<Buffer> arguments, std::vector<Buffer> results,
                     const Attributes& attributes)
    : kernel_(kernel), arguments_(std::move(arguments)), results_(std::move(results)), attributes_(attributes) {}

void refuse_dims(int64_t dims, unsigned possible) {
  std::string numbers;
  for (int d = 1; d <= max_dims; ++d) {
    bool runs_on = possible >> (d - 1) & possible >> (d + 1) & 1;
    if (!(possible >> d & 1) || runs_on) continue;
    numbers += numbers.empty() ? "" : possible >> (d - 1) & 1 ? " to " : " and ";
    numbers += std::to_string(d);
  }
  throw Refusal("positions have " + std::to_string(dims) + " dimensions; this function supports " + numbers + ".");
}

void Arguments::pad_rows(int64_t from, int64_t to, RowPadder& padder) {
  padder_ = &padder;
  given_width_ = from;
  padded_width_ = to;
}

const Buffer& Arguments::padded(const Buffer& buffer, Shape shape, bool is_result) {
  const int rank = buffer.rank;
  if (!padder_ || rank == 0 || rank != static_cast<int>(shape.size()) || shape.end()[-1] != padded_width_ ||
      buffer.dims[rank - 1] != given_width_)
    return buffer;
  std::deque<Padded>& list = is_result ? padded_results_ : padded_arguments_;
  list.push_back({buffer, buffer, {buffer.dims, buffer.dims + rank}});
  Padded& made = list.back();
  made.dims.back() = padded_width_;
  made.seen.dims = made.dims.data();
  made.seen.data = padder_->memory(made.seen.bytes());
  if (!is_result) copy_rows(made.given, made.seen);
  return made.seen;
}

void Arguments::unpad_results() {
  for (const Padded& result : padded_results_) copy_rows(result.seen, result.given);
}

void Arguments::copy_rows(const Buffer& source, const Buffer& target) const {
  const int64_t rows = source.elements() / source.dims[source.rank - 1];
  if (rows > 0) padder_->copy_rows(source.data, source.bytes() / rows, target.data, target.bytes() / rows, rows);
}

const Buffer& Arguments::any_argument(std::string_view name) { return next(arguments_, argument_, name); }

const Buffer& Arguments::any_result(std::string_view name) { return next(results_, result_, name); }

const Buffer& Arguments::any_continued(std::string_view name) {
  const Buffer& result = any_result(name);
  if (argument_ < arguments_.size()) {
    const Buffer& old = any_argument(name);
    if (!same_kind(old, result)) refuse(old, name, words(result));
    continued_.push_back({&old, &result});
  }
  return result;
}

Lengths Arguments::as_lengths(const Buffer& given, std::string_view name, int64_t count) {
  bool wide = given.type == XLA_FFI_DataType_F64;
  const int64_t words = wide ? 1 : Words::count;
  int64_t found = given.elements() / words;
  const void* data = given.data;
  if (padder_ && count == padded_width_ && found == given_width_) {
    const int64_t each = given.bytes() / found;
    void* made = padder_->memory(count * each);
    padder_->copy_rows(data, found * each, made, count * each, 1);
    data = made;
    found = count;
  }
  if ((!wide && given.type != XLA_FFI_DataType_F32) || given.rank == 0 || given.dims[given.rank - 1] != words ||
      (count != any && count != found))
    refuse(given, name, "float words of " + (count == any ? std::string("any") : std::to_string(count)) + " numbers");
  return {data, found, wide};
}

const Buffer& Arguments::positions() const {
  for (const Buffer& buffer : arguments_)
    if (buffer.rank == 2 && (buffer.type == XLA_FFI_DataType_F32 || buffer.type == XLA_FFI_DataType_F64)) return buffer;
  throw Refusal("positions must be float32 or float64 and have shape (n, d).");
}

Buffer Arguments::take_last_result() {
  if (results_.empty())
    throw Refusal(std::string("the kernel ") + kernel_ + " was called without memory for its work arrays.");
  Buffer last = results_.back();
  results_.pop_back();
  return last;
}

void Arguments::expect_end() const {
  if (arguments_left() > 0 || results_left() > 0)
    throw Refusal(std::string("the kernel ") + kernel_ + " was called with " + std::to_string(arguments_left()) +
                  " extra arguments and " + std::to_string(results_left()) + " extra results.");
}

void Arguments::refuse(const Buffer& buffer, std::string_view name, std::string_view wanted) const {
  throw Refusal(std::string("the kernel ") + kernel_ + " was called with " + std::string(name) + " of " +
                words(buffer) + "; it must be " + std::string(wanted) + ".");
}

const Buffer& Arguments::next(const std::vector<Buffer>& buffers, size_t& at, std::string_view name) const {
  if (at == buffers.size())
    throw Refusal(std::string("the kernel ") + kernel_ + " was called without " + std::string(name) + ".");
  return buffers[at++];
}

const Buffer& Arguments::checked(const Buffer& buffer, std::string_view name, XLA_FFI_DataType type,
                                 Shape shape) const {
  bool fits = buffer.type == type && buffer.rank == static_cast<int>(shape.size());
  for (int i = 0; fits && i < buffer.rank; ++i) fits = shape.begin()[i] == any || shape.begin()[i] == buffer.dims[i];
  if (!fits) refuse(buffer, name, words(Buffer{type, shape.begin(), static_cast<int>(shape.size()), nullptr}));
  return buffer;
}

}  // namespace jztree
