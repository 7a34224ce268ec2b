// Arguments and results of a kernel.
//
// Each kernel has one struct of arguments, in a header that both backends include. Its constructor reads the arguments
// from `Arguments`, in the order in which Python passes them, each with its name and required shape. An error for a
// mismatch contains the name and both shapes. Results are counted separately, so the constructor may read a result
// before an argument whose shape depends on it. The backends implement the work:
//
//   template <int D, typename T>
//   struct Example {                                   // example.h
//     Array<const T> pos;                              // (n, D)
//     Lengths box;
//     int32_t* found;                                  // (n,)
//     explicit Example(Arguments& in)
//         : pos(in.argument<T>("pos", {any, D})), box(in.lengths("box", D)),
//           found(in.result<int32_t>("found", {pos.rows()})) {}
//   };
//
//   template <int D, typename T>
//   void example(Context& context, const Example<D, T>& in) { ... }   // example.cc, example.cu
//   JZTREE_KERNEL(example, Example);
//
// So that kernels compile quickly, this header does not include XLA's large header, and arguments.cc holds all code
// that is not a template.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <initializer_list>
#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "dims.h"
#include "portable.h"
#include "xla/ffi/api/c_api.h"

namespace jztree {

// An error message for the user, without the prefix that marks errors of this library.
class Refusal : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// In a shape: an axis of any length.
constexpr int64_t any = std::numeric_limits<int64_t>::min();
using Shape = std::initializer_list<int64_t>;

template <typename T>
constexpr XLA_FFI_DataType data_type() {
  if constexpr (std::is_same_v<T, float>) return XLA_FFI_DataType_F32;
  if constexpr (std::is_same_v<T, double>) return XLA_FFI_DataType_F64;
  if constexpr (std::is_same_v<T, int32_t>) return XLA_FFI_DataType_S32;
  if constexpr (std::is_same_v<T, uint32_t>) return XLA_FFI_DataType_U32;
}

// An array of any dtype.
struct Buffer {
  XLA_FFI_DataType type;
  const int64_t* dims;
  int rank;
  void* data;

  int64_t elements() const;
  int64_t bytes() const;
  // Only for arrays with at least one axis.
  int64_t rows() const { return dims[0]; }
};

// An array of known dtype and rank; null if it was omitted.
template <typename T>
struct Array {
  T* data = nullptr;
  const int64_t* dims = nullptr;

  operator T*() const { return data; }
  int64_t rows() const { return dims[0]; }
};

// The number of leading rows of an array that hold particles, stored in the memory of the backend.
struct Count {
  const int32_t* number = nullptr;
  int64_t rows = 0;

  JZTREE_BOTH int64_t operator()() const {
    int64_t given = number[0];
    return given < 0 ? 0 : given > rows ? rows : given;
  }
};

// Float64 numbers for JAX in 32-bit mode (jztree/_transform/exact.py). A number is stored as four words: it is the
// sum of the first three, times 2 to the power of the fourth. The fourth word is 0 if the three words would be normal
// numbers without such a factor, or if the number is not finite.
struct Words {
  static constexpr int count = 4;

  JZTREE_BOTH static double read(const float* words) {
    double sum = static_cast<double>(words[0]) + static_cast<double>(words[1]) + static_cast<double>(words[2]);
    return words[3] == 0 ? sum : std::ldexp(sum, static_cast<int>(words[3]));
  }

  JZTREE_BOTH static void write(double number, float* words) {
    int exponent = 0;
    if (std::isfinite(number)) std::frexp(number, &exponent);
    exponent = exponent < -73 || exponent > 127 ? exponent - 1 : 0;
    number = std::ldexp(number, -exponent);
    for (int i = 0; i < 3; ++i) {
      words[i] = static_cast<float>(number);
      number = std::isfinite(number) ? number - static_cast<double>(words[i]) : 0;
    }
    words[3] = static_cast<float>(exponent);
  }
};

// Box lengths, linking lengths and other float64 numbers in the memory of the backend: `Words`, or one float64 each.
struct Lengths {
  const void* words = nullptr;
  int64_t count = 0;
  bool wide = false;

  JZTREE_BOTH double operator[](int64_t i) const {
    return wide ? static_cast<const double*>(words)[i]
                : Words::read(static_cast<const float*>(words) + i * Words::count);
  }

  template <int D>
  JZTREE_BOTH void read(double (&numbers)[D]) const {
    for (int d = 0; d < D; ++d) numbers[d] = (*this)[d];
  }
};

// A static attribute that consists of integers.
struct Integers {
  const int64_t* numbers;
  size_t count;

  size_t size() const { return count; }
  int64_t operator[](size_t i) const { return numbers[i]; }
};

// The static attributes of a call, by name.
class Attributes {
 public:
  virtual ~Attributes() = default;
  virtual int64_t integer(const char* name) const = 0;
  virtual bool flag(const char* name) const = 0;
  virtual Integers integers(const char* name) const = 0;
  virtual std::string_view text(const char* name) const = 0;

 protected:
  [[noreturn]] static void refuse(const char* name);
};

// Allocates and copies padded rows on a backend.
class RowPadder {
 public:
  virtual ~RowPadder() = default;
  // Allocates memory that lasts until the work of the call is done.
  virtual void* memory(int64_t bytes) = 0;
  // Copies rows of `from` bytes to rows of `to` bytes. Longer rows are padded with zeros, shorter ones truncated.
  virtual void copy_rows(const void* source, int64_t from, void* target, int64_t to, int64_t rows) = 0;
};

class Arguments {
 public:
  // A result that starts with the contents of an argument. XLA may have given both the same memory.
  struct Continued {
    const Buffer *old, *result;
  };

  // The attributes must outlive this.
  Arguments(const char* kernel, std::vector<Buffer> arguments, std::vector<Buffer> results,
            const Attributes& attributes);

  // After this call, an array may have a last axis of length `from` if the kernel expects length `to`; the kernel then
  // gets a copy with padded rows. Call unpad_results after the work of the kernel.
  void pad_rows(int64_t from, int64_t to, RowPadder& padder);
  void unpad_results();
  // The length before padding of an axis that has length `width` in the kernel.
  int64_t given_width(int64_t width) const { return padder_ ? given_width_ : width; }

  // Reads the next argument, which must have this shape.
  template <typename T>
  Array<const T> argument(std::string_view name, Shape shape) {
    return as<const T>(checked(padded(any_argument(name), shape, false), name, data_type<T>(), shape));
  }

  // Like `argument`, but returns null for an array without elements, which means that it was omitted.
  template <typename T>
  Array<const T> optional(std::string_view name, Shape shape) {
    const Buffer& buffer = any_argument(name);
    if (buffer.elements() == 0 && buffer.type == data_type<T>()) return {nullptr, buffer.dims};
    return as<const T>(checked(padded(buffer, shape, false), name, data_type<T>(), shape));
  }

  const Buffer& any_argument(std::string_view name);

  // Reads a number of rows; the kernel sees it clipped to 0 to `rows`.
  Count count(std::string_view name, int64_t rows) { return {number(name), rows}; }
  const int32_t* number(std::string_view name) { return argument<int32_t>(name, {}); }

  Lengths lengths(std::string_view name, int64_t count) { return as_lengths(any_argument(name), name, count); }
  Lengths as_lengths(const Buffer& words, std::string_view name, int64_t count);

  // Reads the next result, which must have this shape.
  template <typename T>
  Array<T> result(std::string_view name, Shape shape) {
    return as<T>(checked(padded(any_result(name), shape, true), name, data_type<T>(), shape));
  }

  // Reads an optional result. If `asked` is false, the caller must pass an array without rows, and this returns null.
  // Without `columns`, the array has one dimension.
  template <typename T>
  Array<T> result_if(bool asked, std::string_view name, int64_t rows, int64_t columns = 0) {
    Array<T> array = columns > 0 ? result<T>(name, {asked ? rows : 0, columns}) : result<T>(name, {asked ? rows : 0});
    if (!asked) array.data = nullptr;
    return array;
  }

  const Buffer& any_result(std::string_view name);

  // Reads a result that initially has the contents of an argument. Such arguments follow all other arguments; if none
  // is left, the result is an ordinary one.
  template <typename T>
  Array<T> continued(std::string_view name, Shape shape) {
    return as<T>(checked(any_continued(name), name, data_type<T>(), shape));
  }
  const Buffer& any_continued(std::string_view name);

  const Attributes& attributes() const { return attributes_; }
  const std::vector<Continued>& continued() const { return continued_; }
  const std::vector<Buffer>& all_results() const { return results_; }
  // The first array of float rows; its dtype and dimensions select the compiled kernel.
  const Buffer& positions() const;
  // Numbers of arguments and results not read yet.
  size_t arguments_left() const { return arguments_.size() - argument_; }
  size_t results_left() const { return results_.size() - result_; }

  // Removes and returns the last result, the memory for work arrays. The kernel does not see it as a result.
  Buffer take_last_result();

  // Reports an error if arguments or results are left after the kernel has read its own.
  void expect_end() const;

  // Checks a condition that a shape cannot express.
  void expect(bool fits, const Buffer& buffer, std::string_view name, std::string_view wanted) const {
    if (!fits) refuse(buffer, name, wanted);
  }
  template <typename T>
  void expect(bool fits, const Array<T>& array, int rank, std::string_view name, std::string_view wanted) const {
    if (!fits) refuse(Buffer{data_type<std::remove_const_t<T>>(), array.dims, rank, nullptr}, name, wanted);
  }

  [[noreturn]] void refuse(const Buffer& buffer, std::string_view name, std::string_view wanted) const;

 private:
  // An array whose rows were padded.
  struct Padded {
    Buffer given, seen;
    std::vector<int64_t> dims;  // of `seen`
  };

  // Returns the array for the kernel, padded if this is necessary for the shape.
  const Buffer& padded(const Buffer& buffer, Shape shape, bool is_result);
  void copy_rows(const Buffer& source, const Buffer& target) const;

  const Buffer& next(const std::vector<Buffer>& buffers, size_t& at, std::string_view name) const;
  const Buffer& checked(const Buffer& buffer, std::string_view name, XLA_FFI_DataType type, Shape shape) const;

  template <typename T>
  static Array<T> as(const Buffer& buffer) {
    return {static_cast<T*>(buffer.data), buffer.dims};
  }

  const char* kernel_;
  std::vector<Buffer> arguments_, results_;
  const Attributes& attributes_;
  std::vector<Continued> continued_;
  size_t argument_ = 0, result_ = 0;
  RowPadder* padder_ = nullptr;
  int64_t given_width_ = 0, padded_width_ = 0;
  std::deque<Padded> padded_arguments_, padded_results_;
};

// Positions of particles as arguments of kernels. Only the first `num` rows hold particles.
template <int D, typename T>
struct Positions {
  Array<const T> pos;  // (n, width)
  Count num;

  // of: prefix of the names of the arrays.
  explicit Positions(Arguments& in, const std::string& of = "", int64_t width = D)
      : pos(in.argument<T>(of + "pos", {any, width})), num(in.count(of + "num", pos.rows())) {}
};

// possible: a bit mask of the possible numbers of dimensions.
[[noreturn]] void refuse_dims(int64_t dims, unsigned possible);

}  // namespace jztree
