// Sorts edges by weight, then by the rows of their ends: all threads distribute them by the bits of their weights into
// parts that fit into a cache, and one thread sorts each part. A list with the members of EdgeList can hold other items
// that have two keys of 64 bits.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "common/cpu/memory.h"
#include "common/cpu/parallel.h"
#include "common/cpu/spares.h"
#include "edge_rule.h"
#include "zorder/cache_sort.h"
#include "zorder/digits.h"

namespace jztree {

struct Edge {
  uint64_t weight;  // bits
  Link link;
};

// Edges in the memory of results that have 8 bytes per edge each.
class EdgeList {
 public:
  EdgeList(uint32_t* weights, int32_t* links) : weights_(weights), links_(links) {}

  void set(int64_t i, const Edge& edge) const {
    memcpy(weights_ + 2 * i, &edge.weight, sizeof(edge.weight));
    memcpy(links_ + 2 * i, &edge.link.bits, sizeof(edge.link.bits));
  }
  uint64_t weight(int64_t i) const {
    uint64_t weight;
    memcpy(&weight, weights_ + 2 * i, sizeof(weight));
    return weight;
  }
  Edge operator[](int64_t i) const {
    Edge edge{weight(i), 0};
    memcpy(&edge.link.bits, links_ + 2 * i, sizeof(edge.link.bits));
    return edge;
  }
  // Order items of `edges` that agree in both keys. No two edges do.
  void order_equal(CacheSort::Item*, CacheSort::Item*, const Edge*) const {}

 private:
  uint32_t* weights_;
  int32_t* links_;
};

template <typename List = EdgeList>
class EdgeSort {
 public:
  EdgeSort(const Parallel& parallel, const List& edges, int64_t count)
      : parallel_(parallel),
        edges_(edges),
        count_(count),
        grain_(std::max<int64_t>(1 << 13, count / (8 * parallel.threads()) + 1)),
        digits_(sample(), varying(), count, std::max<int64_t>(Digits::one_thread, count / (4 * parallel.threads()))),
        dealt_(count) {}

  // Call write(place, edge) for every edge. It may overwrite the list. pair_of_link: the output rows of its ends.
  template <typename Pair, typename Write>
  void run(const Pair& pair_of_link, const Write& write) {
    const std::vector<int64_t> ends = deal();
    Spares<CacheSort>().blocks(
        parallel_, digits_.count(), 1, [] { return CacheSort(); },
        [&](CacheSort& sort, int64_t first, int64_t last) {
          for (int64_t digit = first; digit < last; ++digit)
            sort_part(sort, digit > 0 ? ends[static_cast<size_t>(digit - 1)] : 0, ends[static_cast<size_t>(digit)],
                      pair_of_link, write);
        });
  }

 private:
  static constexpr int64_t samples = 1 << 9;

  std::vector<uint64_t> sample() const {
    std::vector<uint64_t> keys;
    for (int64_t i = 0; i < count_; i += std::max<int64_t>(1, count_ / samples)) keys.push_back(edges_.weight(i));
    return keys;
  }

  uint64_t varying() const {
    uint64_t bits = 0;
    for (int64_t i = 1; i < count_; ++i) bits |= edges_.weight(i) ^ edges_.weight(0);
    return bits;
  }

  // Move the edges into the order of their digits. Returns the end of each digit.
  std::vector<int64_t> deal() {
    const int64_t ways = digits_.count(), blocks = (count_ + grain_ - 1) / grain_;
    std::vector<int64_t> places(static_cast<size_t>(std::max<int64_t>(1, blocks) * ways), 0);
    auto places_of = [&](int64_t begin) { return places.data() + begin / grain_ * ways; };
    parallel_.blocks(count_, grain_, [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; block += grain_)
        for (int64_t i = block; i < std::min(end, block + grain_); ++i)
          ++places_of(block)[digits_.of(edges_.weight(i))];
    });
    int64_t total = 0;
    for (int64_t digit = 0; digit < ways; ++digit)
      for (int64_t block = 0; block < blocks; ++block)
        total += std::exchange(places[static_cast<size_t>(block * ways + digit)], total);
    parallel_.blocks(count_, grain_, [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; block += grain_)
        for (int64_t i = block; i < std::min(end, block + grain_); ++i)
          dealt_[places_of(block)[digits_.of(edges_.weight(i))]++] = edges_[i];
    });
    return {places.end() - ways, places.end()};
  }

  template <typename Pair, typename Write>
  void sort_part(CacheSort& sort, int64_t begin, int64_t end, const Pair& pair_of_link, const Write& write) {
    CacheSort::Item* items = sort.items(end - begin);
    for (int64_t i = begin; i < end; ++i) items[i - begin] = {dealt_[i].weight, static_cast<uint32_t>(i - begin)};
    const Edge* part = dealt_.get() + begin;
    for (const auto& range : sort.sort(end - begin, false, [&](uint32_t i) { return pair_of_link(part[i].link); }))
      edges_.order_equal(items + range.begin, items + range.end, part);
    for (int64_t i = begin; i < end; ++i) write(i, dealt_[begin + items[i - begin].index]);
  }

  const Parallel& parallel_;
  const List edges_;
  const int64_t count_, grain_;
  const Digits digits_;
  Scratch<Edge> dealt_;
};

}  // namespace jztree
