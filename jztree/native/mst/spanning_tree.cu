// Rounds of Boruvka's algorithm as on the CPU (boruvka.h), then a radix sort of the edges. The host does not know when
// the tree is complete. So it launches as many rounds as any set may need, and the rounds after the last edge return at
// once.
//
// A warp's walk visits nodes in z-order, so it needs a bound from the start. Every set but the whole contains a row
// whose successor in z-order belongs to another set, and their distance is a bound for both sets.

#include <cstdint>
#include <limits>

#include "common/cuda/context.cuh"
#include "common/cuda/primitives.cuh"
#include "common/cuda/wrapped.cuh"
#include "edge_state.cuh"
#include "edge_walk.cuh"
#include "spanning_tree.h"

namespace jztree {
namespace {

constexpr int walk_threads = 128;

template <int D, typename T>
__device__ bool same_place(const EdgeState<D, T>& sets, int64_t a, int64_t b) {
  for (int d = 0; d < D; ++d)
    if (!same_in_box(sets.pos(a)[d], sets.pos(b)[d], sets.setup->scale.raw_period[d])) return false;
  return sets.weight(a, b) == 0;
}

template <int D, typename T>
__global__ void begin_rows(EdgeState<D, T> sets) {
  const int64_t row = thread_index();
  if (row == 0) *sets.count = 0;
  if (row >= sets.num()) return;
  sets.joined.set(row, row);
  sets.to[row] = -1;
  sets.sure[row] = sets.absent[row] = 0;
  sets.floor[row] = 0;
  sets.pair[row] = no_pair;
  if (sets.core) sets.core[row] = sets.setup->rule.weight(sets.pos(row), sets.pos(sets.core_row[row]));
}

// Equal points are neighbours in z-order.
template <int D, typename T>
__global__ void join_equal(EdgeState<D, T> sets) {
  const int64_t row = thread_index() + 1;
  if (row < sets.num() && same_place(sets, row - 1, row))
    sets.joined.unite(static_cast<int32_t>(row - 1), static_cast<int32_t>(row));
}

// The first of them in the output order represents them.
template <int D, typename T>
__global__ void represent(EdgeState<D, T> sets) {
  const int64_t row = thread_index();
  if (row >= sets.num()) return;
  const int32_t root = sets.joined.settle(row);
  lower(sets.pair + root, static_cast<uint64_t>(sets.output_row(row)) << 32);
}

template <int D, typename T>
__global__ void leave_represented(EdgeState<D, T> sets) {
  const int64_t row = thread_index();
  if (row >= sets.num()) return;
  const int32_t root = sets.joined.parents[row];
  const auto chosen = static_cast<int32_t>(sets.pair[root] >> 32);
  if (chosen == sets.output_row(row)) return;
  sets.absent[row] = 1;
  sets.add(0, row, root, pair_of(chosen, sets.output_row(row)));
}

// Find the sets of rows, and forget the edges of the last round.
template <int D, typename T>
__global__ void label_rows(EdgeState<D, T> sets) {
  const int64_t row = thread_index();
  if (row >= sets.num() || sets.is_done()) return;
  sets.set[row] = sets.joined.settle(row);
  sets.least[row] = bits_of_weight(no_weight);
  sets.pair[row] = no_pair;
}

template <int D, typename T>
__global__ void label_nodes(EdgeState<D, T> sets, int plane) {
  const int64_t node = sets.tree.starts[plane] + thread_index();
  if (node >= sets.tree.starts[plane + 1] || sets.is_done()) return;
  const int32_t* below = plane == 0 ? sets.set : sets.nodes;
  const int64_t first = plane == 0 ? sets.tree.leaf_row(node) : sets.tree.first_child(plane, node);
  const int64_t end = plane == 0 ? sets.tree.leaf_row(node + 1) : sets.tree.first_child(plane, node + 1);
  int32_t set = first < end ? below[first] : many_sets;
  for (int64_t i = first; i < end; ++i) set = below[i] == set ? set : many_sets;
  sets.nodes[node] = set;
}

// A bound for the sets of two neighbours in z-order. It is enlarged, because only edges that rows have found themselves
// may have the least weight.
template <int D, typename T>
__global__ void bound_sets(EdgeState<D, T> sets) {
  const int64_t row = thread_index() + 1;
  if (row >= sets.num() || sets.is_done() || sets.set[row - 1] == sets.set[row]) return;
  const double bound = above(sets.weight(row - 1, row) * (1 + 1e-12));
  sets.offer(sets.set[row - 1], bound);
  sets.offer(sets.set[row], bound);
}

// Find the lightest edge of a row to its near particles in other sets; see Boruvka::take_near.
template <int D, typename T>
__device__ void take_near(const EdgeState<D, T>& sets, int64_t row, int32_t set) {
  int32_t to = sets.to[row];
  double least = no_weight, others = sets.floor[row];
  uint64_t pair = no_pair;
  if (to >= 0 && sets.set[to] == set) to = -1;
  if (to >= 0) {
    least = sets.weight(row, to);
    pair = sets.rows_of(row, to);
  }
  double limit = no_weight, beyond = 0;
  const int32_t* near = sets.near + row * sets.k;
  for (int64_t i = 0; i < sets.k && near[i] >= 0; ++i) {
    const int32_t other = near[i];
    if (sets.set[other] == set && i + 1 < sets.k) continue;
    beyond = sets.setup->rule.surely(sets.setup->rule.weight(sets.pos(row), sets.pos(other)));
    if (sets.core) beyond = larger(beyond, sets.core[row]);
    if (beyond > least) break;
    if (sets.set[other] == set) continue;
    if (sets.absent[other]) {
      limit = smaller(limit, beyond);
      continue;
    }
    const double weight = sets.weight(row, other);
    const uint64_t rows = sets.rows_of(row, other);
    if (weight > least || (weight == least && rows > pair)) continue;
    least = weight;
    pair = rows;
    to = other;
  }
  const bool all = sets.k > 0 && near[sets.k - 1] < 0 && !(beyond > least);
  others = larger(others, all ? limit : smaller(limit, beyond));
  sets.to[row] = to;
  sets.sure[row] = to >= 0 && least < others;
  sets.floor[row] = smaller(least, others);
}

template <int D, typename T>
__global__ void offer_edges(EdgeState<D, T> sets) {
  const int64_t row = thread_index();
  if (row >= sets.num() || sets.is_done() || !sets.is_open(row)) return;
  const int32_t set = sets.set[row];
  if (!sets.sure[row] || sets.set[sets.to[row]] == set) take_near(sets, row, set);
  if (sets.to[row] >= 0) sets.offer(set, sets.weight(row, sets.to[row]));
}

template <int D, typename T>
__global__ void search_edges(EdgeState<D, T> sets) {
  const int64_t leaf = thread_index() / warp_size;
  if (leaf >= sets.tree.leaves() || sets.is_done()) return;
  EdgeWalk<D, T> walk(sets,
                      dynamic_shared() + (threadIdx.x / warp_size) * EdgeWalk<D, T>::shared_bytes(sets.tree.planes));
  const int64_t end = sets.tree.leaf_row(leaf + 1);
  for (int64_t row = sets.tree.leaf_row(leaf); row < end; row += warp_size) walk.run(row, end);
}

template <int D, typename T>
__device__ bool has_least(const EdgeState<D, T>& sets, int64_t row) {
  return !sets.absent[row] && sets.sure[row] && sets.floor[row] == sets.least_of(sets.set[row]);
}

template <int D, typename T>
__global__ void choose_edges(EdgeState<D, T> sets) {
  const int64_t row = thread_index();
  if (row >= sets.num() || sets.is_done() || !has_least(sets, row)) return;
  lower(sets.pair + sets.set[row], sets.rows_of(row, sets.to[row]));
}

// If two sets have chosen the same edge, one of them adds it. `before` is the number of edges before this launch.
template <int D, typename T>
__global__ void join_sets(EdgeState<D, T> sets, const int32_t* before) {
  const int64_t row = thread_index();
  if (row >= sets.num() || *before >= sets.num() - 1 || !has_least(sets, row)) return;
  const int32_t to = sets.to[row], set = sets.set[row], other = sets.set[to];
  const uint64_t pair = sets.rows_of(row, to);
  if (sets.pair[set] != pair) return;
  const bool same = sets.least[other] == sets.least[set] && sets.pair[other] == pair;
  if (!same || set < other) sets.add(sets.floor[row], row, to, pair);
}

// Fill the places after the last edge, so that the sort moves them past all edges, and number all places.
__global__ void number_edges(uint64_t* pairs, uint64_t* weights, const int32_t* count, int64_t edges, uint32_t* order) {
  const int64_t place = thread_index();
  if (place >= edges) return;
  order[place] = static_cast<uint32_t>(place);
  if (place < *count) return;
  pairs[place] = no_pair;
  weights[place] = bits_of_weight(no_weight);
}

__global__ void take_numbers(const uint64_t* from, const uint32_t* order, int64_t edges, uint64_t* to) {
  const int64_t place = thread_index();
  if (place < edges) to[place] = from[order[place]];
}

__global__ void find_places(const int32_t* rows, Count num, int32_t* places) {
  const int64_t row = thread_index();
  if (row < num()) places[rows ? rows[row] : row] = static_cast<int32_t>(row);
}

// Find the two particles whose distance is the length; see EdgeWriter::write_measure.
template <int D, typename T>
__device__ void write_measure(const EdgeState<D, T>& sets, int64_t from, int64_t to, double weight, int32_t* measure) {
  if (sets.setup->rule.weight(sets.pos(from), sets.pos(to)) != weight) {
    if (sets.core[from] != weight) from = to;
    to = sets.core_row[from];
  }
  measure[0] = sets.output_row(from);
  measure[1] = sets.output_row(to);
}

// The results of the kernel.
template <typename T>
struct EdgeOutput {
  int32_t* ends;
  T* length;
  uint32_t* exact;
  int32_t* measure;

  __device__ void write(int64_t place, uint64_t pair, double weight) const {
    const uint64_t bits = bits_of_weight(weight);
    ends[2 * place] = static_cast<int32_t>(pair >> 32);
    ends[2 * place + 1] = static_cast<int32_t>(pair & 0xffffffff);
    length[place] = static_cast<T>(weight);
    exact[2 * place] = static_cast<uint32_t>(bits);
    exact[2 * place + 1] = static_cast<uint32_t>(bits >> 32);
  }
};

template <int D, typename T>
__global__ void write_edges(EdgeState<D, T> sets, const uint64_t* weights, const uint64_t* pairs, const int32_t* places,
                            EdgeOutput<T> out, int64_t edges) {
  const int64_t place = thread_index();
  if (place >= edges) return;
  const bool valid = place < sets.num() - 1;
  const double weight = weight_of_bits(weights[place]);
  out.write(place, pairs[place], valid ? sets.setup->rule.linking_length(weight) : no_weight);
  if (!out.measure) return;
  int32_t* measure = out.measure + 2 * place;
  measure[0] = measure[1] = -1;
  if (valid) write_measure(sets, places[pairs[place] >> 32], places[pairs[place] & 0xffffffff], weight, measure);
}

template <int D, typename T>
EdgeState<D, T> make_state(Queue& queue, const SpanningTree<D, T>& in) {
  const auto tree = on_device(in.tree);
  const int64_t n = in.n();
  const auto* setup = make_setup<EdgeSetup<D, T>>(queue, in.box, tree, any_wrapped(queue, in.box, tree));
  return {tree,
          setup,
          in.near,
          in.core_row,
          in.rows,
          in.near.dims[1],
          {queue.scratch<int32_t>(n)},
          queue.scratch<int32_t>(n),
          queue.scratch<int32_t>(tree.starts[tree.planes]),
          queue.scratch<int32_t>(n),
          queue.scratch<uint8_t>(n),
          queue.scratch<uint8_t>(n),
          queue.scratch<double>(n),
          in.core_row ? queue.scratch<double>(n) : nullptr,
          queue.scratch<uint64_t>(n),
          queue.scratch<uint64_t>(n),
          queue.scratch<uint64_t>(n),
          queue.scratch<uint64_t>(n),
          queue.scratch<int32_t>(1)};
}

template <int D, typename T>
void join_equal_points(Queue& queue, const EdgeState<D, T>& sets, int64_t n) {
  queue.launch_over(n, begin_rows<D, T>, sets);
  queue.launch_over(n, join_equal<D, T>, sets);
  queue.launch_over(n, represent<D, T>, sets);
  queue.launch_over(n, leave_represented<D, T>, sets);
}

template <int D, typename T>
void join_nearest_sets(Queue& queue, const EdgeState<D, T>& sets, int64_t n, int32_t* before) {
  const DeviceTree<D, T>& tree = sets.tree;
  queue.launch_over(n, label_rows<D, T>, sets);
  for (int plane = 0; plane < tree.planes; ++plane)
    queue.launch_over(tree.starts[plane + 1] - tree.starts[plane], label_nodes<D, T>, sets, plane);
  queue.launch_over(n, bound_sets<D, T>, sets);
  queue.launch_over(n, offer_edges<D, T>, sets);
  queue.launch_warps(tree.leaves(), EdgeWalk<D, T>::shared_bytes(tree.planes), walk_threads, search_edges<D, T>, sets);
  queue.launch_over(n, choose_edges<D, T>, sets);
  queue.copy(before, sets.count, 1);
  queue.launch_over(n, join_sets<D, T>, sets, before);
}

// Sort by rows, then by weight: the sort is stable.
template <int D, typename T>
void sort_edges(Queue& queue, const EdgeState<D, T>& sets, const SpanningTree<D, T>& in) {
  const int64_t edges = in.edges();
  DoubleBuffer<uint64_t> keys{queue.scratch<uint64_t>(edges), queue.scratch<uint64_t>(edges)};
  DoubleBuffer<uint32_t> order{queue.scratch<uint32_t>(edges), queue.scratch<uint32_t>(edges)};
  auto* places = in.measure ? queue.scratch<int32_t>(in.n()) : nullptr;
  queue.launch_over(edges, number_edges, sets.pairs, sets.weights, sets.count, edges, order.current);
  queue.copy(keys.current, sets.pairs, edges);
  sort_pairs(queue, keys, order, edges);
  queue.launch_over(edges, take_numbers, sets.weights, order.current, edges, keys.current);
  sort_pairs(queue, keys, order, edges);
  queue.launch_over(edges, take_numbers, sets.pairs, order.current, edges, keys.other);
  if (places) queue.launch_over(in.n(), find_places, in.rows, in.tree.num, places);
  queue.launch_over(edges, write_edges<D, T>, sets, keys.current, keys.other, places,
                    EdgeOutput<T>{in.ends, in.length, in.exact, in.measure}, edges);
}

template <int D, typename T>
void spanning_tree(Queue& queue, const SpanningTree<D, T>& in) {
  const int64_t n = in.n();
  if (n < 2) return;
  const EdgeState<D, T> sets = make_state(queue, in);
  auto* before = queue.scratch<int32_t>(1);
  join_equal_points(queue, sets, n);
  // Each round at least halves the number of sets.
  for (int round = 0; round < bits_of(n); ++round) join_nearest_sets(queue, sets, n, before);
  sort_edges(queue, sets, in);
}

}  // namespace

JZTREE_KERNEL(spanning_tree, SpanningTree);

}  // namespace jztree
