// Rows are in z-order, so most neighbours of a row are in the caches.
//
// Most edges of the graph cannot join peaks. From the list of each row, the forest needs only one edge to each other
// peak, to the densest of its particles there. Threads collect these edges in parts, and rounds work on them alone.

#include "peak_forest.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/cpu/atomics.h"
#include "common/cpu/context.h"
#include "fof/union_find.h"

namespace jztree {
namespace {

constexpr int64_t grain = 1 << 12;

class PeakJoiner {
 public:
  PeakJoiner(const Parallel& parallel, const PeakForest& in)
      : parallel_(parallel),
        in_(in),
        graph_(in.graph),
        num_(in.graph.num()),
        first_(num_),
        edges_(num_),
        joined_(num_),
        parts_(static_cast<size_t>((num_ + grain - 1) / grain)) {}

  // Returns the number of edges of the forest.
  int64_t run() {
    begin();
    each_part([&](size_t part) { collect(part); });
    for (int64_t before = -1; before < count_.load();) {
      before = count_.load();
      for (const int32_t peak : peaks_) first_[peak].store(no_edge, std::memory_order_relaxed);
      each_part([&](size_t part) { offer(part); });
      each_part([&](size_t part) { join(part); });
    }
    std::sort(edges_.get(), edges_.get() + count_.load());
    return count_.load();
  }

  uint64_t edge(int64_t i) { return edges_[i]; }

 private:
  // An edge between particles of two peaks, or sets of peaks.
  struct Link {
    uint64_t edge;
    int32_t a, b;  // rows that represent the peaks
  };

  template <typename Work>
  void each(const Work& work) {
    parallel_.blocks(num_, grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) work(i);
    });
  }
  template <typename Work>
  void each_part(const Work& work) {
    parallel_.blocks(static_cast<int64_t>(parts_.size()), 1, [&](int64_t begin, int64_t end) {
      for (int64_t part = begin; part < end; ++part) work(static_cast<size_t>(part));
    });
  }

  // Whether a row has another in its list.
  bool is_near(int32_t row, int32_t second) const {
    const int32_t* neighbours = graph_.list_of(row);
    if (!neighbours) return false;
    int is_listed = 0;  // not bool, so that compilers vectorise the loop
    for (int64_t i = 0; i < graph_.k; ++i) is_listed |= neighbours[i] == second;
    return is_listed != 0;
  }

  // Every row is a set at first; only rows that represent peaks are joined.
  void begin() {
    std::atomic<bool> is_valid{true};
    each([&](int64_t row) {
      const int32_t rank = graph_.rank[row], peak = in_.peak[row];
      joined_.set(row, row);
      const bool in_range = rank >= 0 && rank < num_ && peak >= 0 && peak < num_;
      if (!in_range || in_.peak[peak] != peak) is_valid.store(false, std::memory_order_relaxed);
    });
    if (!is_valid) throw Refusal("invalid rank or peak in the graph of density peaks.");
    for (int64_t row = 0; row < num_; ++row)
      if (in_.peak[row] == row) peaks_.push_back(static_cast<int32_t>(row));
  }

  // Collect the edges from the rows of a part to other peaks. If each of two rows is in the list of the other, the
  // sparser one has the edge.
  void collect(size_t part) {
    std::vector<Link>& links = parts_[part];
    std::vector<int32_t> lists(static_cast<size_t>(2 * graph_.k));
    int32_t *denser = lists.data(), *sparser = denser + graph_.k;
    const int64_t begin = static_cast<int64_t>(part) * grain, end = std::min(num_, begin + grain);
    for (int64_t row = begin; row < end; ++row) {
      int64_t above = 0, below = 0;
      const int32_t rank = graph_.rank[row], peak = in_.peak[row];
      graph_.each_near(row, [&](int32_t neighbour) {
        // Without branches, which would be unpredictable.
        const int leaves = in_.peak[neighbour] != peak, up = graph_.rank[neighbour] < rank;
        denser[above] = sparser[below] = neighbour;
        above += leaves & up;
        below += leaves & (up ^ 1);
      });
      const size_t first = links.size();
      for (int64_t i = 0; i < above; ++i) add(links, first, row, denser[i]);
      for (int64_t i = 0; i < below; ++i)
        if (!is_near(sparser[i], static_cast<int32_t>(row))) links.push_back(link_between(row, sparser[i]));
    }
  }

  Link link_between(int64_t row, int32_t second) {
    return {edge_between(graph_.rank[row], graph_.rank[second]), in_.peak[row], in_.peak[second]};
  }

  // Add the edge from a row to a denser one. If those from `first` on have one to the same peak, the earlier remains.
  void add(std::vector<Link>& links, size_t first, int64_t row, int32_t denser) {
    const Link link = link_between(row, denser);
    for (size_t i = first; i < links.size(); ++i) {
      if (links[i].b != link.b) continue;
      links[i].edge = std::min(links[i].edge, link.edge);
      return;
    }
    links.push_back(link);
  }

  // Offer the edges of a part to the sets that they join, and forget edges within sets.
  void offer(size_t part) {
    std::vector<Link>& links = parts_[part];
    size_t count = 0;
    for (const Link& link : links) {
      const int32_t a = joined_.find(link.a), b = joined_.find(link.b);
      if (a == b) continue;
      lower(first_[a], link.edge);
      lower(first_[b], link.edge);
      links[count++] = {link.edge, a, b};
    }
    links.resize(count);
  }

  // Join sets by the edges of a part that are the first of a set.
  void join(size_t part) {
    for (const Link& link : parts_[part]) {
      const bool is_first = first_[link.a].load(std::memory_order_relaxed) == link.edge ||
                            first_[link.b].load(std::memory_order_relaxed) == link.edge;
      if (!is_first) continue;
      edges_[count_.fetch_add(1, std::memory_order_relaxed)] = link.edge;
      joined_.unite(link.a, link.b);
    }
  }

  const Parallel& parallel_;
  const PeakForest& in_;
  const RankedGraph graph_;
  const int64_t num_;
  Scratch<std::atomic<uint64_t>> first_;  // [root of a set], the first edge to another set
  Scratch<uint64_t> edges_;               // of the forest
  UnionFind joined_;                      // of rows that represent peaks
  std::vector<int32_t> peaks_;            // these rows
  std::vector<std::vector<Link>> parts_;  // edges from blocks of rows
  std::atomic<int64_t> count_{0};
};

void peak_forest(const Parallel& parallel, const PeakForest& in) {
  PeakJoiner joiner(parallel, in);
  const int64_t count = joiner.run();
  *in.count = static_cast<int32_t>(count);
  for (int64_t i = 0; i < count; ++i) {
    in.ends[2 * i] = sparser_end(joiner.edge(i));
    in.ends[2 * i + 1] = denser_end(joiner.edge(i));
  }
  std::fill(in.ends + 2 * count, in.ends + 2 * in.edges(), -1);
}

}  // namespace

JZTREE_PLAIN_KERNEL(peak_forest, PeakForest);

}  // namespace jztree
