// One thread takes the edges in order. Union-find gives the cluster of each end.

#include "dendrogram.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "common/cpu/context.h"
#include "fof/union_find.h"

namespace jztree {
namespace {

// The numbers of edges by which the loads of rows and of their parents precede their use.
constexpr int64_t ahead = 24, sooner = 12;

void dendrogram(const Parallel&, const TreeClusters& in) {
  const int64_t edges = in.num();
  UnionFind sets(in.rows);
  Scratch<int32_t> last(in.rows);  // [root], the last edge of the set, or -1
  for (int64_t row = 0; row < in.rows; ++row) sets.set(row, row);
  std::fill_n(last.get(), in.rows, -1);
  for (int64_t edge = 0; edge < edges; ++edge) {
    // Most of the time is spent waiting for memory.
    if (edge + ahead < edges && has_rows(in.ends, edge + ahead, in.rows)) {
      for (int i = 0; i < 2; ++i) {
        const int32_t row = in.ends[2 * (edge + ahead) + i];
        sets.prefetch(row);
        __builtin_prefetch(last.get() + row);
      }
    }
    if (edge + sooner < edges && has_rows(in.ends, edge + sooner, in.rows)) {
      // The parent is loaded by now; it is often the root.
      for (int i = 0; i < 2; ++i) {
        const int32_t parent = sets.parent(in.ends[2 * (edge + sooner) + i]);
        sets.prefetch(parent);
        __builtin_prefetch(last.get() + parent);
      }
    }
    if (!has_rows(in.ends, edge, in.rows)) throw Refusal("invalid row index in the ends of edges.");
    int32_t cluster[2], count = 0;
    int32_t root[2];
    for (int i = 0; i < 2; ++i) {
      root[i] = sets.find(in.ends[2 * edge + i]);
      const int32_t before = last[root[i]];
      cluster[i] = before < 0 ? root[i] : static_cast<int32_t>(in.rows) + before;
      count += before < 0 ? 1 : in.count[before];
    }
    if (root[0] == root[1]) throw Refusal("the edges contain a circle; they must be those of a spanning tree.");
    in.children[2 * edge] = std::min(cluster[0], cluster[1]);
    in.children[2 * edge + 1] = std::max(cluster[0], cluster[1]);
    in.count[edge] = count;
    sets.unite(root[0], root[1]);
    last[std::min(root[0], root[1])] = static_cast<int32_t>(edge);
  }
  std::fill(in.children + 2 * edges, in.children + 2 * in.ends.rows(), -1);
  std::fill(in.count + edges, in.count + in.ends.rows(), 0);
}

}  // namespace

JZTREE_PLAIN_KERNEL(dendrogram, TreeClusters);

}  // namespace jztree
