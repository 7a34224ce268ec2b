// The graph of groups across ranks, and its solution by a distributed union-find.
//
// A vertex is a local group of one rank, named by its rank and the row of its first particle. An edge joins two
// vertices of different ranks that share a link. Every rank keeps the parents of its own vertices, and the edges that
// it found. One round:
// 1. Every edge whose ends differ proposes to hook the larger end below the smaller one. The owner takes the smallest
//    proposal, so that links always lead to smaller vertices and never close a ring.
// 2. All hooked vertices and all ends of edges move to their parents' parents, until nothing moves. That takes a
//    number of steps that is logarithmic in the depth of the trees.
// Afterwards the ends of edges are roots. Every root that has a smaller neighbour was hooked, so the rounds are few.
//
// Every step is one thread an edge, a message or a vertex, bound by memory. Edges are made unique by a radix sort of
// all ghosts, once; hooked vertices, which are few, are listed by a compaction that reads each parent twice.
//
// Y. Shiloach & U. Vishkin (1982), "An O(log n) parallel connectivity algorithm".

#include <cstdint>

#include "common/cuda/arguments.cuh"
#include "common/cuda/compact.cuh"
#include "group_rows.cuh"
#include "common/cuda/primitives.cuh"
#include "common/cuda/queue.cuh"

namespace jztree {
namespace {

struct Vertex {
  int32_t rank, row;

  __device__ bool operator==(const Vertex& other) const { return rank == other.rank && row == other.row; }
  __device__ bool operator<(const Vertex& other) const {
    return rank != other.rank ? rank < other.rank : row < other.row;
  }
};

struct Edge {
  Vertex a, b;
};

static_assert(sizeof(Vertex) == 8 && sizeof(Edge) == 16, "vertices and edges are rows of int32 arrays");

using Ints = ffi::Buffer<ffi::S32>;

ffi::Error misfit(const char* what) {
  return invalid(std::string(what) + " was called with arrays that do not fit together.");
}

int64_t size(const Ints& values) { return static_cast<int64_t>(values.element_count()); }

template <typename T>
const T* items(const Ints& values) {
  return reinterpret_cast<const T*>(values.typed_data());
}

// The memory of a result that begins as what `old` holds.
template <typename T>
T* continued(Queue& queue, const Ints& old, ffi::Result<Ints>& result) {
  if (old.typed_data() != result->typed_data()) queue.copy(result->typed_data(), old.typed_data(), size(old));
  return reinterpret_cast<T*>(result->typed_data());
}

// The rows of a rank and its ghosts.
struct Ghosts {
  const int32_t *label, *owner_label, *received, *rank;
  const int64_t* before;  // how many rows came from the ranks before each one
  int64_t rows, ranks;

  __device__ int64_t own() const {
    int64_t me = rank[0], count = me >= 0 && me < ranks ? received[me] : 0;
    return count < 0 ? 0 : count < rows ? count : rows;
  }

  // The rank that a row behind the own ones comes from; the number of ranks if it holds nothing. Only ranks from the
  // next one on have sent any.
  __device__ int64_t owner(int64_t row) const {
    int64_t me = rank[0];
    if (me < 0 || me >= ranks - 1) return ranks;
    int64_t place = row - own() + before[me + 1], first = me + 1, last = ranks;
    while (first < last) {
      int64_t middle = (first + last) / 2;
      bool passed = before[middle] + received[middle] <= place;
      (passed ? first : last) = passed ? middle + 1 : middle;
    }
    return first;
  }
};

// Edges as sort keys: far ends, the rank above the row, and near ends. Rows that make no edge get a near end behind
// all.
__global__ void find_edges(Ghosts ghosts, uint64_t* far, uint32_t* near) {
  int64_t row = thread_index();
  if (row >= ghosts.rows) return;
  int64_t own = ghosts.own(), owner = row >= own ? ghosts.owner(row) : ghosts.ranks, label = ghosts.label[row];
  bool is_edge = owner < ghosts.ranks && label >= 0 && label < own;
  near[row] = static_cast<uint32_t>(is_edge ? label : ghosts.rows);
  far[row] = is_edge ? static_cast<uint64_t>(owner) << 31 | static_cast<uint32_t>(ghosts.owner_label[row]) : 0;
}

__global__ void mark_first(const uint64_t* far, const uint32_t* near, int64_t rows, int32_t* first) {
  int64_t i = thread_index();
  if (i > rows) return;
  first[i] = i < rows && near[i] < rows && (i == 0 || near[i] != near[i - 1] || far[i] != far[i - 1]);
}

__global__ void write_edges(const uint64_t* far, const uint32_t* near, const int32_t* place, const int32_t* rank,
                            int64_t rows, int64_t room, Edge* edges, int32_t* number) {
  int64_t i = thread_index();
  if (i == 0) *number = place[rows];
  if (i >= rows || place[i] == place[i + 1] || place[i] >= room) return;
  edges[place[i]] = Edge{{rank[0], static_cast<int32_t>(near[i])},
                         {static_cast<int32_t>(far[i] >> 31), static_cast<int32_t>(far[i] & 0x7fffffff)}};
}

// The edges between this rank's groups and those of the ranks that its ghosts come from, each once, in their order.
// label: the first row of each row's group, own rows before ghosts. owner_label: the same as the row's owner has it.
// received: how many rows came from each rank; those of the rank itself are the own ones. The number is right even if
// not all fit.
ffi::Error group_edges(cudaStream_t stream, DeviceMemory scratch, Ints label, Ints owner_label, Ints received,
                       Ints rank, ffi::Result<Ints> edges, ffi::Result<Ints> number) {
  return guarded([&] {
    int64_t rows = size(label), ranks = size(received), room = size(*edges) / 4;
    if (size(owner_label) != rows || ranks < 1) return misfit("group_edges");
    Queue queue(stream, scratch);
    int64_t* before = queue.scratch<int64_t>(ranks);
    exclusive_sum(queue, received.typed_data(), before, ranks);
    Ghosts ghosts{
        label.typed_data(), owner_label.typed_data(), received.typed_data(), rank.typed_data(), before, rows, ranks};
    cub::DoubleBuffer<uint64_t> far(queue.scratch<uint64_t>(rows), queue.scratch<uint64_t>(rows));
    cub::DoubleBuffer<uint32_t> near(queue.scratch<uint32_t>(rows + 1), queue.scratch<uint32_t>(rows + 1));
    queue.launch_over(rows, find_edges, ghosts, far.Current(), near.Current());
    if (rows > 0) {
      // By near ends, and stably so after far ends.
      sort_pairs(queue, far, near, rows, 0, 31 + bits_of(ranks - 1));
      sort_pairs(queue, near, far, rows, 0, bits_of(rows));
    }
    auto* place = reinterpret_cast<int32_t*>(near.Alternate());
    queue.launch_over(rows + 1, mark_first, far.Current(), near.Current(), rows, place);
    exclusive_sum(queue, place, place, rows + 1);
    queue.launch_over(rows + 1, write_edges, far.Current(), near.Current(), place, rank.typed_data(), rows, room,
                      reinterpret_cast<Edge*>(edges->typed_data()), number->typed_data());
    return ffi::Error::Success();
  });
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

// For every edge whose ends differ: the rank that owns the larger end, and the message that hooks it.
ffi::Error propose_hooks(cudaStream_t stream, DeviceMemory scratch, Ints edges, Ints num, ffi::Result<Ints> dest,
                         ffi::Result<Ints> message) {
  return guarded([&] {
    int64_t room = size(edges) / 4;
    if (size(*dest) != room || size(*message) != 3 * room) return misfit("propose_hooks");
    Queue(stream, scratch)
        .launch_over(room, propose, items<Edge>(edges), read_count(num, room), dest->typed_data(),
                     message->typed_data());
    return ffi::Error::Success();
  });
}

__device__ Vertex vertex_of(unsigned long long bits) {
  return {static_cast<int32_t>(bits & 0xffffffffu), static_cast<int32_t>(bits >> 32)};
}

// *at = min(*at, proposed). A vertex lies in memory as one word of 64 bits, which is swapped as a whole, so that others
// see the old vertex or the new one. Whoever loses a swap compares with what has won it, so that the smallest of all
// proposals remains whatever their order, and each failure is another thread's progress.
__device__ void take_smaller(unsigned long long* at, const Vertex& proposed) {
  unsigned long long wanted =
      static_cast<unsigned long long>(static_cast<uint32_t>(proposed.row)) << 32 | static_cast<uint32_t>(proposed.rank);
  unsigned long long known = *static_cast<const volatile unsigned long long*>(at);
  while (proposed < vertex_of(known)) {
    unsigned long long found = atomicCAS(at, known, wanted);
    if (found == known) return;
    known = found;
  }
}

__global__ void take_hooks(const uint32_t* messages, const int32_t* counts, int64_t ranks, int64_t chunk, int64_t rows,
                           unsigned long long* parent) {
  int64_t i = thread_index();
  if (i >= ranks * chunk || i % chunk >= counts[i / chunk]) return;
  const uint32_t* message = messages + 3 * i;
  if (message[0] < rows)
    take_smaller(parent + message[0], {static_cast<int32_t>(message[1]), static_cast<int32_t>(message[2])});
}

// Takes the proposals that came, counts[r] of them from rank r.
ffi::Error hook(cudaStream_t stream, DeviceMemory scratch, ffi::Buffer<ffi::U32> messages, Ints counts, Ints old_parent,
                ffi::Result<Ints> new_parent) {
  return guarded([&] {
    auto shape = messages.dimensions();
    if (shape.size() != 3 || shape[2] != 3 || size(counts) != shape[0] || size(old_parent) != size(*new_parent))
      return misfit("hook");
    Queue queue(stream, scratch);
    auto* parent = continued<unsigned long long>(queue, old_parent, new_parent);
    queue.launch_over(shape[0] * shape[1], take_hooks, messages.typed_data(), counts.typed_data(), shape[0], shape[1],
                      size(old_parent) / 2, parent);
    return ffi::Error::Success();
  });
}

// The own vertices that are hooked, in their order.
struct Hooked {
  const Vertex* parents;
  int64_t rows;
  const int32_t* me;
  int32_t* before;  // how many are in the tiles before each one, and in all

  // Which of this thread's rows of the block's tile are hooked, a bit an item.
  __device__ unsigned in_tile() const {
    unsigned hooked = 0;
    for (int item = 0; item < compact_items; ++item) {
      int64_t row = compact_row(blockIdx.x, item);
      if (row < rows && !(parents[row] == Vertex{me[0], static_cast<int32_t>(row)})) hooked |= 1u << item;
    }
    return hooked;
  }
};

// There is one more tile than needed, which holds nothing.
__global__ void count_hooked(Hooked hooked) {
  int places[compact_items];
  int total = compact_places(hooked.in_tile(), places);
  if (threadIdx.x == 0) hooked.before[blockIdx.x] = total;
}

Hooked find_hooked(Queue& queue, const Vertex* parents, int64_t rows, const Ints& rank) {
  int64_t tiles = compact_tiles(rows);
  Hooked hooked{parents, rows, rank.typed_data(), queue.scratch<int32_t>(tiles + 1)};
  queue.launch(tiles + 1, compact_threads, 0, count_hooked, hooked);
  exclusive_sum(queue, hooked.before, hooked.before, tiles + 1);
  return hooked;
}

// Those asked for hooked vertices come after the two ends of every edge.
__global__ void ask_hooked(Hooked hooked, Count num, int64_t room, int32_t* ranks, int32_t* rows) {
  int places[compact_items];
  unsigned mine = hooked.in_tile();
  compact_places(mine, places);
  for (int item = 0; item < compact_items; ++item) {
    int64_t place = 2 * num() + hooked.before[blockIdx.x] + places[item];
    if (!(mine >> item & 1) || place >= room) continue;
    Vertex parent = hooked.parents[compact_row(blockIdx.x, item)];
    ranks[place] = parent.rank;
    rows[place] = parent.row;
  }
}

__global__ void ask_ends(const Vertex* ends, Count num, const int32_t* hooked, int64_t room, int32_t* ranks,
                         int32_t* rows, int32_t* number) {
  int64_t i = thread_index();
  if (i == 0) *number = static_cast<int32_t>(2 * num() + *hooked);
  if (i >= 2 * num() || i >= room) return;
  ranks[i] = ends[i].rank;
  rows[i] = ends[i].row;
}

// The vertices whose parents are asked for: both ends of every edge, then the parents of hooked vertices.
ffi::Error ask_parents(cudaStream_t stream, DeviceMemory scratch, Ints parents, Ints edges, Ints num, Ints rank,
                       ffi::Result<Ints> ranks, ffi::Result<Ints> rows, ffi::Result<Ints> number) {
  return guarded([&] {
    int64_t own = size(parents) / 2, room = size(*ranks), most = size(edges) / 4, tiles = compact_tiles(own);
    if (size(*rows) != room) return misfit("ask_parents");
    Queue queue(stream, scratch);
    Count count = read_count(num, most);
    Hooked hooked = find_hooked(queue, items<Vertex>(parents), own, rank);
    queue.launch(tiles, compact_threads, 0, ask_hooked, hooked, count, room, ranks->typed_data(), rows->typed_data());
    queue.launch_over(std::max<int64_t>(1, 2 * most), ask_ends, items<Vertex>(edges), count, hooked.before + tiles,
                      room, ranks->typed_data(), rows->typed_data(), number->typed_data());
    return ffi::Error::Success();
  });
}

// Answers to `ask_parents`, in that order. state: whether any vertex moved, and whether there is an edge whose ends
// differ; threads only ever set these, all to the same.
struct Answers {
  const Vertex* list;
  int64_t room;
  int32_t* state;

  __device__ void take(Vertex* vertex, int64_t place) const {
    if (place >= room) return;
    Vertex answer = list[place];
    if (!(answer == *vertex)) state[0] = 1;
    *vertex = answer;
  }
};

__global__ void move_hooked(Hooked hooked, Answers answers, Count num, Vertex* parents) {
  int places[compact_items];
  unsigned mine = hooked.in_tile();
  compact_places(mine, places);
  for (int item = 0; item < compact_items; ++item)
    if (mine >> item & 1)
      answers.take(parents + compact_row(blockIdx.x, item), 2 * num() + hooked.before[blockIdx.x] + places[item]);
}

__global__ void move_ends(Answers answers, Count num, Edge* edges) {
  int64_t i = thread_index();
  if (i >= num()) return;
  Edge edge = edges[i];
  answers.take(&edge.a, 2 * i);
  answers.take(&edge.b, 2 * i + 1);
  edges[i] = edge;
  if (!(edge.a == edge.b)) answers.state[1] = 1;
}

// Moves ends of edges and hooked vertices to the answers of ask_parents. state: whether any moved, and whether there is
// an edge whose ends differ.
ffi::Error move_up(cudaStream_t stream, DeviceMemory scratch, Ints answers, Ints num, Ints rank, Ints old_parents,
                   Ints old_edges, ffi::Result<Ints> parents, ffi::Result<Ints> edges, ffi::Result<Ints> state) {
  return guarded([&] {
    int64_t own = size(*parents) / 2, most = size(*edges) / 4;
    if (size(old_parents) != size(*parents) || size(old_edges) != size(*edges) || size(*state) != 2)
      return misfit("move_up");
    Queue queue(stream, scratch);
    Vertex* parent = continued<Vertex>(queue, old_parents, parents);
    Edge* edge = continued<Edge>(queue, old_edges, edges);
    Count count = read_count(num, most);
    Answers given{items<Vertex>(answers), size(answers) / 2, state->typed_data()};
    queue.fill_bytes(state->typed_data(), 0, 2);
    Hooked hooked = find_hooked(queue, parent, own, rank);
    queue.launch(compact_tiles(own), compact_threads, 0, move_hooked, hooked, given, count, parent);
    queue.launch_over(most, move_ends, given, count, edge);
    return ffi::Error::Success();
  });
}

}  // namespace

JZTREE_HANDLER(jztree_group_edges, group_edges);
JZTREE_HANDLER(jztree_propose_hooks, propose_hooks);
JZTREE_HANDLER(jztree_hook, hook);
JZTREE_HANDLER(jztree_ask_parents, ask_parents);
JZTREE_HANDLER(jztree_move_up, move_up);

}  // namespace jztree
