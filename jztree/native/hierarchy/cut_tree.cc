#include "cut_tree.h"

#include <cstdint>

#include "common/cpu/context.h"
#include "fof/union_find.h"

namespace jztree {
namespace {

void cut_tree(const Parallel& parallel, const TreeCut& in) {
  const int64_t n = in.label.rows();
  const double rlink = in.rlink[0];
  UnionFind sets(n);
  parallel.blocks(n, 1 << 14, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) sets.set(row, row);
  });
  parallel.blocks(in.num(), 1 << 13, [&](int64_t begin, int64_t end) {
    for (int64_t edge = begin; edge < end && exact_length(in.exact, edge) <= rlink; ++edge) {
      if (!has_rows(in.ends, edge, n)) throw Refusal("invalid row index in the ends of edges.");
      sets.unite(in.ends[2 * edge], in.ends[2 * edge + 1]);
    }
  });
  parallel.blocks(n, 1 << 14, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) in.label[row] = sets.find(row);
  });
}

}  // namespace

JZTREE_PLAIN_KERNEL(cut_tree, TreeCut);

}  // namespace jztree
