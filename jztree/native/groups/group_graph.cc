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

void begin_forest(const Parallel&, const BeginForest& in) {
  Vertex* parent = rows_as<Vertex>(in.parent);
  int64_t n = in.parent.rows(), first = 0;
  const int32_t me = *in.rank;
  auto plant = [&](int64_t row) {
    if (row < 0 || row >= n) throw Refusal("a vertex was to be planted that there is not.");
    parent[row] = {me, static_cast<int32_t>(row)};
  };
  for (int32_t r = 0; r < in.sent.rows(); first += in.sent[r++]) {
    if (in.sent[r] < 0 || first + in.sent[r] > in.order.rows()) throw Refusal("more rows were sent than are listed.");
    if (r == me) continue;
    for (int64_t i = first; i < first + in.sent[r]; ++i) {
      if (in.order[i] < 0 || in.order[i] >= in.label.rows()) throw Refusal("a row was sent that there is not.");
      plant(in.label[in.order[i]]);
    }
  }
  const Edge* edge = rows_as<Edge>(in.edges);
  for (int64_t i = 0; i < in.num(); ++i) plant(edge[i].a.row);
  *in.number = 0;
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

// Which of the own vertices are hooked, a bit each.
std::vector<uint64_t> hooked_bits(const OwnLabels& in) {
  std::vector<uint64_t> bits(static_cast<size_t>(in.parent.rows() / 64 + 1));
  for (int64_t i = 0; i < in.num_hooked(); ++i) {
    const int64_t row = in.hooked[i];
    if (row < 0 || row >= in.parent.rows()) throw Refusal("a vertex is said to be hooked that there is not.");
    bits[static_cast<size_t>(row / 64)] |= uint64_t{1} << (row % 64);
  }
  return bits;
}

// Calls write(row, group) for all own rows. Returns false if a group begins where there is no row.
template <typename Write>
bool each_group(const Parallel& parallel, const OwnLabels& in, const Write& write) {
  const Vertex* parent = rows_as<Vertex>(in.parent);
  const std::vector<uint64_t> bits = hooked_bits(in);
  const int64_t num = in.num(), n = in.parent.rows();
  const int32_t me = *in.rank;
  std::atomic<bool> inside{true};
  parallel.blocks(n, label_grain, [&](int64_t begin, int64_t end) {
    bool good = true;
    for (int64_t i = begin; i < end; ++i) {
      int64_t first = i < num ? in.label[i] : i;
      good &= first >= 0 && first < n;
      first = first >= 0 && first < n ? first : 0;
      const bool is_hooked = bits[static_cast<size_t>(first / 64)] >> (first % 64) & 1;
      write(i, is_hooked ? parent[first] : Vertex{me, static_cast<int32_t>(first)});
    }
    if (!good) inside.store(false, std::memory_order_relaxed);
  });
  return inside.load();
}

void own_labels(const Parallel& parallel, const OwnLabels& in) {
  const int64_t ranks = in.starts.rows();
  const auto joined = [&](int64_t row, const Vertex& group) {
    in.rows[row] = group.rank >= 0 && group.rank < ranks ? in.starts[group.rank] + group.row : group.row;
  };
  const auto apart = [&](int64_t row, const Vertex& group) {
    in.ranks[row] = group.rank;
    in.rows[row] = group.row;
  };
  const bool inside = ranks > 0 ? each_group(parallel, in, joined) : each_group(parallel, in, apart);
  if (!inside) throw Refusal("a row was to be in the group of a row that there is not.");
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
