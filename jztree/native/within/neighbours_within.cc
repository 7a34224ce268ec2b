// A single walk (ball_walk.h) finds the neighbours of every query. The start of a list is only known when all
// neighbours are found. Until then, their rows are stored in the output that is written last, the distances. From there
// the rows move to their lists, and distances replace them. If the lists do not fit, none is written. The distances are
// those that decide: in float64, from the unchanged input positions.

#include "neighbours_within.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

#include "ball_walk.h"
#include "common/cpu/context.h"
#include "common/cpu/exact_distances.h"
#include "list_splits.h"
#include "short_lists.h"

namespace jztree {
namespace {

// Counts the neighbours of each query of a group.
struct Counter {
  static constexpr bool of_numbers = true, together = true;
  std::vector<int64_t>& numbers;

  void node(int64_t, int64_t first, int64_t end, int64_t) {
    for (int64_t& number : numbers) number += end - first;
  }
  void number(int64_t i, int32_t number, int64_t) { numbers[static_cast<size_t>(i)] += number; }
};

// Writes the rows of neighbours to the places of their lists.
struct Lister {
  static constexpr bool of_numbers = false, together = false;

  int32_t* rows_found;
  std::vector<int64_t>& places;  // place of each query's next neighbour

  void rows(int64_t i, int64_t first, uint32_t members, int64_t) {
    int64_t& place = places[static_cast<size_t>(i)];
    place += write_chosen(members, static_cast<int32_t>(first), rows_found + place);
  }
};

// Does both, if lists are short.
struct ShortLister {
  static constexpr bool of_numbers = false, together = false;
  ShortLists& lists;

  void rows(int64_t i, int64_t first, uint32_t members, int64_t) { lists.add(i, first, members); }
};

template <int D, typename T>
class Lists {
 public:
  Lists(const Parallel& parallel, const NeighboursWithin<D, T>& in, const double* box)
      : parallel_(parallel),
        in_(in),
        staged_(parallel, in.sources, in.queries, in.self, box),
        distances_(staged_.rule, staged_.source_pos),
        rows_found_(reinterpret_cast<int32_t*>(in.distance)),
        begins_(static_cast<size_t>(staged_.queries->leaves())) {}

  void run() {
    int64_t written = make_lists(parallel_, in_, [&] { find(); }, [&] { move(), finish(); });
    if (!in_.padded) return;
    parallel_.blocks(in_.room() - written, 1 << 14, [&](int64_t begin, int64_t end) {
      std::fill(in_.index + written + begin, in_.index + written + end, -1);
      std::fill(in_.distance + written + begin, in_.distance + written + end, std::numeric_limits<T>::infinity());
    });
  }

 private:
  struct Entry {
    T distance;
    int32_t row;

    bool operator<(const Entry& other) const {
      return distance != other.distance ? distance < other.distance : row < other.row;
    }
  };

  // work(begin, end): process some groups.
  template <typename Work>
  void groups(const Work& work) const {
    parallel_.blocks(staged_.queries->leaves(), 32, work);
  }

  void find() {
    groups([&](int64_t begin, int64_t end) {
      BallWalk<D, T> walk(staged_, 1);
      ShortLists lists;
      bool all_short = true;
      for (int64_t leaf = begin; leaf < end; ++leaf) {
        int64_t first = staged_.queries->leaf_row(leaf);
        walk.set_group(leaf, [&](int64_t i, int64_t) {
          return in_.radius[in_.radius.count > 1 ? in_.queries.row_of(first + i) : 0];
        });
        if (walk.count() > 0) all_short = find(walk, leaf, all_short, lists);
      }
    });
  }

  // Count the neighbours of each query of a group. While all fit, also store their rows, list after list. likely_short:
  // whether to try short lists. Returns whether the lists are short.
  bool find(BallWalk<D, T>& walk, int64_t leaf, bool likely_short, ShortLists& lists) {
    lists.reset(walk.count());
    const bool tried = likely_short && found_.load(std::memory_order_relaxed) <= in_.room();
    if (tried) {
      ShortLister lister{lists};
      walk.walk(lister);
    } else {
      Counter counter{lists.numbers};
      walk.walk(counter);
    }
    int64_t all = 0;
    for (int64_t i = 0; i < walk.count(); ++i) {
      int64_t number = lists.numbers[static_cast<size_t>(i)];
      in_.splits[in_.queries.row_of(walk.begin() + i) + 1] = narrowed(number);
      all += number;
    }
    int64_t begin = found_.fetch_add(all, std::memory_order_relaxed);
    begins_[static_cast<size_t>(leaf)] = begin;
    const bool complete = tried && lists.all_there();
    if (begin + all > in_.room()) return complete;
    if (complete) {
      lists.write(rows_found_ + begin);
    } else {
      for (int64_t& number : lists.numbers) number = std::exchange(begin, begin + number);
      Lister lister{rows_found_, lists.numbers};
      walk.walk(lister);
    }
    return complete;
  }

  // Move the found rows to their lists.
  void move() const {
    groups([&](int64_t first, int64_t last) {
      auto ask = [&](int64_t begin, int64_t number) { prefetch(in_.index + begin, number); };
      for (int64_t leaf = first; leaf < last; ++leaf) {
        const int32_t* rows = rows_found_ + begins_[static_cast<size_t>(leaf)];
        each_list(in_, *staged_.queries, leaf, ask, [&](int64_t, int64_t begin, int64_t end) {
          std::copy_n(rows, end - begin, in_.index + begin);
          rows += end - begin;
        });
      }
    });
  }

  // Complete the lists whose rows are written.
  void finish() const {
    groups([&](int64_t first, int64_t last) {
      std::vector<Entry> list;
      auto ask = [&](int64_t begin, int64_t number) {
        prefetch(in_.index + begin, number);
        prefetch(in_.distance + begin, number);
      };
      for (int64_t leaf = first; leaf < last; ++leaf)
        each_list(in_, *staged_.queries, leaf, ask, [&](int64_t query, int64_t begin, int64_t end) {
          distances_.find(staged_.query_pos + query * D, in_.index + begin, end - begin, in_.distance + begin);
          if (in_.sorted) sort(begin, end, list);
          for (int64_t entry = begin; in_.sources.rows && entry < end; ++entry)
            in_.index[entry] = in_.sources.rows[in_.index[entry]];
        });
    });
  }

  // Sort a list by distance; neighbours at the same distance stay in the order of the sources.
  void sort(int64_t begin, int64_t end, std::vector<Entry>& list) const {
    list.clear();
    for (int64_t entry = begin; entry < end; ++entry) list.push_back({in_.distance[entry], in_.index[entry]});
    std::sort(list.begin(), list.end());
    for (int64_t entry = begin; entry < end; ++entry) {
      in_.distance[entry] = list[static_cast<size_t>(entry - begin)].distance;
      in_.index[entry] = list[static_cast<size_t>(entry - begin)].row;
    }
  }

  const Parallel& parallel_;
  const NeighboursWithin<D, T>& in_;
  const Staged<D, T> staged_;
  const ExactDistances<D, T> distances_;
  int32_t* const rows_found_;      // the lists of each group are together; groups are in any order
  std::atomic<int64_t> found_{0};  // their number, including those that do not fit
  std::vector<int64_t> begins_;    // start of the rows of each group
};

template <int D, typename T>
void neighbours_within(const Parallel& parallel, const NeighboursWithin<D, T>& in) {
  double box[D];
  in.box.read(box);
  Lists<D, T>(parallel, in, box).run();
}

}  // namespace

JZTREE_KERNEL(neighbours_within, NeighboursWithin);

}  // namespace jztree
