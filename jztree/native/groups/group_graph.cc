#include "group_graph.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

#include "common/cpu/context.h"

namespace jztree {
namespace {

constexpr int64_t label_grain = 1 << 14;

void group_edges(const Parallel&, const GroupEdges& in) {
  int64_t ranks = in.received.rows(), rows = in.label.rows();
  int32_t me = *in.rank;
  if (me < 0 || me >= ranks) throw Refusal("edges of groups were to be found by no rank.");
  int64_t own = in.received[me], row = own;
  std::vector<Edge> found;
  for (int32_t r = me + 1; r < ranks; ++r) {
    int64_t end = row + in.received[r];
    if (end > rows) throw Refusal("more rows were received than there are labels.");
    for (; row < end; ++row) {
      Edge edge{{me, in.label[row]}, {r, in.owner_label[row]}};
      // Neighbours in z-order are mostly of one group; this keeps the list short before it is sorted.
      if (edge.a.row < own && (found.empty() || !(found.back() == edge))) found.push_back(edge);
    }
  }
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  int64_t count = static_cast<int64_t>(found.size());
  std::copy_n(found.begin(), std::min(in.edges.rows(), count), rows_as<Edge>(in.edges));
  *in.number = static_cast<int32_t>(count);
}

void propose_hooks(const Parallel&, const ProposeHooks& in) {
  const Edge* edge = rows_as<Edge>(in.edges);
  for (int64_t i = 0; i < in.num(); ++i) {
    Vertex large = std::max(edge[i].a, edge[i].b), small = std::min(edge[i].a, edge[i].b);
    in.dest[i] = large == small ? -1 : large.rank;
    int32_t* out = in.message + 3 * i;
    out[0] = large.row;
    out[1] = small.rank;
    out[2] = small.row;
  }
}

void take_hooks(const Parallel&, const TakeHooks& in) {
  Vertex* parent = rows_as<Vertex>(in.parent);
  for (int64_t r = 0; r < in.ranks(); ++r)
    for (int64_t i = 0; i < std::min<int64_t>(in.chunk(), in.counts[r]); ++i) {
      const uint32_t* message = in.messages + (r * in.chunk() + i) * 3;
      if (message[0] >= static_cast<uint64_t>(in.parent.rows()))
        throw Refusal("a vertex was to be hooked that there is not.");
      Vertex proposed{static_cast<int32_t>(message[1]), static_cast<int32_t>(message[2])};
      Vertex& known = parent[message[0]];
      if (!(proposed < known)) continue;
      if (known == Vertex{*in.rank, static_cast<int32_t>(message[0])})
        in.hooked[(*in.number)++] = static_cast<int32_t>(message[0]);
      known = proposed;
    }
}

void ask_parents(const Parallel&, const AskParents& in) {
  int64_t count = in.num(), hooked = in.num_hooked(), place = 0, asked = 2 * count + hooked;
  const Vertex *parent = rows_as<Vertex>(in.parent), *end = rows_as<Vertex>(in.edges);
  if (asked > in.ranks.rows()) throw Refusal("there is no room to ask for the parents of all vertices.");
  auto ask = [&](const Vertex& vertex) {
    in.ranks[place] = vertex.rank;
    in.rows[place++] = vertex.row;
  };
  for (int64_t i = 0; i < 2 * count; ++i) ask(end[i]);
  for (int64_t i = 0; i < hooked; ++i) ask(parent[in.hooked[i]]);
  *in.number = static_cast<int32_t>(asked);
}

void move_up(const Parallel&, const MoveUp& in) {
  int64_t count = in.num()(), hooked = in.num_hooked();
  Vertex* parent = rows_as<Vertex>(in.parent);
  Edge* edge = rows_as<Edge>(in.edges);
  const Vertex* answer = rows_as<Vertex>(in.answers);
  if (2 * count + hooked > in.answers.rows()) throw Refusal("there are fewer answers than vertices that have asked.");
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
  for (int64_t i = 0; i < hooked; ++i) take(parent[in.hooked[i]]);
  in.state[0] = moved;
  in.state[1] = unsolved;
}

void own_labels(const Parallel& parallel, const OwnLabels& in) {
  const Vertex* parent = rows_as<Vertex>(in.parent);
  const int64_t num = in.num(), n = in.parent.rows();
  std::atomic<bool> inside{true};
  parallel.blocks(n, label_grain, [&](int64_t begin, int64_t end) {
    bool good = true;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = i < num ? in.label[i] : i;
      good &= first >= 0 && first < n;
      const Vertex group = parent[first >= 0 && first < n ? first : 0];
      in.ranks[i] = group.rank;
      in.rows[i] = group.row;
    }
    if (!good) inside.store(false, std::memory_order_relaxed);
  });
  if (!inside.load()) throw Refusal("a row was to be in the group of a row that there is not.");
}

}  // namespace

JZTREE_PLAIN_KERNEL(group_edges, GroupEdges);
JZTREE_PLAIN_KERNEL(propose_hooks, ProposeHooks);
JZTREE_PLAIN_KERNEL(take_hooks, TakeHooks);
JZTREE_PLAIN_KERNEL(ask_parents, AskParents);
JZTREE_PLAIN_KERNEL(move_up, MoveUp);
JZTREE_PLAIN_KERNEL(own_labels, OwnLabels);

}  // namespace jztree
