#include "node_masses.h"

#include <cstdint>
#include <vector>

#include "common/cpu/context.h"
#include "common/morton.h"

namespace jztree {
namespace {

template <int D, typename T>
void leaf_moments(const Parallel& parallel, const NodeMasses<D, T>& in, double* moments) {
  double period[D];
  in.box.read(period);
  parallel.blocks(in.layout.sizes[0], 512, [&](int64_t begin, int64_t end) {
    for (int64_t leaf = begin; leaf < end; ++leaf) {
      double* sum = moments + leaf * (D + 1);
      for (int64_t row = in.splits[leaf]; row < in.splits[leaf + 1]; ++row) {
        double weight = static_cast<double>(in.mass[in.shared ? 0 : row]);
        sum[D] += weight;
        for (int d = 0; d < D; ++d) sum[d] += weight * static_cast<double>(wrap(in.pos[row * D + d], period[d]));
      }
    }
  });
}

template <int D, typename T>
void node_masses(const Parallel& parallel, const NodeMasses<D, T>& in) {
  const TreeLayout& layout = in.layout;
  std::vector<double> moments(static_cast<size_t>(layout.nodes() * (D + 1)), 0.);
  leaf_moments(parallel, in, moments.data());
  for (int plane = 1; plane < layout.planes(); ++plane) {
    const int32_t* split = in.splits + layout.split_start(plane);
    int64_t below = layout.starts[static_cast<size_t>(plane) - 1], here = layout.starts[static_cast<size_t>(plane)];
    for (int64_t node = 0; node < layout.sizes[static_cast<size_t>(plane)]; ++node)
      for (int64_t child = below + split[node]; child < below + split[node + 1]; ++child)
        for (int c = 0; c <= D; ++c)
          moments[static_cast<size_t>((here + node) * (D + 1) + c)] +=
              moments[static_cast<size_t>(child * (D + 1) + c)];
  }
  for (int64_t node = 0; node < layout.nodes(); ++node) {
    const double* sum = moments.data() + node * (D + 1);
    in.node_mass[node] = static_cast<T>(sum[D]);
    for (int d = 0; d < D; ++d) in.node_centre[node * D + d] = sum[D] != 0 ? static_cast<T>(sum[d] / sum[D]) : T{0};
  }
}

}  // namespace

JZTREE_KERNEL(node_masses, NodeMasses);

}  // namespace jztree
