// A single walk (image_walk.h) finds the pairs of every query. The start of a list is only known when all pairs are
// found. Until then, the source rows are stored group by group in the output that is written last, the queries' names.
// Then the other outputs are computed in float64 from the unchanged input positions and written to their final places.
// The queries' names replace the stored rows last. A list that does not fit is not written.

#include "pairs_within.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "common/cpu/context.h"
#include "image_pairs.h"
#include "image_walk.h"
#include "within/list_splits.h"
#include "within/short_lists.h"

namespace jztree {
namespace {

template <int D, typename T>
class Pairs {
 public:
  Pairs(const Parallel& parallel, const PairsWithin<D, T>& in, const double* box)
      : parallel_(parallel),
        in_(in),
        staged_(parallel, in, box),
        rows_found_(in.query),
        groups_(static_cast<size_t>(staged_.queries().leaves())) {}

  void run() {
    int64_t written = make_lists(
        parallel_, in_, [&] { find(); },
        [&] {
          groups([&](int64_t begin, int64_t end) {
            ImagePairs<D, T> pairs(in_, staged_);
            for (int64_t leaf = begin; leaf < end; ++leaf) write(leaf, pairs);
          });
          write_queries();
        });
    if (!in_.padded) return;
    parallel_.blocks(in_.room() - written, 1 << 14, [&](int64_t begin, int64_t end) {
      begin += written, end += written;
      std::fill(in_.query + begin, in_.query + end, -1);
      std::fill(in_.index + begin, in_.index + end, -1);
      if (in_.shift) std::fill(in_.shift + begin * D, in_.shift + end * D, 0);
      if (!in_.vector) return;
      std::fill(in_.vector + begin * D, in_.vector + end * D, T{0});
      std::fill(in_.distance + begin, in_.distance + end, std::numeric_limits<T>::infinity());
    });
  }

 private:
  using Walk = ImageWalk<D, T>;

  struct Group {
    int64_t begin;  // index of its first pair
    BoxImage<D> first, last;
    std::vector<int32_t> ends;  // for several images: the number of pairs of each query up to each image
  };

  // work(begin, end): process some groups.
  template <typename Work>
  void groups(const Work& work) const {
    parallel_.blocks(staged_.queries().leaves(), 32, work);
  }

  void find() {
    groups([&](int64_t begin, int64_t end) {
      Walk walk(in_, staged_);
      ShortLists pairs;
      bool all_short = true;
      for (int64_t leaf = begin; leaf < end; ++leaf) {
        walk.set_group(leaf);
        Group& group = groups_[static_cast<size_t>(leaf)];
        group = {0, walk.first_image(), walk.last_image(), {}};
        if (walk.count() > 0) all_short = find(walk, group, all_short, pairs);
      }
    });
  }

  // Count the pairs of each query of a group. While all pairs fit, also store them, list after list. likely_short:
  // whether to try short lists. Returns whether the lists are short.
  bool find(Walk& walk, Group& group, bool likely_short, ShortLists& pairs) {
    pairs.reset(walk.count());
    const bool fits = found_.load(std::memory_order_relaxed) <= in_.room(), tried = likely_short && fits;
    auto note_ends = [&] {
      if (!fits || !walk.has_images() || !(in_.shift || in_.vector)) return;
      for (int64_t number : pairs.numbers) group.ends.push_back(narrowed(number));
    };
    if (tried) {
      walk.walk([&](int64_t i, int64_t first, uint32_t mask) { pairs.add(i, first, mask); }, note_ends);
    } else {
      walk.walk(
          [&](int64_t i, int64_t, uint32_t mask) { pairs.numbers[static_cast<size_t>(i)] += __builtin_popcount(mask); },
          note_ends);
    }
    int64_t all = 0;
    for (int64_t i = 0; i < walk.count(); ++i) {
      int64_t number = pairs.numbers[static_cast<size_t>(i)];
      in_.splits[in_.queries.row_of(walk.begin() + i) + 1] = narrowed(number);
      all += number;
    }
    const int64_t begin = found_.fetch_add(all, std::memory_order_relaxed);
    group.begin = begin;
    const bool is_stored = tried && pairs.all_there();
    if (begin + all > in_.room()) return is_stored;
    if (is_stored) {
      pairs.write(rows_found_ + begin);
    } else {
      write_long(walk, begin, pairs.numbers);
    }
    return is_stored;
  }

  // numbers: before the call, the number of pairs of each query; after it, the end of each query's list.
  void write_long(Walk& walk, int64_t begin, std::vector<int64_t>& numbers) {
    for (int64_t& number : numbers) number = std::exchange(begin, begin + number);
    walk.walk(
        [&](int64_t i, int64_t first, uint32_t mask) {
          int64_t& place = numbers[static_cast<size_t>(i)];
          place += write_chosen(mask, static_cast<int32_t>(first), rows_found_ + place);
        },
        [] {});
  }

  // Write the lists of a group, except the queries' names.
  void write(int64_t leaf, ImagePairs<D, T>& pairs) const {
    const Group& group = groups_[static_cast<size_t>(leaf)];
    const int64_t first = staged_.queries().leaf_row(leaf), count = staged_.queries().leaf_row(leaf + 1) - first;
    const int32_t* rows = rows_found_ + group.begin;
    auto ask = [&](int64_t begin, int64_t number) {
      prefetch(in_.index + begin, number);
      if (in_.shift) prefetch(in_.shift + begin * D, number * D);
      if (!in_.vector) return;
      prefetch(in_.vector + begin * D, number * D);
      prefetch(in_.distance + begin, number);
    };
    each_list(in_, staged_.queries(), leaf, ask, [&](int64_t query, int64_t begin, int64_t end) {
      if (in_.shift || in_.vector) {
        pairs.start(query, begin);
        each_image(group, query - first, count, end - begin, [&](int64_t from, int64_t to, const BoxImage<D>& image) {
          pairs.add(rows + from, to - from, image);
        });
        pairs.write();
      }
      for (int64_t place = begin; place < end; ++place)
        in_.index[place] = static_cast<int32_t>(in_.sources.row_of(*rows++));
    });
  }

  // For each image, call work(from, to, image): the range of the `all` pairs of the i-th of a group's `count` queries
  // with this image.
  template <typename Work>
  static void each_image(const Group& group, int64_t i, int64_t count, int64_t all, const Work& work) {
    if (group.ends.empty()) return work(0, all, group.first);
    BoxImage<D> image = group.first;
    int64_t done = 0;
    for (const int32_t* end = group.ends.data() + i;; end += count) {
      work(done, *end, image);
      done = *end;
      if (!Walk::next_image(image, group.first, group.last)) return;
    }
  }

  void write_queries() const {
    if (in_.query_names) {
      auto ask = [&](int64_t begin, int64_t number) { prefetch(in_.query + begin, number); };
      groups([&](int64_t first, int64_t last) {
        for (int64_t leaf = first; leaf < last; ++leaf)
          each_list(in_, staged_.queries(), leaf, ask, [&](int64_t query, int64_t begin, int64_t end) {
            std::fill(in_.query + begin, in_.query + end, in_.query_names[query]);
          });
      });
    } else {
      parallel_.blocks(in_.q(), 1 << 10, [&](int64_t first, int64_t last) {
        for (int64_t row = first; row < last; ++row)
          std::fill(in_.query + in_.splits[row], in_.query + in_.splits[row + 1], static_cast<int32_t>(row));
      });
    }
  }

  const Parallel& parallel_;
  const PairsWithin<D, T>& in_;
  const StagedPairs<D, T> staged_;
  int32_t* const rows_found_;      // the lists of each group are together; groups are in any order
  std::atomic<int64_t> found_{0};  // their number, including those that do not fit
  std::vector<Group> groups_;
};

template <int D, typename T>
void pairs_within(const Parallel& parallel, const PairsWithin<D, T>& in) {
  double box[D];
  in.box.read(box);
  Pairs<D, T>(parallel, in, box).run();
}

}  // namespace

JZTREE_KERNEL(pairs_within, PairsWithin);

}  // namespace jztree
