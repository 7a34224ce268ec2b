#include "zsort.h"

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "common/cpu/context.h"
#include "zorder_sort.h"

namespace jztree {
namespace {

template <int D, typename T>
void zsort(const Parallel& parallel, const ZOrder<D, T>& in) {
  RowArrays<D, T> out{reinterpret_cast<uint32_t*>(in.order), in.sorted};
  int64_t n = in.pos.rows(), count = in.num();
  ZSort<D, T>(parallel, in.keys.grid(), in.pos, count, out);
  std::iota(out.row + count, out.row + n, static_cast<uint32_t>(count));
  std::copy(in.pos + count * D, in.pos + n * D, out.x + count * D);
}

}  // namespace

JZTREE_KERNEL(zsort, ZOrder);

}  // namespace jztree
