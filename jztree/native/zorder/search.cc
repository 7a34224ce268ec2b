#include "search.h"

#include <cstdint>

#include "common/cpu/context.h"

namespace jztree {
namespace {

template <int D, typename T>
void search(const Parallel& parallel, const KeySearch<D, T>& in) {
  KeyGrid<D> grid = in.keys.grid();
  int64_t count = finite_rows<D>(grid, in.pos.data, in.num());
  parallel.blocks(in.query.rows(), 1 << 10, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      MortonKey key = Morton<D>::key(grid, in.query + i * grid.dims);
      in.row[i] = static_cast<int32_t>(key_place<D>(grid, in.pos.data, count, key, in.right));
    }
  });
}

}  // namespace

JZTREE_KERNEL(search, KeySearch);

}  // namespace jztree
