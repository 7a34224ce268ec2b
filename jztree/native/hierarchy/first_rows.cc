// One thread takes the clusters in order, so that the children of each come before it.

#include "first_rows.h"

#include <algorithm>
#include <cstdint>

#include "common/cpu/context.h"

namespace jztree {
namespace {

void first_rows(const Parallel&, const ClusterRows& in) {
  const auto rows = static_cast<int32_t>(in.rows);
  auto first = [&](int32_t cluster) { return cluster < rows ? cluster : in.first[cluster - rows]; };
  for (int64_t edge = 0; edge < in.num(); ++edge) {
    if (!has_clusters(in.children, edge, in.rows)) throw Refusal("invalid cluster in the children of a dendrogram.");
    in.first[edge] = std::min(first(in.children[2 * edge]), first(in.children[2 * edge + 1]));
  }
  std::fill(in.first + in.num(), in.first + in.children.rows(), -1);
}

}  // namespace

JZTREE_PLAIN_KERNEL(first_rows, ClusterRows);

}  // namespace jztree
