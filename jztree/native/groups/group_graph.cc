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
// Y. Shiloach & U. Vishkin (1982), "An O(log n) parallel connectivity algorithm".

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <vector>

#include "common/cpu/handler.h"
#include "common/cpu/parallel.h"

namespace jztree {
namespace {

struct Vertex {
  int32_t rank, row;

  bool operator==(const Vertex& other) const { return rank == other.rank && row == other.row; }
  bool operator<(const Vertex& other) const { return rank != other.rank ? rank < other.rank : row < other.row; }
};

struct Edge {
  Vertex a, b;

  bool operator==(const Edge& other) const { return a == other.a && b == other.b; }
  bool operator<(const Edge& other) const { return a == other.a ? b < other.b : a < other.a; }
};

static_assert(sizeof(Vertex) == 8 && sizeof(Edge) == 16, "vertices and edges are rows of int32 arrays");

using Ints = ffi::Buffer<ffi::S32>;

ffi::Error misfit(const char* what) {
  return invalid(std::string(what) + " was called with arrays that do not fit together.");
}

// The memory of a result that begins as what `old` holds.
template <typename T>
T* continued(const Ints& old, ffi::Result<Ints>& result) {
  if (old.typed_data() != result->typed_data()) std::memcpy(result->typed_data(), old.typed_data(), old.size_bytes());
  return reinterpret_cast<T*>(result->typed_data());
}

// The edges between this rank's groups and those of the ranks that its ghosts come from, each once. label: the first
// row of each row's group, own rows before ghosts. owner_label: the same as the row's owner has it. received: how many
// rows came from each rank; those of the rank itself are the own ones. The number is right even if not all fit.
ffi::Error group_edges(Ints label, Ints owner_label, Ints received, Ints rank, ffi::Result<Ints> edges,
                       ffi::Result<Ints> number) {
  return guarded([&] {
    int64_t ranks = static_cast<int64_t>(received.element_count()), rows = static_cast<int64_t>(label.element_count());
    int32_t me = rank.typed_data()[0];
    if (static_cast<int64_t>(owner_label.element_count()) != rows || me < 0 || me >= ranks)
      return misfit("group_edges");
    int64_t own = received.typed_data()[me], row = own;
    std::vector<Edge> found;
    for (int32_t r = me + 1; r < ranks; ++r) {
      int64_t end = row + received.typed_data()[r];
      if (end > rows) return misfit("group_edges");
      for (; row < end; ++row) {
        Edge edge{{me, label.typed_data()[row]}, {r, owner_label.typed_data()[row]}};
        // Neighbours in z-order are mostly of one group; this keeps the list short before it is sorted.
        if (edge.a.row < own && (found.empty() || !(found.back() == edge))) found.push_back(edge);
      }
    }
    std::sort(found.begin(), found.end());
    found.erase(std::unique(found.begin(), found.end()), found.end());
    int64_t room = static_cast<int64_t>(edges->element_count()) / 4;
    std::copy_n(found.begin(), std::min<int64_t>(room, static_cast<int64_t>(found.size())),
                reinterpret_cast<Edge*>(edges->typed_data()));
    number->typed_data()[0] = static_cast<int32_t>(found.size());
    return ffi::Error::Success();
  });
}

// For every edge whose ends differ: the rank that owns the larger end, and the message that hooks it.
ffi::Error propose_hooks(Ints edges, Ints num, ffi::Result<Ints> dest, ffi::Result<Ints> message) {
  return guarded([&] {
    int64_t room = static_cast<int64_t>(edges.element_count()) / 4;
    if (static_cast<int64_t>(dest->element_count()) != room ||
        static_cast<int64_t>(message->element_count()) != 3 * room)
      return misfit("propose_hooks");
    const Edge* edge = reinterpret_cast<const Edge*>(edges.typed_data());
    for (int64_t i = 0; i < read_count(num, room); ++i) {
      Vertex large = std::max(edge[i].a, edge[i].b), small = std::min(edge[i].a, edge[i].b);
      dest->typed_data()[i] = large == small ? -1 : large.rank;
      int32_t* out = message->typed_data() + 3 * i;
      out[0] = large.row;
      out[1] = small.rank;
      out[2] = small.row;
    }
    return ffi::Error::Success();
  });
}

// Takes the proposals that came, counts[r] of them from rank r.
ffi::Error hook(ffi::Buffer<ffi::U32> messages, Ints counts, Ints old_parent, ffi::Result<Ints> new_parent) {
  return guarded([&] {
    auto shape = messages.dimensions();
    if (shape.size() != 3 || shape[2] != 3 || static_cast<int64_t>(counts.element_count()) != shape[0])
      return misfit("hook");
    Vertex* parent = continued<Vertex>(old_parent, new_parent);
    int64_t rows = static_cast<int64_t>(new_parent->element_count()) / 2;
    for (int64_t r = 0; r < shape[0]; ++r)
      for (int64_t i = 0; i < std::min<int64_t>(shape[1], counts.typed_data()[r]); ++i) {
        const uint32_t* message = messages.typed_data() + (r * shape[1] + i) * 3;
        if (message[0] >= static_cast<uint64_t>(rows)) return misfit("hook");
        Vertex proposed{static_cast<int32_t>(message[1]), static_cast<int32_t>(message[2])};
        parent[message[0]] = std::min(parent[message[0]], proposed);
      }
    return ffi::Error::Success();
  });
}

// The own vertices that are hooked, in their order.
std::vector<int32_t> hooked_rows(const Parallel& parallel, const Vertex* parent, int64_t rows, int32_t me) {
  constexpr int64_t grain = 1 << 15;
  std::vector<std::vector<int32_t>> parts(static_cast<size_t>((rows + grain - 1) / grain));
  parallel.blocks(static_cast<int64_t>(parts.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part)
      for (int64_t row = part * grain; row < std::min(rows, (part + 1) * grain); ++row)
        if (!(parent[row] == Vertex{me, static_cast<int32_t>(row)}))
          parts[static_cast<size_t>(part)].push_back(static_cast<int32_t>(row));
  });
  std::vector<int32_t> hooked;
  for (const auto& part : parts) hooked.insert(hooked.end(), part.begin(), part.end());
  return hooked;
}

// The vertices whose parents are asked for: both ends of every edge, then the parents of hooked vertices.
ffi::Error ask_parents(ffi::ThreadPool pool, Ints parents, Ints edges, Ints num, Ints rank, ffi::Result<Ints> ranks,
                       ffi::Result<Ints> rows, ffi::Result<Ints> number) {
  return guarded([&] {
    int64_t own = static_cast<int64_t>(parents.element_count()) / 2, count = read_count(num, edges.dimensions()[0]);
    int64_t room = static_cast<int64_t>(ranks->element_count());
    const Vertex* parent = reinterpret_cast<const Vertex*>(parents.typed_data());
    const Vertex* end = reinterpret_cast<const Vertex*>(edges.typed_data());
    std::vector<int32_t> hooked = hooked_rows(Parallel(pool), parent, own, rank.typed_data()[0]);
    int64_t place = 0, asked = 2 * count + static_cast<int64_t>(hooked.size());
    if (static_cast<int64_t>(rows->element_count()) != room || asked > room) return misfit("ask_parents");
    auto ask = [&](const Vertex& vertex) {
      ranks->typed_data()[place] = vertex.rank;
      rows->typed_data()[place++] = vertex.row;
    };
    for (int64_t i = 0; i < 2 * count; ++i) ask(end[i]);
    for (int32_t row : hooked) ask(parent[row]);
    number->typed_data()[0] = static_cast<int32_t>(asked);
    return ffi::Error::Success();
  });
}

// Moves ends of edges and hooked vertices to the answers of ask_parents. state: whether any moved, and whether there is
// an edge whose ends differ.
ffi::Error move_up(ffi::ThreadPool pool, Ints answers, Ints num, Ints rank, Ints old_parents, Ints old_edges,
                   ffi::Result<Ints> parents, ffi::Result<Ints> edges, ffi::Result<Ints> state) {
  return guarded([&] {
    int64_t own = static_cast<int64_t>(parents->element_count()) / 2,
            count = read_count(num, old_edges.dimensions()[0]);
    Vertex* parent = continued<Vertex>(old_parents, parents);
    Edge* edge = continued<Edge>(old_edges, edges);
    const Vertex* answer = reinterpret_cast<const Vertex*>(answers.typed_data());
    std::vector<int32_t> hooked = hooked_rows(Parallel(pool), parent, own, rank.typed_data()[0]);
    if ((2 * count + static_cast<int64_t>(hooked.size())) * 2 > static_cast<int64_t>(answers.element_count()))
      return misfit("move_up");
    bool moved = false, unsolved = false;
    auto take = [&](Vertex& vertex) {
      moved |= !(vertex == *answer);
      vertex = *answer++;
    };
    for (int64_t i = 0; i < count; ++i) {
      take(edge[i].a);
      take(edge[i].b);
      unsolved |= !(edge[i].a == edge[i].b);
    }
    for (int32_t row : hooked) take(parent[row]);
    state->typed_data()[0] = moved;
    state->typed_data()[1] = unsolved;
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
