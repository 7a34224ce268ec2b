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
  int64_t n = in.pos.rows(), count = *in.in_order ? 0 : in.num();
  ZSort<D, T>(parallel, in.keys.grid(), in.pos, count, out);
  // The other rows keep their places.
  parallel.blocks(n - count, 1 << 14,
                  [&](int64_t begin, int64_t end) { out.copy(in.pos, count + begin, count + end); });
}

}  // namespace

JZTREE_KERNEL(zsort, ZOrder);

}  // namespace jztree
