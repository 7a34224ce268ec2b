#include "row_boxes.h"

#include <cstdint>

#include "common/cpu/context.h"
#include "common/cpu/row_box.h"

namespace jztree {
namespace {

template <int D, typename T>
void row_boxes(const Parallel& parallel, const RowBoxes<D, T>& in) {
  double period[D];
  in.box.read(period);
  const int64_t rows = in.num();
  parallel.blocks(in.runs(), 64, [&](int64_t first, int64_t last) {
    for (int64_t run = first; run < last; ++run) {
      T *low = in.lower + run * D, *high = in.upper + run * D;
      const int64_t begin = in.rows_of.begin(run, rows), end = in.rows_of.begin(run + 1, rows);
      in.splits[run] = static_cast<int32_t>(begin);
      no_box<D>(low, high);
      include_rows<D>(in.pos.data, begin, end, period, low, high);
    }
  });
  in.splits[in.runs()] = static_cast<int32_t>(rows);
}

}  // namespace

JZTREE_KERNEL(row_boxes, RowBoxes);

}  // namespace jztree
