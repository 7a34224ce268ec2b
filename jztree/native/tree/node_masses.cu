// Mass and centre of mass of every node, summed in float64 over its particles in z-order, as the CPU's kernel does, so
// that the bits are the same.

#include <cstdint>

#include "common/morton.h"
#include "common/tree_layout.h"
#include "common/cuda/arguments.cuh"
#include "common/cuda/queue.cuh"

namespace jztree {
namespace {

constexpr int moments_a_node = max_dims + 1;

// Centres are those of the wrapped positions, so they lie in the node's box. Moments: mass times position, then mass.
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

// One thread a moment of a node: the sum over the node's children.
__global__ void node_moments(const int32_t* splits, int64_t nodes, int terms, const double* below, double* moments) {
  int64_t i = thread_index(), node = i / terms, term = i % terms;
  if (node >= nodes) return;
  double sum = 0;
  for (int64_t child = splits[node]; child < splits[node + 1]; ++child) sum += below[child * terms + term];
  moments[i] = sum;
}

template <typename T>
__global__ void write_nodes(const double* moments, int64_t nodes, int dims, T* mass, T* centre) {
  int64_t node = thread_index();
  if (node >= nodes) return;
  const double* sum = moments + node * (dims + 1);
  mass[node] = static_cast<T>(sum[dims]);
  for (int d = 0; d < dims; ++d) centre[node * dims + d] = sum[dims] != 0 ? static_cast<T>(sum[d] / sum[dims]) : T{0};
}

ffi::Error node_masses(cudaStream_t stream, DeviceMemory scratch, ffi::AnyBuffer pos, ffi::AnyBuffer mass,
                       ffi::Buffer<ffi::S32> splits, ffi::AnyBuffer box, ffi::Result<ffi::AnyBuffer> node_mass,
                       ffi::Result<ffi::AnyBuffer> node_centre, ffi::Span<const int64_t> plane_sizes) {
  return dispatch<max_dims>(pos, [&](auto type, auto dims) {
    using T = decltype(type);
    constexpr int D = decltype(dims)::value;
    TreeLayout layout(plane_sizes);
    Lengths period;
    int64_t masses = static_cast<int64_t>(mass.element_count());
    if (!read_lengths(box, D, &period) || mass.element_type() != pos.element_type() ||
        (masses != 1 && masses != pos.dimensions()[0]) ||
        static_cast<int64_t>(splits.element_count()) != layout.splits() ||
        static_cast<int64_t>(node_mass->element_count()) != layout.nodes() ||
        static_cast<int64_t>(node_centre->element_count()) != layout.nodes() * D)
      return invalid("node_masses was called with arrays that do not fit together.");
    Queue queue(stream, scratch);
    double* moments = queue.scratch<double>(layout.nodes() * (D + 1));
    queue.launch_over(layout.sizes[0], leaf_moments<T>, pos.typed_data<T>(), mass.typed_data<T>(), masses == 1, period,
                      D, splits.typed_data(), layout.sizes[0], moments);
    for (int plane = 1; plane < layout.planes(); ++plane) {
      size_t p = static_cast<size_t>(plane);
      queue.launch_over(layout.sizes[p] * (D + 1), node_moments, splits.typed_data() + layout.split_start(plane),
                        layout.sizes[p], D + 1, moments + layout.starts[p - 1] * (D + 1),
                        moments + layout.starts[p] * (D + 1));
    }
    queue.launch_over(layout.nodes(), write_nodes<T>, moments, layout.nodes(), D, node_mass->typed_data<T>(),
                      node_centre->typed_data<T>());
    return ffi::Error::Success();
  });
}

}  // namespace

JZTREE_HANDLER(jztree_node_masses, node_masses, "plane_sizes");

}  // namespace jztree
