// Adds in the order of the CPU kernel, so that sums have the same bits.

#include <cstdint>

#include "common/cuda/context.cuh"
#include "common/cuda/planes.cuh"
#include "common/morton.h"
#include "node_masses.h"

namespace jztree {
namespace {

constexpr int moments_a_node = max_dims + 1;

// Moments: mass times position, then mass.
template <typename T>
__global__ void leaf_moments(const T* pos, const T* mass, bool shared, Lengths period, int dims, const int32_t* splits,
                             int64_t leaves, double* moments) {
  int64_t leaf = thread_index();
  if (leaf >= leaves) return;
  double sum[moments_a_node] = {}, length[max_dims];
  for (int d = 0; d < dims; ++d) length[d] = period[d];
  for (int64_t row = splits[leaf]; row < splits[leaf + 1]; ++row) {
    double weight = static_cast<double>(mass[shared ? 0 : row]);
    sum[dims] += weight;
    for (int d = 0; d < dims; ++d) sum[d] += weight * static_cast<double>(wrap(pos[row * dims + d], length[d]));
  }
  for (int c = 0; c <= dims; ++c) moments[leaf * (dims + 1) + c] = sum[c];
}

// One moment of a node: the sum over the node's children.
struct AddMoments {
  PlaneNodes nodes;
  int terms;
  double* moments;

  __device__ void operator()(int plane, int64_t item) const {
    const int64_t node = item / terms, term = item % terms, end = nodes.first_child(plane, node + 1);
    double sum = 0;
    for (int64_t child = nodes.first_child(plane, node); child < end; ++child) sum += moments[child * terms + term];
    moments[nodes.place(plane, node) * terms + term] = sum;
  }
};

template <typename T>
__global__ void write_nodes(const double* moments, int64_t nodes, int dims, T* mass, T* centre) {
  int64_t node = thread_index();
  if (node >= nodes) return;
  const double* sum = moments + node * (dims + 1);
  mass[node] = static_cast<T>(sum[dims]);
  for (int d = 0; d < dims; ++d) centre[node * dims + d] = sum[dims] != 0 ? static_cast<T>(sum[d] / sum[dims]) : T{0};
}

template <int D, typename T>
void node_masses(Queue& queue, const NodeMasses<D, T>& in) {
  const TreeLayout& layout = in.layout;
  double* moments = queue.scratch<double>(layout.nodes() * (D + 1));
  queue.launch_over(layout.sizes[0], leaf_moments<T>, in.pos, in.mass, in.shared, in.box, D, in.splits, layout.sizes[0],
                    moments);
  launch_planes(queue, layout, 1, D + 1, AddMoments{{layout, in.splits}, D + 1, moments});
  queue.launch_over(layout.nodes(), write_nodes<T>, moments, layout.nodes(), D, in.node_mass, in.node_centre);
}

}  // namespace

JZTREE_KERNEL(node_masses, NodeMasses);

}  // namespace jztree
