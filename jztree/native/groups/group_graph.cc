#include "group_graph.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <numeric>
#include <vector>

#include "common/cpu/context.h"

namespace jztree {
namespace {

constexpr int64_t label_grain = 1 << 14;

void group_edges(const Parallel&, const GroupEdges& in) {
  int64_t ranks = in.received.rows(), rows = in.label.rows();
  int32_t me = *in.rank;
  if (me < 0 || me >= ranks) throw Refusal("the rank is invalid; it must be from 0 to the number of ranks minus 1.");
  int64_t local_rows = in.received[me], row = local_rows;
  std::vector<Edge> found;
  for (int32_t r = me + 1; r < ranks; ++r) {
    int64_t end = row + in.received[r];
    if (end > rows) throw Refusal("received counts more rows than label has.");
    for (; row < end; ++row) {
      Edge edge{{me, in.label[row]}, {r, in.owner_label[row]}};
      // Neighbours in z-order are usually in one group, so most edges repeat the previous one. Repeats are dropped here
      // to keep the list short before it is sorted.
      if (edge.a.row < local_rows && (found.empty() || !(found.back() == edge))) found.push_back(edge);
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
    if (row < 0 || row >= n) throw Refusal("invalid vertex in label or edges; it must be a row of parent.");
    parent[row] = {me, static_cast<int32_t>(row)};
  };
  for (int32_t r = 0; r < in.sent.rows(); first += in.sent[r++]) {
    if (in.sent[r] < 0 || first + in.sent[r] > in.order.rows())
      throw Refusal("sent counts more rows than order lists.");
    if (r == me) continue;
    for (int64_t i = first; i < first + in.sent[r]; ++i) {
      if (in.order[i] < 0 || in.order[i] >= in.label.rows()) throw Refusal("invalid row index in order.");
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
        throw Refusal("invalid vertex in messages; it must be a row of parent.");
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
  if (asked > in.ranks.rows()) throw Refusal("ranks has too few rows for the requests of the vertices.");
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
  if (2 * count + hooked > in.answers.rows()) throw Refusal("answers has fewer rows than requests.");
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

// Marks the hooked own vertices, one bit each.
class HookedBits {
 public:
  explicit HookedBits(const OwnLabels& in) : words_(static_cast<size_t>(in.parent.rows() / 32 + 1)) {
    for (int64_t i = 0; i < in.num_hooked(); ++i) {
      const int64_t row = in.hooked[i];
      if (row < 0 || row >= in.parent.rows()) throw Refusal("invalid row index in hooked.");
      words_[static_cast<size_t>(row / 32)] |= uint32_t{1} << (row % 32);
    }
  }

  // 1 or 0.
  uint32_t of(int32_t row) const { return words_[static_cast<uint32_t>(row) / 32] >> (row % 32) & 1; }

 private:
  std::vector<uint32_t> words_;
};

// Writes labels of own rows, a few at a time: hooked groups are few, and their rows are near each other.
class LabelWriter {
 public:
  explicit LabelWriter(const OwnLabels& in) : in_(in), hooked_(in) {}

  // Returns false if a group begins outside the rows.
  bool write(int64_t begin, int64_t end) const {
    const int64_t num = std::clamp(in_.num(), begin, end);
    bool inside = true;
    for (int64_t row = begin; row < num; row += block_rows) inside &= write_block(row, std::min(block_rows, num - row));
    std::iota(in_.rows + num, in_.rows + end, static_cast<int32_t>(num) + start_);
    if (!joined()) std::fill(in_.ranks + num, in_.ranks + end, me_);
    return inside;
  }

 private:
  static constexpr int64_t block_rows = 256;

  bool joined() const { return in_.starts.rows() > 0; }

  bool write_block(int64_t begin, int64_t count) const {
    const int32_t* first = in_.label + begin;
    const uint32_t n = static_cast<uint32_t>(in_.parent.rows());
    uint32_t outside = 0, any_hooked = 0;
    for (int64_t i = 0; i < count; ++i) outside |= static_cast<uint32_t>(first[i]) >= n;
    if (outside) return false;
    for (int64_t i = 0; i < count; ++i) any_hooked |= hooked_.of(first[i]);
    std::transform(first, first + count, in_.rows + begin, [start = start_](int32_t row) { return start + row; });
    if (!joined()) std::fill_n(in_.ranks + begin, count, me_);
    for (int64_t i = 0; any_hooked && i < count; ++i)
      if (hooked_.of(first[i])) write_hooked(begin + i, rows_as<Vertex>(in_.parent)[first[i]]);
    return true;
  }

  void write_hooked(int64_t row, const Vertex& group) const {
    const bool has_start = group.rank >= 0 && group.rank < in_.starts.rows();
    in_.rows[row] = has_start ? in_.starts[group.rank] + group.row : group.row;
    if (!joined()) in_.ranks[row] = group.rank;
  }

  const OwnLabels& in_;
  const HookedBits hooked_;
  const int32_t me_ = *in_.rank;
  // The number of this rank's first row in the joined set.
  const int32_t start_ = me_ >= 0 && me_ < in_.starts.rows() ? in_.starts[me_] : 0;
};

void own_labels(const Parallel& parallel, const OwnLabels& in) {
  const LabelWriter writer(in);
  std::atomic<bool> inside{true};
  parallel.blocks(in.parent.rows(), label_grain, [&](int64_t begin, int64_t end) {
    if (!writer.write(begin, end)) inside.store(false, std::memory_order_relaxed);
  });
  if (!inside.load()) throw Refusal("invalid row index in label.");
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
