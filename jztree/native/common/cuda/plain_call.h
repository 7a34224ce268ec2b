// A call of a kernel described by plain numbers, for Python's ctypes: types and shapes, without data.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "common/arguments.h"

namespace jztree {

// An array without data: its type and shape.
struct PlainBuffer {
  int64_t type, rank;
  const int64_t* dims;
};

inline std::vector<Buffer> buffers(const PlainBuffer* plain, int64_t count) {
  static unsigned char nowhere;  // not null, like the arrays of a real call; never read
  std::vector<Buffer> list;
  for (int64_t i = 0; i < count; ++i)
    list.push_back(
        {static_cast<XLA_FFI_DataType>(plain[i].type), plain[i].dims, static_cast<int>(plain[i].rank), &nowhere});
  return list;
}

// Integer attributes.
struct PlainAttribute {
  const char* name;
  int64_t count;
  const int64_t* numbers;
};

class PlainAttributes : public Attributes {
 public:
  PlainAttributes(const PlainAttribute* plain, int64_t count) : plain_(plain), count_(count) {}

  int64_t integer(const char* name) const override { return named(name).numbers[0]; }
  bool flag(const char* name) const override { return integer(name) != 0; }
  Integers integers(const char* name) const override {
    return {named(name).numbers, static_cast<size_t>(named(name).count)};
  }
  // Only error messages depend on it.
  std::string_view text(const char*) const override { return {}; }

 private:
  const PlainAttribute& named(const char* name) const {
    for (int64_t i = 0; i < count_; ++i)
      if (std::string_view(plain_[i].name) == name) return plain_[i];
    refuse(name);
  }

  const PlainAttribute* plain_;
  int64_t count_;
};

}  // namespace jztree
