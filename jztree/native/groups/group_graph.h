// The graph of groups across ranks, and its solution by a distributed union-find.
//
// A vertex is a local group of one rank, named by its rank and the row of its first particle. An edge joins two
// vertices of different ranks that share a link. A rank stores the parents of its vertices, and the edges that it has
// found. One round:
// 1. Every edge with different ends proposes to hook the larger end below the smaller one. The owner takes the smallest
//    proposal, so links always lead to smaller vertices and never close a cycle.
// 2. The hooked vertices and the ends of edges move to their grandparents, until nothing moves. The number of steps is
//    logarithmic in the depth of the trees. Hooked vertices are few, and are kept in a list.
// Afterwards the ends of edges are roots. Every root with a smaller neighbour was hooked, so few rounds are needed.
//
// Y. Shiloach & U. Vishkin (1982), "An O(log n) parallel connectivity algorithm".
#pragma once

#include "common/arguments.h"

namespace jztree {

struct Vertex {
  int32_t rank, row;

  JZTREE_BOTH bool operator==(const Vertex& other) const { return rank == other.rank && row == other.row; }
  JZTREE_BOTH bool operator<(const Vertex& other) const {
    return rank != other.rank ? rank < other.rank : row < other.row;
  }
};

struct Edge {
  Vertex a, b;

  JZTREE_BOTH bool operator==(const Edge& other) const { return a == other.a && b == other.b; }
  JZTREE_BOTH bool operator<(const Edge& other) const { return a == other.a ? b < other.b : a < other.a; }
};

static_assert(sizeof(Vertex) == 8 && sizeof(Edge) == 16, "vertices and edges are rows of int32 arrays");

template <typename T>
const T* rows_as(const Array<const int32_t>& array) {
  return reinterpret_cast<const T*>(array.data);
}
template <typename T>
T* rows_as(const Array<int32_t>& array) {
  return reinterpret_cast<T*>(array.data);
}

// The edges between this rank's groups and the groups of ghosts, in order and without repeats. The number is correct
// even if not all edges fit.
struct GroupEdges {
  Array<const int32_t> label;     // (m,), the first row of each row's group, own rows before ghosts
  const int32_t* owner_label;     // (m,), the same on the row's owner
  Array<const int32_t> received;  // (ranks,), number of rows from each rank; for the rank itself, its own rows
  const int32_t* rank;
  Array<int32_t> edges;  // (room, 4)
  int32_t* number;

  explicit GroupEdges(Arguments& in)
      : label(in.argument<int32_t>("label", {any})),
        owner_label(in.argument<int32_t>("owner_label", {label.rows()})),
        received(in.argument<int32_t>("received", {any})),
        rank(in.number("rank")),
        edges(in.result<int32_t>("edges", {any, 4})),
        number(in.result<int32_t>("number", {})) {
    in.expect(received.rows() > 0, received, 1, "received", "of at least one rank");
  }
};

// A forest in which no vertex is hooked yet. Only the parents that may be requested later are set: those of the ends of
// this rank's edges, and those of groups with rows that are ghosts on other ranks, because these groups are the ends of
// the other ranks' edges. All other memory stays unchanged.
struct BeginForest {
  Array<const int32_t> label;  // (m,), the first row of each row's group, own rows before ghosts
  Array<const int32_t> order;  // (s,), the sent rows, rank after rank, including those to the rank itself
  Array<const int32_t> sent;   // (ranks,), number of rows sent to each rank
  const int32_t* rank;
  Array<const int32_t> edges;  // (e, 4); their first ends are on this rank
  Count num;                   // number of edges
  Array<int32_t> parent;       // (n, 2)
  int32_t *hooked, *number;    // (n,), and the number 0

  explicit BeginForest(Arguments& in)
      : label(in.argument<int32_t>("label", {any})),
        order(in.argument<int32_t>("order", {any})),
        sent(in.argument<int32_t>("sent", {any})),
        rank(in.number("rank")),
        edges(in.argument<int32_t>("edges", {any, 4})),
        num(in.count("num", edges.rows())),
        parent(in.result<int32_t>("parent", {any, 2})),
        hooked(in.result<int32_t>("hooked", {parent.rows()})),
        number(in.result<int32_t>("number", {})) {
    in.expect(label.rows() >= parent.rows(), label, 1, "label", "as long as there are parents");
    in.expect(sent.rows() > 0, sent, 1, "sent", "of at least one rank");
  }
};

// For every edge with different ends: the rank that owns the larger end, and the message that hooks it.
struct ProposeHooks {
  Array<const int32_t> edges;  // (e, 4)
  Count num;
  int32_t* dest;     // (e,); -1 if the ends are equal
  int32_t* message;  // (e, 3): row of the larger end, rank and row of the smaller one

  explicit ProposeHooks(Arguments& in)
      : edges(in.argument<int32_t>("edges", {any, 4})),
        num(in.count("num", edges.rows())),
        dest(in.result<int32_t>("dest", {edges.rows()})),
        message(in.result<int32_t>("message", {edges.rows(), 3})) {}
};

// Process the received proposals and list the vertices that are hooked for the first time. Rank r has sent counts[r]
// proposals.
struct TakeHooks {
  Array<const uint32_t> messages;  // (ranks, chunk, 3)
  const int32_t *counts, *rank;    // (ranks,); this rank
  Array<int32_t> parent;           // (n, 2), continued
  int32_t *hooked, *number;        // (n,), rows, and their number; continued

  explicit TakeHooks(Arguments& in)
      : messages(in.argument<uint32_t>("messages", {any, any, 3})),
        counts(in.argument<int32_t>("counts", {ranks()})),
        rank(in.number("rank")),
        parent(in.continued<int32_t>("parent", {any, 2})),
        hooked(in.continued<int32_t>("hooked", {parent.rows()})),
        number(in.continued<int32_t>("number", {})) {}

  int64_t ranks() const { return messages.dims[0]; }
  int64_t chunk() const { return messages.dims[1]; }
};

// The vertices whose parents are requested: both ends of every edge, then the parents of hooked vertices.
struct AskParents {
  Array<const int32_t> parent;  // (n, 2)
  const int32_t* hooked;        // (n,), rows
  Count num_hooked;
  Array<const int32_t> edges;  // (e, 4)
  Count num;                   // number of edges
  Array<int32_t> ranks;        // (room,)
  int32_t *rows, *number;

  explicit AskParents(Arguments& in)
      : parent(in.argument<int32_t>("parent", {any, 2})),
        hooked(in.argument<int32_t>("hooked", {parent.rows()})),
        num_hooked(in.count("num_hooked", parent.rows())),
        edges(in.argument<int32_t>("edges", {any, 4})),
        num(in.count("num", edges.rows())),
        ranks(in.result<int32_t>("ranks", {any})),
        rows(in.result<int32_t>("rows", {ranks.rows()})),
        number(in.result<int32_t>("number", {})) {}
};

// Replace ends of edges and parents of hooked vertices by the answers to ask_parents.
struct MoveUp {
  Array<const int32_t> answers;  // (room, 2)
  Array<const int32_t> hooked;   // (n,), rows
  Count num_hooked;
  const int32_t* number;  // number of edges
  Array<int32_t> parent;  // (n, 2), continued
  Array<int32_t> edges;   // (e, 4), continued
  int32_t* state;         // (2,): whether any vertex moved, and whether any edge has different ends

  explicit MoveUp(Arguments& in)
      : answers(in.argument<int32_t>("answers", {any, 2})),
        hooked(in.argument<int32_t>("hooked", {any})),
        num_hooked(in.count("num_hooked", hooked.rows())),
        number(in.number("num")),
        parent(in.continued<int32_t>("parent", {hooked.rows(), 2})),
        edges(in.continued<int32_t>("edges", {any, 4})),
        state(in.result<int32_t>("state", {2})) {}

  Count num() const { return {number, edges.rows()}; }
};

// The global group of each own row, after all vertices have moved up: the parent of the first row of its local group if
// that is hooked, otherwise that row itself.
struct OwnLabels {
  Array<const int32_t> label;   // (m,), the first row of each row's local group; own rows come first
  Array<const int32_t> parent;  // (n, 2)
  Array<const int32_t> hooked;  // (n,), rows
  Count num_hooked;
  Count num;  // each row from this one on is a separate group
  const int32_t* rank;
  Array<const int32_t> starts;  // (ranks,), the number of each rank's first row in the joined set, or empty
  Array<int32_t> ranks;         // (n,), or empty if rows are of the joined set
  int32_t* rows;                // (n,)

  explicit OwnLabels(Arguments& in)
      : label(in.argument<int32_t>("label", {any})),
        parent(in.argument<int32_t>("parent", {any, 2})),
        hooked(in.argument<int32_t>("hooked", {parent.rows()})),
        num_hooked(in.count("num_hooked", parent.rows())),
        num(in.count("num", parent.rows())),
        rank(in.number("rank")),
        starts(in.argument<int32_t>("starts", {any})),
        ranks(in.result<int32_t>("ranks", {starts.rows() > 0 ? 0 : parent.rows()})),
        rows(in.result<int32_t>("rows", {parent.rows()})) {
    in.expect(label.rows() >= parent.rows(), label, 1, "label", "as long as there are parents");
  }
};

}  // namespace jztree
