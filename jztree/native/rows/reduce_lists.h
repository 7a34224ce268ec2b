// The sum, the maximum or the minimum of the values of each list, for consecutive entries of lists that are stored one
// after the other (entry_lists.h).
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>

#include "entry_lists.h"

namespace jztree {

// Sums of floats are accumulated in float64. Sums of integers wrap around, like unsigned numbers.
template <typename T>
struct TotalOf {
  using Type = std::make_unsigned_t<T>;
};
template <>
struct TotalOf<float> {
  using Type = double;
};
template <>
struct TotalOf<double> {
  using Type = double;
};

// The rules of a reduction: the accumulator, its initial value, the combination of an accumulator with a value or with
// another accumulator, and the result.
template <typename T>
struct SumRule {
  using Total = typename TotalOf<T>::Type;

  JZTREE_BOTH static constexpr Total initial() { return 0; }
  JZTREE_BOTH static Total add(Total total, T value) { return total + static_cast<Total>(value); }
  JZTREE_BOTH static Total join(Total one, Total other) { return one + other; }
  JZTREE_BOTH static T result(Total total) { return static_cast<T>(total); }
};

// NaN is the maximum and the minimum of values with NaN.
template <typename T, bool Largest>
struct ExtremeRule {
  using Total = T;
  using Limits = std::numeric_limits<T>;

  JZTREE_BOTH static constexpr T initial() {
    if constexpr (Limits::has_infinity) return Largest ? -Limits::infinity() : Limits::infinity();
    return Largest ? Limits::lowest() : Limits::max();
  }
  JZTREE_BOTH static T add(T total, T value) {
    bool replaces = Largest ? value > total : value < total;
    if constexpr (std::is_floating_point_v<T>) replaces |= value != value;
    return replaces ? value : total;
  }
  JZTREE_BOTH static T join(T first, T second) { return add(first, second); }
  JZTREE_BOTH static T result(T total) { return total; }
};

// reduced[i] = the reduction of values[j] over the entries start + j of list i; the initial value if there are none.
struct ReduceLists {
  enum How : int64_t { sum, largest, smallest };

  const Buffer& values;         // (entries, ...)
  Array<const int32_t> splits;  // (lists + 1,), see entry_lists.h
  const int32_t* start;
  const Buffer& reduced;  // (lists, ...)
  int64_t how;
  int64_t entries = 0, lists, columns = 0;

  explicit ReduceLists(Arguments& in)
      : values(in.any_argument("values")),
        splits(in.argument<int32_t>("splits", {any})),
        start(in.number("start")),
        reduced(in.any_result("reduced")),
        how(in.attributes().integer("how")),
        lists(splits.rows() - 1) {
    in.expect(lists >= 0, splits, 1, "splits", "of at least one number");
    in.expect(values.rank > 0, values, "values", "an array with rows");
    in.expect(reduced.rank == values.rank && reduced.type == values.type && reduced.rows() == lists, reduced, "reduced",
              "of the dtype and rank of values, with " + std::to_string(lists) + " rows");
    entries = values.rows();
    columns = 1;
    for (int axis = 1; axis < values.rank; ++axis) {
      columns *= values.dims[axis];
      in.expect(reduced.dims[axis] == values.dims[axis], reduced, "reduced",
                "of rows with the shape of those of values");
    }
  }

  // Call work(rule, zero) with the rule and a number of the dtype.
  template <typename Work>
  void with_rule(const Work& work) const {
    switch (values.type) {
      case XLA_FFI_DataType_F32: return with_rule_of<float>(work);
      case XLA_FFI_DataType_F64: return with_rule_of<double>(work);
      case XLA_FFI_DataType_S32: return with_rule_of<int32_t>(work);
      case XLA_FFI_DataType_U32: return with_rule_of<uint32_t>(work);
      case XLA_FFI_DataType_S64: return with_rule_of<int64_t>(work);
      case XLA_FFI_DataType_U64: return with_rule_of<uint64_t>(work);
      default: throw Refusal("reduce_lists needs integers or floats of 32 or 64 bits; convert the values.");
    }
  }

 private:
  template <typename T, typename Work>
  void with_rule_of(const Work& work) const {
    if (how == sum) return work(SumRule<T>{}, T{});
    if (how == largest) return work(ExtremeRule<T, true>{}, T{});
    work(ExtremeRule<T, false>{}, T{});
  }
};

}  // namespace jztree
