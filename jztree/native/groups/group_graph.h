// The graph of groups across ranks, and its solution by a distributed union-find.
//
// A vertex is a local group of one rank, named by its rank and the row of its first particle. An edge joins two
// vertices of different ranks that share a link. Every rank keeps the parents of its own vertices, and the edges that
// it found. One round:
// 1. Every edge whose ends differ proposes to hook the larger end below the smaller one. The owner takes the smallest
//    proposal, so that links always lead to smaller vertices and never close a ring.
// 2. All hooked vertices and all ends of edges move to their parents' parents, until nothing moves. That takes a
//    number of steps that is logarithmic in the depth of the trees. Hooked vertices are few, and in a list.
// Afterwards the ends of edges are roots. Every root that has a smaller neighbour was hooked, so the rounds are few.
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

// The edges between this rank's groups and those of the ranks that its ghosts come from, each once, in their order. The
// number is right even if not all fit.
struct GroupEdges {
  Array<const int32_t> label;     // (m,), the first row of each row's group, own rows before ghosts
  const int32_t* owner_label;     // (m,), the same as the row's owner has it
  Array<const int32_t> received;  // (ranks,), how many rows came from each rank; those of the rank itself are the own
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

// A forest in which no vertex is hooked yet. Of parents, there are only those that are ever asked for: of the own ends
// of edges, and of the groups of rows that other ranks have as ghosts, which are their ends. All other memory stays as
// it is.
struct BeginForest {
  Array<const int32_t> label;  // (m,), the first row of each row's group, own rows before ghosts
  Array<const int32_t> order;  // (s,), the rows that were sent, rank after rank, the rank's own among them
  Array<const int32_t> sent;   // (ranks,), how many rows went to each rank
  const int32_t* rank;
  Array<const int32_t> edges;  // (e, 4), whose first ends are of this rank
  Count num;                   // of edges
  Array<int32_t> parent;       // (n, 2)
  int32_t *hooked, *number;    // (n,), and none

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

// For every edge whose ends differ: the rank that owns the larger end, and the message that hooks it.
struct ProposeHooks {
  Array<const int32_t> edges;  // (e, 4)
  Count num;
  int32_t* dest;     // (e,); -1 where ends agree
  int32_t* message;  // (e, 3): row of the larger end, rank and row of the smaller one

  explicit ProposeHooks(Arguments& in)
      : edges(in.argument<int32_t>("edges", {any, 4})),
        num(in.count("num", edges.rows())),
        dest(in.result<int32_t>("dest", {edges.rows()})),
        message(in.result<int32_t>("message", {edges.rows(), 3})) {}
};

// Takes the proposals that came, counts[r] of them from rank r, and lists the vertices that had no parent before.
struct TakeHooks {
  Array<const uint32_t> messages;  // (ranks, chunk, 3)
  const int32_t *counts, *rank;    // (ranks,); of this rank
  Array<int32_t> parent;           // (n, 2), continued
  int32_t *hooked, *number;        // (n,), rows, and how many they are; continued

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

// The vertices whose parents are asked for: both ends of every edge, then the parents of hooked vertices.
struct AskParents {
  Array<const int32_t> parent;  // (n, 2)
  const int32_t* hooked;        // (n,), rows
  Count num_hooked;
  Array<const int32_t> edges;  // (e, 4)
  Count num;                   // of edges
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

// Moves ends of edges and hooked vertices to the answers of ask_parents.
struct MoveUp {
  Array<const int32_t> answers;  // (room, 2)
  Array<const int32_t> hooked;   // (n,), rows
  Count num_hooked;
  const int32_t* number;  // of edges
  Array<int32_t> parent;  // (n, 2), continued
  Array<int32_t> edges;   // (e, 4), continued
  int32_t* state;         // (2,): whether any moved, and whether there is an edge whose ends differ

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

// The group over all ranks of each own row, when all have moved up: the parent of the first row of its local group
// where that is hooked, or else that row itself.
struct OwnLabels {
  Array<const int32_t> label;   // (m,), the first row of each row's local group, own rows before all others
  Array<const int32_t> parent;  // (n, 2)
  Array<const int32_t> hooked;  // (n,), rows
  Count num_hooked;
  Count num;  // rows from it on are groups of their own
  const int32_t* rank;
  Array<const int32_t> starts;  // (ranks,), the number of each rank's first row in the joined set, or none
  Array<int32_t> ranks;         // (n,), or none if rows are of the joined set
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
