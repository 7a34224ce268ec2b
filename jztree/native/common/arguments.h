// What a kernel is called with.
//
// Each kernel has one struct of its arguments, in a header that both backends include. Its constructor reads them from
// `Arguments`, in the order in which Python passes them, each by its name and with the shape that it must have; what
// does not fit is said with the name and both shapes. Results are read in an order of their own, so one may come before
// an argument whose shape follows from it. The backends supply the work:
//
//   template <int D, typename T>
//   struct Example {                                   // example.h
//     static constexpr int most_dims = max_dims;
//     Array<const T> pos;                              // (n, D)
//     Count num;
//     int32_t* found;                                  // (n,)
//     explicit Example(Arguments& in)
//         : pos(in.argument<T>("pos", {any, D})), num(in.count("num", pos.rows())),
//           found(in.result<int32_t>("found", {pos.rows()})) {}
//   };
//
//   template <int D, typename T>
//   void example(Context& context, const Example<D, T>& in) { ... }   // example.cc, example.cu
//   JZTREE_KERNEL(example, Example);
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "portable.h"
#include "xla/ffi/api/ffi.h"

namespace jztree {

namespace ffi = xla::ffi;

constexpr int max_dims = 8;

// A sentence for the user, without the mark that it is ours.
class Refusal : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// In place of a length: any.
constexpr int64_t any = std::numeric_limits<int64_t>::min();
using Shape = std::vector<int64_t>;

template <typename T>
constexpr ffi::DataType data_type() {
  if constexpr (std::is_same_v<T, float>) return ffi::F32;
  if constexpr (std::is_same_v<T, double>) return ffi::F64;
  if constexpr (std::is_same_v<T, int32_t>) return ffi::S32;
  if constexpr (std::is_same_v<T, uint32_t>) return ffi::U32;
}

// An array of whatever dtype.
struct Buffer {
  ffi::DataType type;
  const int64_t* dims;
  int rank;
  void* data;

  int64_t elements() const {
    int64_t product = 1;
    for (int i = 0; i < rank; ++i) product *= dims[i];
    return product;
  }
  int64_t bytes() const { return elements() * static_cast<int64_t>(ffi::ByteWidth(type)); }
  // Of an array that has rows.
  int64_t rows() const { return dims[0]; }
};

// An array whose dtype and rank are known; null if it was left out.
template <typename T>
struct Array {
  T* data = nullptr;
  const int64_t* dims = nullptr;

  operator T*() const { return data; }
  int64_t rows() const { return dims[0]; }
};

// How many leading rows of an array hold particles. The number lies where the kernel runs.
struct Count {
  const int32_t* number = nullptr;
  int64_t rows = 0;

  JZTREE_BOTH int64_t operator()() const {
    int64_t given = number[0];
    return given < 0 ? 0 : given > rows ? rows : given;
  }
};

// Box lengths and linking lengths: words whose float64 sum over the last axis is the number. They lie where the kernel
// runs.
struct Lengths {
  const void* words = nullptr;
  int64_t count = 0;
  int parts = 0;
  bool wide = false;

  JZTREE_BOTH double operator[](int64_t i) const {
    double sum = 0;
    for (int64_t j = i * parts; j < (i + 1) * parts; ++j)
      sum += wide ? static_cast<const double*>(words)[j] : static_cast<double>(static_cast<const float*>(words)[j]);
    return sum;
  }

  template <int D>
  JZTREE_BOTH void read(double (&numbers)[D]) const {
    for (int d = 0; d < D; ++d) numbers[d] = (*this)[d];
  }
};

// Integers that are compiled in, as Python passes them before there is a call.
struct PlainAttribute {
  const char* name;
  int64_t count;
  const int64_t* numbers;
};

// What is compiled in, by name.
class Attributes {
 public:
  explicit Attributes(const ffi::Dictionary& values) : values_(values) {}
  Attributes(const PlainAttribute* plain, int64_t count) : plain_(plain), count_(count) {}

  int64_t integer(const char* name) const { return values_ ? given<int64_t>(name) : plain(name).numbers[0]; }
  bool flag(const char* name) const { return values_ ? given<bool>(name) : plain(name).numbers[0] != 0; }
  ffi::Span<const int64_t> integers(const char* name) const {
    if (values_) return given<ffi::Span<const int64_t>>(name);
    return {plain(name).numbers, static_cast<size_t>(plain(name).count)};
  }
  // Empty before there is a call: nothing but what errors say depends on it.
  std::string_view text(const char* name) const { return values_ ? given<std::string_view>(name) : std::string_view(); }

 private:
  [[noreturn]] static void refuse(const char* name) {
    throw Refusal(std::string("a kernel was called without its attribute ") + name + ".");
  }

  template <typename T>
  T given(const char* name) const {
    auto value = values_->get<T>(name);
    if (!value.has_value()) refuse(name);
    return value.value();
  }

  const PlainAttribute& plain(const char* name) const {
    for (int64_t i = 0; i < count_; ++i)
      if (std::string_view(plain_[i].name) == name) return plain_[i];
    refuse(name);
  }

  std::optional<ffi::Dictionary> values_;
  const PlainAttribute* plain_ = nullptr;
  int64_t count_ = 0;
};

class Arguments {
 public:
  // What a result holds at first: that of an argument, from which XLA may have taken the memory.
  struct Continued {
    const Buffer *old, *result;
  };

  Arguments(const char* kernel, std::vector<Buffer> arguments, std::vector<Buffer> results, Attributes attributes)
      : kernel_(kernel), arguments_(std::move(arguments)), results_(std::move(results)), attributes_(attributes) {}

  // The next argument, of this shape.
  template <typename T>
  Array<const T> argument(const std::string& name, const Shape& shape) {
    return checked<const T>(any_argument(name), name, shape);
  }

  // The same for one that may be left out, that is, have no elements.
  template <typename T>
  Array<const T> optional(const std::string& name, const Shape& shape) {
    const Buffer& buffer = any_argument(name);
    if (buffer.elements() == 0 && buffer.type == data_type<T>()) return {nullptr, buffer.dims};
    return checked<const T>(buffer, name, shape);
  }

  const Buffer& any_argument(const std::string& name) { return next(arguments_, argument_, name); }

  // A number below or equal to `rows`.
  Count count(const std::string& name, int64_t rows) { return {number(name), rows}; }
  const int32_t* number(const std::string& name) { return argument<int32_t>(name, {}); }

  Lengths lengths(const std::string& name, int64_t count) { return as_lengths(any_argument(name), name, count); }
  Lengths as_lengths(const Buffer& words, const std::string& name, int64_t count) const {
    int64_t parts = words.rank > 0 ? words.dims[words.rank - 1] : 0, found = parts > 0 ? words.elements() / parts : 0;
    if ((words.type != ffi::F32 && words.type != ffi::F64) || parts == 0 || (count != any && count != found))
      refuse(words, name, "float words of " + (count == any ? std::string("any") : std::to_string(count)) + " numbers");
    return {words.data, found, static_cast<int>(parts), words.type == ffi::F64};
  }

  // The next result, of this shape.
  template <typename T>
  Array<T> result(const std::string& name, const Shape& shape) {
    return checked<T>(any_result(name), name, shape);
  }

  const Buffer& any_result(const std::string& name) { return next(results_, result_, name); }

  // A result that goes on with what an argument holds, if there is one: these come behind all other arguments.
  template <typename T>
  Array<T> continued(const std::string& name, const Shape& shape) {
    return checked<T>(any_continued(name), name, shape);
  }
  const Buffer& any_continued(const std::string& name) {
    const Buffer& result = any_result(name);
    if (argument_ < arguments_.size()) {
      const Buffer& old = any_argument(name);
      if (!same_kind(old, result)) refuse(old, name, words(result));
      continued_.push_back({&old, &result});
    }
    return result;
  }

  const Attributes& attributes() const { return attributes_; }
  const std::vector<Continued>& continued() const { return continued_; }
  // All there are, read or not.
  const std::vector<Buffer>& all_arguments() const { return arguments_; }
  const std::vector<Buffer>& all_results() const { return results_; }
  // How many are still to be read.
  size_t arguments_left() const { return arguments_.size() - argument_; }
  size_t results_left() const { return results_.size() - result_; }

  // The last result, which the kernel does not see: memory for its work arrays.
  Buffer take_last_result() {
    if (results_.empty())
      throw Refusal(std::string("the kernel ") + kernel_ + " was called without memory for its work arrays.");
    Buffer last = results_.back();
    results_.pop_back();
    return last;
  }

  // After the last: whoever passes more than is read has another kernel in mind.
  void expect_end() const {
    if (arguments_left() > 0 || results_left() > 0)
      throw Refusal(std::string("the kernel ") + kernel_ + " was called with " + std::to_string(arguments_left()) +
                    " arguments and " + std::to_string(results_left()) + " results too many.");
  }

  // For conditions that no single shape states.
  void expect(bool fits, const Buffer& buffer, const std::string& name, const std::string& wanted) const {
    if (!fits) refuse(buffer, name, wanted);
  }
  template <typename T>
  void expect(bool fits, const Array<T>& array, int rank, const std::string& name, const std::string& wanted) const {
    if (!fits) refuse(Buffer{data_type<std::remove_const_t<T>>(), array.dims, rank, nullptr}, name, wanted);
  }

  [[noreturn]] void refuse(const Buffer& buffer, const std::string& name, const std::string& wanted) const {
    throw Refusal(std::string("the kernel ") + kernel_ + " was called with " + name + " of " + words(buffer) +
                  "; it must be " + wanted + ".");
  }

 private:
  const Buffer& next(const std::vector<Buffer>& buffers, size_t& at, const std::string& name) const {
    if (at == buffers.size()) throw Refusal(std::string("the kernel ") + kernel_ + " was called without " + name + ".");
    return buffers[at++];
  }

  template <typename T>
  Array<T> checked(const Buffer& buffer, const std::string& name, const Shape& shape) const {
    constexpr ffi::DataType type = data_type<std::remove_const_t<T>>();
    bool fits = buffer.type == type && buffer.rank == static_cast<int>(shape.size());
    for (size_t i = 0; fits && i < shape.size(); ++i) fits = shape[i] == any || shape[i] == buffer.dims[i];
    if (!fits) refuse(buffer, name, words(Buffer{type, shape.data(), static_cast<int>(shape.size()), nullptr}));
    return {static_cast<T*>(buffer.data), buffer.dims};
  }

  static bool same_kind(const Buffer& a, const Buffer& b) {
    bool same = a.type == b.type && a.rank == b.rank;
    for (int i = 0; same && i < a.rank; ++i) same = a.dims[i] == b.dims[i];
    return same;
  }

  static std::string words(const Buffer& buffer) {
    std::string text = type_name(buffer.type) + " (";
    for (int i = 0; i < buffer.rank; ++i)
      text += (i > 0 ? ", " : "") + (buffer.dims[i] == any ? std::string("any") : std::to_string(buffer.dims[i]));
    return text + (buffer.rank == 1 ? ",)" : ")");
  }

  static std::string type_name(ffi::DataType type) {
    switch (type) {
      case ffi::F32: return "float32";
      case ffi::F64: return "float64";
      case ffi::S32: return "int32";
      case ffi::U32: return "uint32";
      default: return "XLA's dtype " + std::to_string(static_cast<int>(type));
    }
  }

  const char* kernel_;
  std::vector<Buffer> arguments_, results_;
  Attributes attributes_;
  std::vector<Continued> continued_;
  size_t argument_ = 0, result_ = 0;
};

}  // namespace jztree
