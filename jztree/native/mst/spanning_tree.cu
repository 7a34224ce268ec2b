// Rounds of Boruvka's algorithm as on the CPU (boruvka.h), then a radix sort of the edges. The host does not know when
// the tree is complete. So it launches as many rounds as any set may need, and the rounds after the last edge return at
// once.
//
// A warp's walk visits nodes in z-order, so it needs a bound from the start. Every set but the whole contains a row
// whose successor in z-order belongs to another set, and their distance is a bound for both sets.

#include <cstdint>
#include <limits>
#include <utility>

#include "common/cuda/context.cuh"
#include "common/cuda/planes.cuh"
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

// Run for each row and each place of an edge.
template <int D, typename T>
__global__ void begin_rows(EdgeState<D, T> sets, int64_t edges) {
  const int64_t row = thread_index();
  if (row < edges) {
    // The sort moves places without an edge past all edges.
    sets.pairs[row] = no_pair;
    sets.weights[row] = bits_of_weight(no_weight);
  }
  if (row >= edges + 1) return;
  if (sets.unknown) sets.certain.set(row, row);
  if (row >= sets.num()) return;
  const int32_t label = sets.in.label ? sets.in.label[row] : static_cast<int32_t>(row);
  sets.joined.set(row, label);
  if (label != row) atomicAdd(sets.count, 1);
  sets.to[row] = -1;
  sets.is_lightest[row] = sets.absent[row] = 0;
  sets.floor[row] = 0;
  sets.pair[row] = sets.least_weight[row] = no_pair;
  sets.next_least_weight[row] = bits_of_weight(no_weight);
  if (sets.core) sets.core[row] = sets.setup->rule.weight(sets.pos(row), sets.in.core_of(row));
}

// Equal points are neighbours in z-order.
template <int D, typename T>
__global__ void join_equal(EdgeState<D, T> sets) {
  const int64_t row = thread_index() + 1;
  if (row < sets.num() && same_place(sets, row - 1, row))
    sets.joined.unite(static_cast<int32_t>(row - 1), static_cast<int32_t>(row));
}

// The first of them in the output order represents them. `least` gets the first one of this rank.
template <int D, typename T>
__global__ void represent(EdgeState<D, T> sets) {
  const int64_t row = thread_index();
  if (row >= sets.num()) return;
  const int32_t root = sets.joined.settle(row);
  const uint64_t candidate = static_cast<uint64_t>(sets.output_row(row)) << 32 | static_cast<uint64_t>(row);
  lower(sets.pair + root, candidate);
  if (!sets.in.is_ghost(row)) lower(sets.least_weight + root, candidate);
}

// See Boruvka::join_equal.
template <int D, typename T>
__global__ void leave_represented(EdgeState<D, T> sets) {
  const int64_t row = thread_index();
  if (row >= sets.num()) return;
  const int32_t root = sets.joined.parents[row];
  const auto representative = static_cast<int32_t>(sets.pair[root] & 0xffffffff);
  if (representative == row) return;
  const auto local_row = static_cast<int32_t>(sets.least_weight[root] & 0xffffffff);
  const bool certain = !sets.in.is_ghost(row) && (row != local_row || !sets.in.is_ghost(representative));
  sets.absent[row] = 1;
  sets.add(0, static_cast<int32_t>(row), representative, certain);
  if (certain && sets.unknown) sets.certain.unite(static_cast<int32_t>(row), local_row);
}

// Find the set of a row, and forget the pair of the last round.
template <int D, typename T>
__device__ int32_t label_row(const EdgeState<D, T>& sets, int64_t row) {
  sets.pair[row] = no_pair;
  if (sets.unknown) sets.unknown[row] = bits_of_weight(no_weight);
  return sets.set[row] = sets.joined.settle(row);
}

// A bound for the sets of two neighbours in z-order. It is enlarged, because only edges that rows have found themselves
// may have the least weight.
template <int D, typename T>
__device__ void bound_sets(const EdgeState<D, T>& sets, int64_t row, int32_t set_before, int32_t set) {
  if (row == 0 || set_before == set) return;
  const double bound = above(sets.weight(row - 1, row) * (1 + 1e-12));
  sets.offer(set_before, bound);
  sets.offer(set, bound);
}

// Label the rows of each leaf and the leaf itself, with one warp per leaf.
template <int D, typename T>
__global__ void label_leaves(EdgeState<D, T> sets) {
  const int64_t leaf = thread_index() / warp_size;
  if (leaf >= sets.tree.leaves() || sets.is_done()) return;
  const int64_t first = sets.tree.leaf_row(leaf), end = sets.tree.leaf_row(leaf + 1);
  int32_t leaf_set = many_sets;
  for (int64_t begin = first; begin < end; begin += warp_size) {
    const int64_t row = begin + lane_index();
    const int32_t set = row < end ? label_row(sets, row) : many_sets;
    int32_t set_before = __shfl_up_sync(all_lanes, set, 1);
    if (lane_index() == 0 && row > 0) set_before = sets.joined.settled_root(row - 1);
    if (row < end) bound_sets(sets, row, set_before, set);
    if (begin == first) leaf_set = __shfl_sync(all_lanes, set, 0);
    if (!__all_sync(all_lanes, row >= end || set == leaf_set)) leaf_set = many_sets;
  }
  if (lane_index() == 0) sets.nodes[leaf] = leaf_set;
}

template <int D, typename T>
__global__ void limit_known(EdgeState<D, T> sets) {
  const int64_t row = thread_index();
  if (row >= sets.num() || sets.is_done() || sets.absent[row]) return;
  lower(sets.unknown + sets.set[row], bits_of_weight(sets.setup->rule.beyond(sets.in.known[row])));
}

// Label a node above the leaves.
template <int D, typename T>
struct LabelNode {
  EdgeState<D, T> sets;

  __device__ void operator()(int plane, int64_t item) const {
    if (sets.is_done()) return;
    const int64_t node = sets.tree.starts[plane] + item;
    const int64_t first = sets.tree.first_child(plane, node), end = sets.tree.first_child(plane, node + 1);
    int32_t set = first < end ? sets.nodes[first] : many_sets;
    for (int64_t i = first; i < end; ++i) set = sets.nodes[i] == set ? set : many_sets;
    sets.nodes[node] = set;
  }
};

// If the near particles of a row are all in its set: a lower limit of the weights of edges to other particles that
// enclosure.h gives, or 0.
template <int D, typename T>
__device__ double enclosure_floor(const EdgeState<D, T>& sets, int64_t row) {
  if constexpr (D == 2) {
    const int32_t* neighbours = sets.near + row * sets.k;
    const auto& rule = sets.setup->rule;
    if (sets.core || neighbours[sets.k - 1] < 0) return 0;
    const double last = rule.weight(sets.pos(row), sets.pos(neighbours[sets.k - 1])), unit = 1 / std::sqrt(last);
    const auto offset = [&](int i) { return rule.offset(sets.pos(row), sets.pos(neighbours[i]), unit); };
    if (arcs_enclose(static_cast<int>(sets.k) - 1, offset)) return enclosure_reach2 * last;
  }
  return 0;
}

// Find the lightest edge of a row to its near particles in other sets; see Boruvka::take_near.
template <int D, typename T>
__device__ void take_near(const EdgeState<D, T>& sets, int64_t row, int32_t set) {
  int32_t to = sets.to[row];
  double lightest = no_weight, other_weights = sets.floor[row];
  uint64_t pair = no_pair;
  if (to >= 0 && sets.set[to] == set) to = -1;
  if (to >= 0) {
    lightest = sets.weight(row, to);
    pair = sets.rows_of(row, to);
  }
  double limit = no_weight, beyond = 0;
  const int32_t* neighbours = sets.near + row * sets.k;
  const bool unlisted = neighbours[0] == unknown_near;
  for (int64_t i = 0; i < sets.k && neighbours[i] >= 0; ++i) {
    const int32_t neighbour = neighbours[i];
    if (sets.set[neighbour] == set && i + 1 < sets.k) continue;
    beyond = sets.setup->rule.surely(sets.setup->rule.weight(sets.pos(row), sets.pos(neighbour)));
    if (sets.core) beyond = larger(beyond, sets.core[row]);
    if (beyond > lightest) break;
    if (sets.set[neighbour] == set) continue;
    if (sets.absent[neighbour]) {
      limit = smaller(limit, beyond);
      continue;
    }
    const double weight = sets.weight(row, neighbour);
    const uint64_t rows = sets.rows_of(row, neighbour);
    if (weight > lightest || (weight == lightest && rows > pair)) continue;
    lightest = weight;
    pair = rows;
    to = neighbour;
  }
  // Most rows never need to know whether they are enclosed.
  if (to < 0 && limit == no_weight && !unlisted && beyond <= sets.least_of(set))
    beyond = larger(beyond, enclosure_floor(sets, row));
  const bool all = !unlisted && neighbours[sets.k - 1] < 0 && !(beyond > lightest);
  other_weights = larger(other_weights, all ? limit : smaller(limit, beyond));
  sets.to[row] = to;
  sets.is_lightest[row] = to >= 0 && lightest < other_weights;
  sets.floor[row] = smaller(lightest, other_weights);
}

template <int D, typename T>
__global__ void offer_edges(EdgeState<D, T> sets) {
  const int64_t row = thread_index();
  if (row >= sets.num() || sets.is_done() || !sets.is_open(row)) return;
  const int32_t set = sets.set[row];
  if (!sets.is_lightest[row] || sets.set[sets.to[row]] == set) take_near(sets, row, set);
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
  return !sets.absent[row] && sets.is_lightest[row] && sets.floor[row] == sets.least_of(sets.set[row]);
}

// before: gets the number of edges before this round adds some.
template <int D, typename T>
__global__ void choose_edges(EdgeState<D, T> sets, int32_t* before) {
  const int64_t row = thread_index();
  if (row == 0) *before = *sets.count;
  if (row >= sets.num() || sets.is_done()) return;
  sets.next_least_weight[row] = bits_of_weight(no_weight);
  if (has_least(sets, row)) lower(sets.pair + sets.set[row], sets.rows_of(row, sets.to[row]));
}

// If two sets have chosen the same edge, only the set that begins first adds it.
template <int D, typename T>
__global__ void join_sets(EdgeState<D, T> sets, const int32_t* before) {
  const int64_t row = thread_index();
  if (row >= sets.num() || *before >= sets.num() - 1 || !has_least(sets, row)) return;
  const int32_t to = sets.to[row], set = sets.set[row], other = sets.set[to];
  const uint64_t pair = sets.rows_of(row, to);
  if (sets.pair[set] != pair) return;
  const bool mutual = sets.least_weight[other] == sets.least_weight[set] && sets.pair[other] == pair;
  if (mutual && set > other) return;
  const double weight = sets.floor[row];
  const bool certain = sets.is_certain(set, weight) || (mutual && sets.is_certain(other, weight));
  sets.add_lightest(weight, static_cast<int32_t>(row), to, certain);
}

__global__ void number_edges(int64_t edges, uint32_t* order) {
  const int64_t place = thread_index();
  if (place < edges) order[place] = static_cast<uint32_t>(place);
}

__global__ void take_numbers(const uint64_t* from, const uint32_t* order, int64_t edges, uint64_t* to) {
  const int64_t place = thread_index();
  if (place < edges) to[place] = from[order[place]];
}

__device__ inline void write_pair(int32_t* to, int64_t place, int32_t a, int32_t b) {
  if (!to) return;
  to[2 * place] = a;
  to[2 * place + 1] = b;
}

__device__ inline void write_words(uint32_t* to, int64_t place, uint64_t bits) {
  if (!to) return;
  to[2 * place] = static_cast<uint32_t>(bits);
  to[2 * place + 1] = static_cast<uint32_t>(bits >> 32);
}

// The results of the kernel that have a row per edge.
template <typename T>
struct EdgeOutput {
  int32_t* ends;
  T* length;
  uint32_t* exact;
  int32_t* measure;
  uint32_t* weight;
  int32_t *places, *certain;

  __device__ void write(int64_t place, uint64_t pair, double exact_length) const {
    write_pair(ends, place, static_cast<int32_t>(pair >> 32), static_cast<int32_t>(pair & 0xffffffff));
    length[place] = static_cast<T>(exact_length);
    write_words(exact, place, bits_of_weight(exact_length));
  }

  __device__ void write_padding(int64_t place) const {
    write(place, no_pair, no_weight);
    write_pair(measure, place, -1, -1);
    write_words(weight, place, bits_of_weight(no_weight));
    write_pair(places, place, -1, -1);
    if (certain) certain[place] = 0;
  }
};

// Find the two particles whose distance is the length; see EdgeWriter::write_measure.
template <int D, typename T>
__device__ void write_measure(const EdgeState<D, T>& sets, int64_t from, int64_t to, double weight, int64_t place,
                              int32_t* measure) {
  if (sets.setup->rule.weight(sets.pos(from), sets.pos(to)) == weight)
    return write_pair(measure, place, sets.output_row(from), sets.output_row(to));
  if (sets.core[from] != weight) from = to;
  write_pair(measure, place, sets.output_row(from), sets.in.core_id_of(from));
}

template <int D, typename T>
__global__ void write_edges(EdgeState<D, T> sets, const uint64_t* weights, const uint32_t* order, EdgeOutput<T> out,
                            int64_t edges) {
  const int64_t place = thread_index();
  if (place >= edges) return;
  const uint64_t pair = sets.pairs[order[place]];
  if (pair == no_pair) return out.write_padding(place);
  const double weight = weight_of_bits(weights[place]);
  const Link link = sets.links[order[place]];
  const bool in_order = sets.output_row(link.from()) == static_cast<int32_t>(pair >> 32);
  const int32_t from = in_order ? link.from() : link.to(), to = in_order ? link.to() : link.from();
  out.write(place, pair, sets.setup->rule.linking_length(weight));
  if (out.measure) write_measure(sets, from, to, weight, place, out.measure);
  write_words(out.weight, place, weights[place]);
  write_pair(out.places, place, from, to);
  if (out.certain) out.certain[place] = link.certain();
}

__global__ void settle_joined(UnionFind joined, int64_t n) {
  const int64_t row = thread_index();
  if (row < n) joined.settle(row);
}

template <int D, typename T>
EdgeState<D, T> make_state(Queue& queue, const SpanningTree<D, T>& in) {
  const auto tree = on_device(in.tree);
  const int64_t n = in.n();
  const auto* setup = make_setup<EdgeSetup<D, T>>(queue, in.box, in.particles, tree, any_wrapped(queue, in.box, tree));
  return {tree,
          setup,
          in.particles,
          in.near,
          in.near.dims[1],
          {queue.scratch<int32_t>(n)},
          {in.joined},
          queue.scratch<int32_t>(n),
          queue.scratch<int32_t>(tree.starts[tree.planes]),
          queue.scratch<int32_t>(n),
          queue.scratch<uint8_t>(n),
          queue.scratch<uint8_t>(n),
          queue.scratch<double>(n),
          in.particles.has_core() ? queue.scratch<double>(n) : nullptr,
          queue.scratch<uint64_t>(n),
          queue.scratch<uint64_t>(n),
          queue.scratch<uint64_t>(n),
          in.joined ? queue.scratch<uint64_t>(n) : nullptr,
          queue.scratch<uint64_t>(n),
          queue.scratch<uint64_t>(n),
          queue.scratch<Link>(n),
          queue.scratch<int32_t>(1)};
}

template <int D, typename T>
void begin(Queue& queue, const EdgeState<D, T>& sets, const SpanningTree<D, T>& in) {
  const int64_t n = in.n();
  queue.fill_bytes(sets.count, 0, 1);
  queue.launch_over(n, begin_rows<D, T>, sets, in.edges());
  if (in.particles.label) return;
  queue.launch_over(n, join_equal<D, T>, sets);
  queue.launch_over(n, represent<D, T>, sets);
  queue.launch_over(n, leave_represented<D, T>, sets);
}

// One round. before: memory for a number.
template <int D, typename T>
void join_nearest_sets(Queue& queue, const EdgeState<D, T>& sets, const TreeLayout& layout, int64_t n,
                       int32_t* before) {
  const DeviceTree<D, T>& tree = sets.tree;
  queue.launch_warps(tree.leaves(), label_leaves<D, T>, sets);
  if (sets.unknown) queue.launch_over(n, limit_known<D, T>, sets);
  launch_planes(queue, layout, 1, 1, LabelNode<D, T>{sets});
  queue.launch_over(n, offer_edges<D, T>, sets);
  queue.launch_warps(tree.leaves(), EdgeWalk<D, T>::shared_bytes(tree.planes), walk_threads, search_edges<D, T>, sets);
  queue.launch_over(n, choose_edges<D, T>, sets, before);
  queue.launch_over(n, join_sets<D, T>, sets, before);
}

// Sort by rows, then by weight: the sort is stable.
template <int D, typename T>
void sort_edges(Queue& queue, const EdgeState<D, T>& sets, const SpanningTree<D, T>& in) {
  const int64_t edges = in.edges();
  DoubleBuffer<uint64_t> keys{queue.scratch<uint64_t>(edges), queue.scratch<uint64_t>(edges)};
  DoubleBuffer<uint32_t> order{queue.scratch<uint32_t>(edges), queue.scratch<uint32_t>(edges)};
  queue.launch_over(edges, number_edges, edges, order.current);
  queue.copy(keys.current, sets.pairs, edges);
  sort_pairs(queue, keys, order, edges);
  queue.launch_over(edges, take_numbers, sets.weights, order.current, edges, keys.current);
  sort_pairs(queue, keys, order, edges);
  queue.launch_over(edges, write_edges<D, T>, sets, keys.current, order.current,
                    EdgeOutput<T>{in.ends, in.length, in.exact, in.measure, in.weight, in.places, in.certain}, edges);
}

template <int D, typename T>
void spanning_tree(Queue& queue, const SpanningTree<D, T>& in) {
  const int64_t n = in.n();
  if (n == 0) return;
  EdgeState<D, T> sets = make_state(queue, in);
  auto* before = queue.scratch<int32_t>(1);
  begin(queue, sets, in);
  // Each round at least halves the number of sets.
  for (int round = 0; round < bits_of(n); ++round) {
    std::swap(sets.least_weight, sets.next_least_weight);
    join_nearest_sets(queue, sets, in.tree.layout, n, before);
  }
  if (in.edges() > 0) sort_edges(queue, sets, in);
  if (in.joined) queue.launch_over(n, settle_joined, sets.certain, n);
}

}  // namespace

JZTREE_KERNEL(spanning_tree, SpanningTree);

}  // namespace jztree
