// Two walks (ball_walk.h): the first counts the neighbours of every query, which tells where each list begins; the
// second writes them. A list that does not fit is not written at all. Distances are those that decide: float64, from
// the positions as given.

#include "neighbours_within.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "ball_walk.h"
#include "common/cpu/context.h"
#include "list_splits.h"

namespace jztree {
namespace {

// Writes the rows of the neighbours of a group of queries.
struct Lister {
  static constexpr bool of_numbers = false;

  int32_t* index;
  std::vector<int64_t>& places;  // where the next neighbour of each goes

  void node(int64_t, int64_t, int64_t, int64_t) {}
  void rows(int64_t i, int64_t first, uint32_t chosen, int64_t) {
    int64_t& place = places[static_cast<size_t>(i)];
    place += write_chosen(chosen, static_cast<int32_t>(first), index + place);
  }
};

// How many neighbours each query of a group has.
struct Counter {
  static constexpr bool of_numbers = true;
  std::vector<int64_t>& numbers;

  void node(int64_t, int64_t first, int64_t end, int64_t) {
    for (int64_t& number : numbers) number += end - first;
  }
  void number(int64_t i, int32_t number, int64_t) { numbers[static_cast<size_t>(i)] += number; }
};

template <int D, typename T>
class Lists {
 public:
  Lists(const Parallel& parallel, const NeighboursWithin<D, T>& in, const double* box)
      : parallel_(parallel), in_(in), staged_(parallel, in.sources, in.queries, in.self, box) {}

  void run() {
    int64_t written = make_lists(in_, [&] { count(); }, [&] { write(); });
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

  int64_t place(int64_t query) const { return in_.query_rows ? in_.query_rows[query] : query; }

  // work(walk, first): for each group, whose first query that is.
  template <typename Work>
  void groups(bool together, const Work& work) {
    parallel_.blocks(staged_.queries->leaves(), 32, [&](int64_t begin, int64_t end) {
      BallWalk<D, T> walk(staged_, 1, together);
      for (int64_t leaf = begin; leaf < end; ++leaf) {
        int64_t first = staged_.queries->leaf_row(leaf);
        walk.set_group(leaf,
                       [&](int64_t i, int64_t) { return in_.radius[in_.radius.count > 1 ? place(first + i) : 0]; });
        work(walk, first);
      }
    });
  }

  void count() {
    groups(true, [&](BallWalk<D, T>& walk, int64_t first) {
      std::vector<int64_t> numbers(static_cast<size_t>(walk.count()), 0);
      Counter counter{numbers};
      walk.walk(counter);
      for (int64_t i = 0; i < walk.count(); ++i)
        in_.splits[place(first + i) + 1] = narrowed(numbers[static_cast<size_t>(i)]);
    });
  }

  void write() {
    groups(false, [&](BallWalk<D, T>& walk, int64_t first) {
      std::vector<int64_t> places(static_cast<size_t>(walk.count()));
      for (int64_t i = 0; i < walk.count(); ++i) places[static_cast<size_t>(i)] = in_.splits[place(first + i)];
      Lister lister{in_.index, places};
      walk.walk(lister);
      std::vector<Entry> list;
      for (int64_t i = 0; i < walk.count(); ++i) finish(first + i, list);
    });
  }

  // The list of a query, of which the rows are there. A loop of its own, in which nothing waits for a branch.
  void finish(int64_t query, std::vector<Entry>& list) const {
    const T* at = staged_.query_pos + query * D;
    int64_t begin = in_.splits[place(query)], end = in_.splits[place(query) + 1];
    for (int64_t entry = begin; entry < end; ++entry) {
      double distance2 = staged_.rule.distance2(at, staged_.source_pos + int64_t{in_.index[entry]} * D);
      in_.distance[entry] = staged_.rule.length(distance2);
    }
    if (in_.sorted) sort(begin, end, list);
    for (int64_t entry = begin; in_.source_rows && entry < end; ++entry)
      in_.index[entry] = in_.source_rows[in_.index[entry]];
  }

  // A list by distance; those at the same distance stay in the order of the sources.
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
