// One pass over the values. Several accumulators take consecutive values in turn, so that additions need not wait for
// each other and the compiler can use vectors. Their number depends only on the number of columns, so the order of a
// sum is the same on every machine and for any number of threads.

#include "reduce_lists.h"

#include <algorithm>
#include <cstdint>

#include "common/cpu/context.h"

namespace jztree {
namespace {

// The number of values that are added at a time, and the number of columns from which on a list is reduced in parts.
constexpr int64_t at_once = 16, most_columns = 64;
// The number of values in the lists that a thread reduces at a time.
constexpr int64_t grain = 1 << 15;

template <typename Rule, typename T>
class ListReducer {
 public:
  ListReducer(const ReduceLists& in) : in_(in) {}

  // Reduce a list of the values in `rows` rows.
  void reduce(int64_t list, const T* values, int64_t rows) const {
    T* out = static_cast<T*>(in_.reduced.data) + list * in_.columns;
    if (rows == 0) return void(std::fill_n(out, in_.columns, Rule::result(Rule::initial())));
    if (in_.columns < most_columns) return reduce_columns(values, rows, in_.columns, out);
    for (int64_t first = 0; first < in_.columns; first += most_columns)
      reduce_columns(values + first, rows, std::min(most_columns, in_.columns - first), out + first);
  }

 private:
  using Total = typename Rule::Total;

  // Rows are only processed together if they have no other columns.
  void reduce_columns(const T* values, int64_t rows, int64_t columns, T* out) const {
    const int64_t together = columns < in_.columns ? 1 : std::max<int64_t>(1, at_once / columns);
    const int64_t width = together * columns;
    Total totals[most_columns];
    std::fill_n(totals, width, Rule::initial());
    int64_t row = 0;
    for (; row + together <= rows; row += together) add(values + row * in_.columns, width, totals);
    add(values + row * in_.columns, (rows - row) * columns, totals);
    for (int64_t i = columns; i < width; ++i) totals[i % columns] = Rule::join(totals[i % columns], totals[i]);
    std::transform(totals, totals + columns, out, Rule::result);
  }

  static void add(const T* values, int64_t number, Total* totals) {
    for (int64_t i = 0; i < number; ++i) totals[i] = Rule::add(totals[i], values[i]);
  }

  const ReduceLists& in_;
};

void reduce_lists(const Parallel& parallel, const ReduceLists& in) {
  if (in.columns == 0) return;
  const int64_t start = *in.start;
  in.with_rule([&](auto rule, auto zero) {
    using T = decltype(zero);
    const ListReducer<decltype(rule), T> reducer(in);
    const auto* values = static_cast<const T*>(in.values.data);
    auto place = [&](int64_t list) { return std::clamp<int64_t>(in.splits[list] - start, 0, in.entries); };
    auto reduce = [&](int64_t begin, int64_t end) {
      for (int64_t list = begin; list < end; ++list)
        reducer.reduce(list, values + place(list) * in.columns, place(list + 1) - place(list));
    };
    // Most lists may end before the first entry or begin after the last.
    const int64_t first = list_of_entry(in.splits, in.lists, start);
    const int64_t last = std::min(in.lists, list_of_entry(in.splits, in.lists, start + in.entries) + 1);
    const int64_t all = std::max<int64_t>(1, in.entries * in.columns);
    reduce(0, first);
    parallel.blocks(last - first, std::max<int64_t>(1, (last - first) * grain / all),
                    [&](int64_t begin, int64_t end) { reduce(first + begin, first + end); });
    reduce(last, in.lists);
  });
}

}  // namespace

JZTREE_PLAIN_KERNEL(reduce_lists, ReduceLists);

}  // namespace jztree
