#include <cstdint>

#include "common/cuda/context.cuh"
#include "cut_tree.h"
#include "fof/union_find.cuh"

namespace jztree {
namespace {

// The arguments on the GPU, without the shapes that only the host can read.
struct DeviceCut {
  const int32_t* ends;
  const uint32_t* exact;
  Count num;
  Lengths rlink;
  UnionFind sets;
  int64_t n;
};

__global__ void begin_sets(DeviceCut cut) {
  const int64_t row = thread_index();
  if (row < cut.n) cut.sets.set(row, row);
}

__global__ void join_kept_ends(DeviceCut cut) {
  const int64_t edge = thread_index();
  if (edge >= cut.num()) return;
  if (!(exact_length(cut.exact, edge) <= cut.rlink[0]) || !has_rows(cut.ends, edge, cut.n)) return;
  cut.sets.unite(cut.ends[2 * edge], cut.ends[2 * edge + 1]);
}

__global__ void settle_rows(DeviceCut cut) {
  const int64_t row = thread_index();
  if (row < cut.n) cut.sets.settle(row);
}

void cut_tree(Queue& queue, const TreeCut& in) {
  const DeviceCut cut{in.ends, in.exact, in.num, in.rlink, {in.label.data}, in.label.rows()};
  queue.launch_over(cut.n, begin_sets, cut);
  queue.launch_over(in.ends.rows(), join_kept_ends, cut);
  queue.launch_over(cut.n, settle_rows, cut);
}

}  // namespace

JZTREE_PLAIN_KERNEL(cut_tree, TreeCut);

}  // namespace jztree
