// Every step uses one thread per edge, message or vertex, and is bound by memory. A single radix sort of the ghosts
// removes repeated edges.

#include <algorithm>
#include <cstdint>

#include "common/cuda/context.cuh"
#include "common/cuda/loads.cuh"
#include "common/cuda/primitives.cuh"
#include "common/partition.h"
#include "group_graph.h"

namespace jztree {
namespace {

// The rows of a rank and its ghosts.
struct Ghosts {
  const int32_t *label, *owner_label, *received, *rank;
  const int32_t* before;  // for each rank, number of rows from the ranks before it
  int64_t rows, ranks;

  __device__ int64_t own() const {
    int64_t me = rank[0], count = me >= 0 && me < ranks ? received[me] : 0;
    return count < 0 ? 0 : count < rows ? count : rows;
  }

  // The rank that sent a ghost row. It is the number of ranks if the row holds no particle. Only higher ranks have sent
  // rows.
  __device__ int64_t owner(int64_t row) const {
    int64_t me = rank[0];
    if (me < 0 || me >= ranks - 1) return ranks;
    const int64_t place = row - own() + before[me + 1];
    return partition_point(me + 1, ranks,
                           [&](int64_t sender) { return int64_t{before[sender]} + received[sender] <= place; });
  }
};

// Edges as sort keys: far ends, the rank above the row, and near ends. For rows without an edge, the near end sorts
// last.
__global__ void find_edges(Ghosts ghosts, uint64_t* far, uint32_t* local_ends) {
  int64_t row = thread_index();
  if (row >= ghosts.rows) return;
  int64_t local_rows = ghosts.own(), owner = row >= local_rows ? ghosts.owner(row) : ghosts.ranks,
          label = ghosts.label[row];
  bool is_edge = owner < ghosts.ranks && label >= 0 && label < local_rows;
  local_ends[row] = static_cast<uint32_t>(is_edge ? label : ghosts.rows);
  far[row] = is_edge ? static_cast<uint64_t>(owner) << 31 | static_cast<uint32_t>(ghosts.owner_label[row]) : 0;
}

__global__ void mark_first(const uint64_t* far, const uint32_t* local_ends, int64_t rows, int32_t* first) {
  int64_t i = thread_index();
  if (i > rows) return;
  first[i] = i < rows && local_ends[i] < rows && (i == 0 || local_ends[i] != local_ends[i - 1] || far[i] != far[i - 1]);
}

__global__ void write_edges(const uint64_t* far, const uint32_t* local_ends, const int32_t* place, const int32_t* rank,
                            int64_t rows, int64_t room, Edge* edges, int32_t* number) {
  int64_t i = thread_index();
  if (i == 0) *number = place[rows];
  if (i >= rows || place[i] == place[i + 1] || place[i] >= room) return;
  edges[place[i]] = Edge{{rank[0], static_cast<int32_t>(local_ends[i])},
                         {static_cast<int32_t>(far[i] >> 31), static_cast<int32_t>(far[i] & 0x7fffffff)}};
}

void group_edges(Queue& queue, const GroupEdges& in) {
  int64_t rows = in.label.rows(), ranks = in.received.rows();
  int32_t* before = queue.scratch<int32_t>(ranks);
  exclusive_sum(queue, in.received.data, before, ranks);
  Ghosts ghosts{in.label, in.owner_label, in.received, in.rank, before, rows, ranks};
  DoubleBuffer<uint64_t> far{queue.scratch<uint64_t>(rows), queue.scratch<uint64_t>(rows)};
  DoubleBuffer<uint32_t> local_ends{queue.scratch<uint32_t>(rows + 1), queue.scratch<uint32_t>(rows + 1)};
  queue.launch_over(rows, find_edges, ghosts, far.current, local_ends.current);
  if (rows > 0) {
    // Stable sort, by near ends after far ends.
    sort_pairs(queue, far, local_ends, rows, 0, 31 + bits_of(ranks - 1));
    sort_pairs(queue, local_ends, far, rows, 0, bits_of(rows));
  }
  auto* place = reinterpret_cast<int32_t*>(local_ends.other);
  queue.launch_over(rows + 1, mark_first, far.current, local_ends.current, rows, place);
  exclusive_sum(queue, place, place, rows + 1);
  queue.launch_over(rows + 1, write_edges, far.current, local_ends.current, place, in.rank, rows, in.edges.rows(),
                    rows_as<Edge>(in.edges), in.number);
}

// The 64-bit word that stores a vertex.
__device__ unsigned long long bits_of_vertex(const Vertex& vertex) {
  return static_cast<unsigned long long>(static_cast<uint32_t>(vertex.row)) << 32 | static_cast<uint32_t>(vertex.rank);
}

__device__ Vertex vertex_of(unsigned long long bits) {
  return {static_cast<int32_t>(bits & 0xffffffffu), static_cast<int32_t>(bits >> 32)};
}

// Writes the vertices of a forest that other ranks or own edges may request. Several threads may write the same vertex;
// they all write the same word.
struct Planting {
  const int32_t *label, *order, *sent, *rank;
  const int32_t* before;  // for each rank, number of rows sent to the ranks before it
  int64_t ranks, entries, labels, n;
  uint64_t* parent;

  __device__ void plant(int64_t row) const {
    if (row >= 0 && row < n) store_relaxed(parent + row, bits_of_vertex({rank[0], static_cast<int32_t>(row)}));
  }

  // For an entry of `order` that was sent to another rank.
  __device__ void plant_entry(int64_t i) const {
    int64_t me = rank[0], last = ranks - 1;
    if (i >= entries || i >= int64_t{before[last]} + sent[last]) return;
    if (me >= 0 && me < ranks && i >= before[me] && i < int64_t{before[me]} + sent[me]) return;
    int64_t row = order[i];
    if (row >= 0 && row < labels) plant(label[row]);
  }
};

__global__ void plant_vertices(Planting planting, const Edge* edges, Count num, int32_t* number) {
  int64_t i = thread_index();
  if (i == 0) *number = 0;
  planting.plant_entry(i);
  if (i < num()) planting.plant(edges[i].a.row);
}

void begin_forest(Queue& queue, const BeginForest& in) {
  int64_t ranks = in.sent.rows(), entries = in.order.rows();
  int32_t* before = queue.scratch<int32_t>(ranks);
  exclusive_sum(queue, in.sent.data, before, ranks);
  Planting planting{in.label, in.order, in.sent,         in.rank,          before,
                    ranks,    entries,  in.label.rows(), in.parent.rows(), rows_as<uint64_t>(in.parent)};
  queue.launch_over(std::max<int64_t>({1, entries, in.edges.rows()}), plant_vertices, planting, rows_as<Edge>(in.edges),
                    in.num, in.number);
}

__global__ void propose(const Edge* edges, Count num, int32_t* dest, int32_t* message) {
  int64_t i = thread_index();
  if (i >= num()) return;
  Edge edge = edges[i];
  Vertex large = edge.a < edge.b ? edge.b : edge.a, small = edge.a < edge.b ? edge.a : edge.b;
  dest[i] = large == small ? -1 : large.rank;
  message[3 * i] = large.row;
  message[3 * i + 1] = small.rank;
  message[3 * i + 2] = small.row;
}

void propose_hooks(Queue& queue, const ProposeHooks& in) {
  queue.launch_over(in.edges.rows(), propose, rows_as<Edge>(in.edges), in.num, in.dest, in.message);
}

// *at = min(*at, proposed). Returns whether the old value was `first`. The swap replaces the whole word, so other
// threads see the old or the new vertex. A thread that loses a swap compares its proposal with the winner. So the
// smallest proposal remains for any order, and a swap fails only if another thread has made progress.
__device__ bool take_smaller(unsigned long long* at, const Vertex& proposed, const Vertex& first) {
  unsigned long long wanted = bits_of_vertex(proposed);
  unsigned long long known = *static_cast<const volatile unsigned long long*>(at);
  while (proposed < vertex_of(known)) {
    unsigned long long found = atomicCAS(at, known, wanted);
    if (found == known) return vertex_of(known) == first;
    known = found;
  }
  return false;
}

// Only the thread that hooks a vertex first lists it; the order of the list does not matter.
__global__ void hook_vertices(const uint32_t* messages, const int32_t* counts, int64_t ranks, int64_t chunk,
                              const int32_t* me, int64_t rows, unsigned long long* parent, int32_t* hooked,
                              int32_t* number) {
  int64_t i = thread_index();
  if (i >= ranks * chunk || i % chunk >= counts[i / chunk]) return;
  const uint32_t* message = messages + 3 * i;
  if (message[0] >= rows) return;
  Vertex proposed{static_cast<int32_t>(message[1]), static_cast<int32_t>(message[2])};
  auto row = static_cast<int32_t>(message[0]);
  if (take_smaller(parent + row, proposed, {me[0], row})) hooked[atomicAdd(number, 1)] = row;
}

void take_hooks(Queue& queue, const TakeHooks& in) {
  queue.launch_over(in.ranks() * in.chunk(), hook_vertices, in.messages, in.counts, in.ranks(), in.chunk(), in.rank,
                    in.parent.rows(), rows_as<unsigned long long>(in.parent), in.hooked, in.number);
}

// Iterates over the requested vertices: both ends of every edge, then the parents of hooked vertices.
struct Asked {
  const Vertex *ends, *parents;
  const int32_t* hooked;
  Count edges, num_hooked;
  int64_t room;

  __device__ int64_t number() const { return 2 * edges() + num_hooked(); }
};

__global__ void ask(Asked asked, int32_t* ranks, int32_t* rows, int32_t* number) {
  int64_t i = thread_index(), ends = 2 * asked.edges();
  if (i == 0) *number = static_cast<int32_t>(asked.number());
  if (i >= asked.number() || i >= asked.room) return;
  Vertex vertex = i < ends ? asked.ends[i] : asked.parents[asked.hooked[i - ends]];
  ranks[i] = vertex.rank;
  rows[i] = vertex.row;
}

void ask_parents(Queue& queue, const AskParents& in) {
  Asked asked{rows_as<Vertex>(in.edges), rows_as<Vertex>(in.parent), in.hooked, in.num, in.num_hooked, in.ranks.rows()};
  queue.launch_over(std::max<int64_t>(1, asked.room), ask, asked, in.ranks, in.rows, in.number);
}

// Answers to `ask_parents`, in that order. state: whether any vertex moved, and whether any edge has different ends;
// threads only ever set these, all to the same value.
struct Answers {
  const Vertex* list;
  int64_t room;
  int32_t* state;

  __device__ void take(Vertex* vertex, int64_t place) const {
    if (place >= room) return;
    Vertex answer = list[place];
    if (!(answer == *vertex)) store_relaxed(state, 1);
    *vertex = answer;
  }
};

__global__ void move_hooked(Answers answers, const int32_t* hooked, Count num_hooked, Count edges, Vertex* parents) {
  int64_t i = thread_index();
  if (i < num_hooked()) answers.take(parents + hooked[i], 2 * edges() + i);
}

__global__ void move_ends(Answers answers, Count num, Edge* edges) {
  int64_t i = thread_index();
  if (i >= num()) return;
  Edge edge = edges[i];
  answers.take(&edge.a, 2 * i);
  answers.take(&edge.b, 2 * i + 1);
  edges[i] = edge;
  if (!(edge.a == edge.b)) store_relaxed(answers.state + 1, 1);
}

void move_up(Queue& queue, const MoveUp& in) {
  Answers given{rows_as<Vertex>(in.answers), in.answers.rows(), in.state};
  queue.fill_bytes(in.state, 0, 2);
  queue.launch_over(in.hooked.rows(), move_hooked, given, in.hooked, in.num_hooked, in.num(),
                    rows_as<Vertex>(in.parent));
  queue.launch_over(in.edges.rows(), move_ends, given, in.num(), rows_as<Edge>(in.edges));
}

// bits: one bit per own vertex, set if it is hooked.
__global__ void mark_hooked(const int32_t* hooked, Count num_hooked, int64_t n, uint32_t* bits) {
  int64_t i = thread_index();
  if (i >= num_hooked()) return;
  int64_t row = hooked[i];
  if (row >= 0 && row < n) atomicOr(bits + row / 32, 1u << (row % 32));
}

// Inputs of own labels.
struct OwnGroups {
  const int32_t *label, *rank, *starts;
  const Vertex* parent;
  const uint32_t* bits;
  Count num;
  int64_t n, ranks;

  __device__ Vertex group(int64_t i) const {
    int64_t first = i < num() ? label[i] : i;
    // The CPU kernel rejects other values.
    first = first >= 0 && first < n ? first : i;
    bool is_hooked = bits[first / 32] >> (first % 32) & 1;
    return is_hooked ? parent[first] : Vertex{rank[0], static_cast<int32_t>(first)};
  }
};

__global__ void find_labels(OwnGroups groups, int32_t* ranks, int32_t* rows) {
  int64_t i = thread_index();
  if (i >= groups.n) return;
  Vertex group = groups.group(i);
  if (groups.ranks == 0) ranks[i] = group.rank;
  bool joined = group.rank >= 0 && group.rank < groups.ranks;
  rows[i] = joined ? groups.starts[group.rank] + group.row : group.row;
}

void own_labels(Queue& queue, const OwnLabels& in) {
  int64_t n = in.parent.rows(), words = n / 32 + 1;
  uint32_t* bits = queue.scratch<uint32_t>(words);
  queue.fill_bytes(bits, 0, words);
  queue.launch_over(n, mark_hooked, in.hooked.data, in.num_hooked, n, bits);
  OwnGroups groups{in.label, in.rank, in.starts, rows_as<Vertex>(in.parent), bits, in.num, n, in.starts.rows()};
  queue.launch_over(n, find_labels, groups, in.ranks.data, in.rows);
}

}  // namespace

JZTREE_PLAIN_KERNEL(group_edges, GroupEdges);
JZTREE_PLAIN_KERNEL(begin_forest, BeginForest);
JZTREE_PLAIN_KERNEL(propose_hooks, ProposeHooks);
JZTREE_PLAIN_KERNEL(take_hooks, TakeHooks);
JZTREE_PLAIN_KERNEL(ask_parents, AskParents);
JZTREE_PLAIN_KERNEL(move_up, MoveUp);
JZTREE_PLAIN_KERNEL(own_labels, OwnLabels);

}  // namespace jztree
