// The order of rows by a number, the largest first, and by row among equal numbers.
#pragma once

#include <cstring>

#include "common/arguments.h"
#include "common/portable.h"

namespace jztree {

template <int D, typename T>
struct RowRanks {
  static constexpr unsigned compiled_dims = dims_up_to(1);

  Array<const T> number;  // (n, 1)
  Count num;
  int32_t* order;  // (n,), the row of each rank; rows after the last particle keep their places
  int32_t* rank;   // (n,), the rank of each row

  explicit RowRanks(Arguments& in)
      : number(in.argument<T>("number", {any, D})),
        num(in.count("num", number.rows())),
        order(in.result<int32_t>("order", {number.rows()})),
        rank(in.result<int32_t>("rank", {number.rows()})) {}
};

// Bits in the opposite order of the numbers. Both zeros have the same bits.
JZTREE_BOTH inline uint64_t descending_bits(double number) {
  uint64_t bits;
  memcpy(&bits, &number, sizeof(bits));
  if (bits << 1 == 0) bits = 0;
  return bits >> 63 ? bits : ~bits & ~(uint64_t{1} << 63);
}

}  // namespace jztree
