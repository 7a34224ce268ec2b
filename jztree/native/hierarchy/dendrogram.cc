// A thread takes edges in order, and union-find gives the cluster of each end.
//
// Many threads first cut the edges into blocks whose ends are clusters of earlier blocks, as on a GPU (dendrogram.cu).
// Each step of this takes about as long as to join all edges, so it pays off from several threads on.

#include "dendrogram.h"

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "common/cpu/context.h"
#include "fof/union_find.h"

namespace jztree {
namespace {

// Prefetch distances, in edges: of the ends, and of their parents.
constexpr int64_t ahead = 24, sooner = 12;
constexpr int64_t grain = 1 << 13, least_edges = 1 << 14;
constexpr int least_threads = 8;

class Clusters {
 public:
  Clusters(const Parallel& parallel, const TreeClusters& in)
      : parallel_(parallel),
        in_(in),
        edges_(in.num()),
        block_(block_of(edges_, parallel.threads())),
        ids_(in.rows + (in_blocks() ? edges_ : 0)),
        sets_(ids_),
        last_(ids_) {}

  void run() {
    copy_ends();
    int64_t half = block_;
    while (2 * half < edges_) half *= 2;
    for (; in_blocks() && half >= block_; half /= 2) move_ends(half);
    begin_sets();
    parallel_.blocks((edges_ + block_ - 1) / block_, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) join(i * block_, std::min(edges_, (i + 1) * block_));
    });
    count_rows();
    std::fill(in_.children + 2 * edges_, in_.children + 2 * in_.ends.rows(), -1);
    std::fill(in_.count + edges_, in_.count + in_.ends.rows(), 0);
  }

 private:
  // A power of two.
  static int64_t block_of(int64_t edges, int threads) {
    const int blocks = edges < least_edges || threads < least_threads ? 1 : threads;
    int64_t block = 1;
    while (block * blocks < edges) block *= 2;
    return block;
  }

  bool in_blocks() const { return block_ < edges_; }

  template <typename Work>
  void each(int64_t items, const Work& work) {
    parallel_.blocks(items, grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) work(i);
    });
  }

  void copy_ends() {
    each(edges_, [&](int64_t edge) {
      if (!has_rows(in_.ends, edge, in_.rows)) throw Refusal("invalid row index in the ends of edges.");
      for (int i = 0; i < 2; ++i) in_.children[2 * edge + i] = in_.ends[2 * edge + i];
    });
  }

  void begin_sets() {
    each(ids_, [&](int64_t id) {
      sets_.set(id, id);
      last_[id].store(-1, std::memory_order_relaxed);
    });
  }

  // The cluster that a set forms: that of its last edge, or its only member.
  int32_t cluster_of(int32_t root) {
    const int32_t last = last_[root].load(std::memory_order_relaxed);
    return last < 0 ? root : static_cast<int32_t>(in_.rows) + last;
  }

  // Cut each block of 2 * half edges into two: ends in a cluster of the first half become the number of the cluster.
  void move_ends(int64_t half) {
    const auto in_first = [half](int64_t edge) { return edge / half % 2 == 0; };
    begin_sets();
    each(edges_, [&](int64_t edge) {
      if (in_first(edge)) sets_.unite(in_.children[2 * edge], in_.children[2 * edge + 1]);
    });
    each(edges_, [&](int64_t edge) {
      if (in_first(edge)) raise(last_[sets_.find(in_.children[2 * edge])], static_cast<int32_t>(edge));
    });
    each(edges_, [&](int64_t edge) {
      if (in_first(edge)) return;
      for (int i = 0; i < 2; ++i) in_.children[2 * edge + i] = cluster_of(sets_.find(in_.children[2 * edge + i]));
    });
  }

  static void raise(std::atomic<int32_t>& place, int32_t value) {
    int32_t current = place.load(std::memory_order_relaxed);
    while (value > current && !place.compare_exchange_weak(current, value, std::memory_order_relaxed)) {
    }
  }

  void join(int64_t begin, int64_t end) {
    for (int64_t edge = begin; edge < end; ++edge) {
      // Most of the time is spent waiting for memory.
      if (edge + ahead < end) {
        for (int i = 0; i < 2; ++i) prefetch(in_.children[2 * (edge + ahead) + i]);
      }
      if (edge + sooner < end) {
        // The parent is loaded by now; it is often the root.
        for (int i = 0; i < 2; ++i) prefetch(sets_.parent(in_.children[2 * (edge + sooner) + i]));
      }
      const int32_t a = sets_.find(in_.children[2 * edge]), b = sets_.find(in_.children[2 * edge + 1]);
      if (a == b) throw Refusal("the edges contain a circle; they must be those of a spanning tree.");
      int32_t* children = in_.children + 2 * edge;
      children[0] = cluster_of(a);
      children[1] = cluster_of(b);
      if (!in_blocks()) in_.count[edge] = count_of(children[0]) + count_of(children[1]);
      sets_.unite(a, b);
      last_[std::min(a, b)].store(static_cast<int32_t>(edge), std::memory_order_relaxed);
    }
  }

  void prefetch(int32_t id) {
    sets_.prefetch(id);
    __builtin_prefetch(&last_[id]);
  }

  int32_t count_of(int32_t cluster) const { return cluster < in_.rows ? 1 : in_.count[cluster - in_.rows]; }

  // Sum the rows of clusters from the rows up. The thread that arrives second at a cluster continues.
  void count_rows() {
    if (!in_blocks()) return;
    Scratch<int32_t> parent(ids_);  // [cluster], the edge that joins it to another, or -1
    Scratch<std::atomic<int32_t>> arrived(edges_);
    each(ids_, [&](int64_t id) { parent[id] = -1; });
    each(edges_, [&](int64_t edge) {
      arrived[edge].store(0, std::memory_order_relaxed);
      for (int i = 0; i < 2; ++i) parent[in_.children[2 * edge + i]] = static_cast<int32_t>(edge);
    });
    each(in_.rows, [&](int64_t row) {
      int32_t edge = parent[row];
      while (edge >= 0 && arrived[edge].fetch_add(1, std::memory_order_acq_rel) == 1) {
        in_.count[edge] = count_of(in_.children[2 * edge]) + count_of(in_.children[2 * edge + 1]);
        edge = parent[in_.rows + edge];
      }
    });
  }

  const Parallel& parallel_;
  const TreeClusters& in_;
  const int64_t edges_;
  const int64_t block_;  // number of edges that one thread joins in order
  const int64_t ids_;    // of rows, and with several blocks also of clusters
  UnionFind sets_;
  Scratch<std::atomic<int32_t>> last_;  // [root], the last edge of the set, or -1
};

void dendrogram(const Parallel& parallel, const TreeClusters& in) { Clusters(parallel, in).run(); }

}  // namespace

JZTREE_PLAIN_KERNEL(dendrogram, TreeClusters);

}  // namespace jztree
