// One walk (image_walk.h) finds the pairs of every query. Where a list begins is known when all are found, so until
// then they wait in memory that is needed last: the rows of the sources in that of the distances and, of groups that
// look at several images, these in that of the vectors. From there they are moved to their lists; what float64 says of
// each, from the positions as given, takes their place. A list that does not fit is not written.

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
#include "list_splits.h"

namespace jztree {
namespace {

// An image as it waits.
template <int D>
void put_image(const BoxImage<D>& image, int64_t number, int32_t* to) {
  for (int64_t entry = 0; entry < number; ++entry)
    for (int d = 0; d < D; ++d) to[entry * D + d] = static_cast<int32_t>(image[static_cast<size_t>(d)]);
}

// The pairs of a group, where lists are short.
template <int D>
class ShortPairs {
 public:
  std::vector<int64_t> numbers;

  void reset(int64_t count, bool has_images) {
    has_images_ = has_images;
    numbers.assign(static_cast<size_t>(count), 0);
    rows_.resize(static_cast<size_t>(count * stride));
    if (has_images) images_.resize(static_cast<size_t>(count * stride * D));
  }
  void add(int64_t i, int64_t first, uint32_t chosen, const BoxImage<D>& image) {
    int64_t& number = numbers[static_cast<size_t>(i)];
    int64_t place = i * stride + std::min(number, longest);
    int32_t more = pack_chosen(chosen, static_cast<int32_t>(first), rows_.data() + place);
    if (has_images_) put_image<D>(image, more, images_.data() + place * D);
    number += more;
  }
  // Whether nothing is missing but pairs of lists that are too long.
  bool all_there() const { return *std::max_element(numbers.begin(), numbers.end()) <= longest; }
  void write(int32_t* rows, int32_t* images) const {
    for (size_t i = 0; i < numbers.size(); ++i) {
      const int64_t from = static_cast<int64_t>(i) * stride, number = numbers[i];
      rows = std::copy_n(rows_.data() + from, number, rows);
      if (has_images_) images = std::copy_n(images_.data() + from * D, number * D, images);
    }
  }

 private:
  // Lists of all queries of a group are to fit a cache of a core, and not all begin in the same part of it.
  static constexpr int64_t longest = 512, stride = longest + lanes;

  bool has_images_ = false;
  std::vector<int32_t> rows_, images_;
};

template <int D, typename T>
class Pairs {
 public:
  Pairs(const Parallel& parallel, const PairsWithin<D, T>& in, const double* box)
      : parallel_(parallel),
        in_(in),
        staged_(parallel, in, box),
        rows_found_(reinterpret_cast<int32_t*>(in.distance)),
        images_found_(reinterpret_cast<int32_t*>(in.vector)),
        groups_(static_cast<size_t>(staged_.queries().leaves())) {}

  void run() {
    int64_t written = make_lists(
        in_, [&] { find(); },
        [&] {
          // One after the other: lists are finished where other groups' pairs waited.
          groups([&](int64_t begin, int64_t end) {
            for (int64_t leaf = begin; leaf < end; ++leaf) move(leaf);
          });
          groups([&](int64_t begin, int64_t end) {
            ImagePairs<D, T> pairs(in_, staged_);
            for (int64_t leaf = begin; leaf < end; ++leaf) finish(leaf, pairs);
          });
        });
    if (!in_.padded) return;
    parallel_.blocks(in_.room() - written, 1 << 14, [&](int64_t begin, int64_t end) {
      begin += written, end += written;
      std::fill(in_.query + begin, in_.query + end, -1);
      std::fill(in_.index + begin, in_.index + end, -1);
      std::fill(in_.shift + begin * D, in_.shift + end * D, 0);
      std::fill(in_.vector + begin * D, in_.vector + end * D, T{0});
      std::fill(in_.distance + begin, in_.distance + end, std::numeric_limits<T>::infinity());
    });
  }

 private:
  using Walk = ImageWalk<D, T>;

  struct Group {
    int64_t begin;  // where its pairs are
    BoxImage<D> image;
    bool has_images;  // whether it has several, so that they are with the pairs
  };

  // work(begin, end): for some groups.
  template <typename Work>
  void groups(const Work& work) const {
    parallel_.blocks(staged_.queries().leaves(), 32, work);
  }

  void find() {
    groups([&](int64_t begin, int64_t end) {
      Walk walk(in_, staged_);
      ShortPairs<D> pairs;
      bool all_short = true;
      for (int64_t leaf = begin; leaf < end; ++leaf) {
        walk.set_group(leaf);
        Group& group = groups_[static_cast<size_t>(leaf)];
        group = {0, walk.image(), walk.has_images()};
        if (walk.count() > 0) all_short = find(walk, group, all_short, pairs);
      }
    });
  }

  // How many pairs each query of a group has, and, as long as there is room for all, what they are, one list behind the
  // other. likely_short: whether it is to be tried with lists that are short. Returns whether they are.
  bool find(Walk& walk, Group& group, bool likely_short, ShortPairs<D>& pairs) {
    pairs.reset(walk.count(), group.has_images);
    const bool tried = likely_short && found_.load(std::memory_order_relaxed) <= in_.room();
    if (tried) {
      walk.walk([&](int64_t i, int64_t first, uint32_t chosen, const BoxImage<D>& image) {
        pairs.add(i, first, chosen, image);
      });
    } else {
      walk.walk([&](int64_t i, int64_t, uint32_t chosen, const BoxImage<D>&) {
        pairs.numbers[static_cast<size_t>(i)] += __builtin_popcount(chosen);
      });
    }
    int64_t all = 0;
    for (int64_t i = 0; i < walk.count(); ++i) {
      int64_t number = pairs.numbers[static_cast<size_t>(i)];
      in_.splits[in_.output_row(walk.begin() + i) + 1] = narrowed(number);
      all += number;
    }
    const int64_t begin = found_.fetch_add(all, std::memory_order_relaxed);
    group.begin = begin;
    const bool there = tried && pairs.all_there();
    if (begin + all > in_.room()) return there;
    if (there) {
      pairs.write(rows_found_ + begin, images_found_ + begin * D);
    } else {
      write_long(walk, group, pairs.numbers);
    }
    return there;
  }

  // numbers: how many pairs each query has; where they end, afterwards.
  void write_long(Walk& walk, const Group& group, std::vector<int64_t>& numbers) {
    int64_t begin = group.begin;
    for (int64_t& number : numbers) number = std::exchange(begin, begin + number);
    walk.walk([&](int64_t i, int64_t first, uint32_t chosen, const BoxImage<D>& image) {
      int64_t& place = numbers[static_cast<size_t>(i)];
      int32_t more = write_chosen(chosen, static_cast<int32_t>(first), rows_found_ + place);
      if (group.has_images) put_image<D>(image, more, images_found_ + place * D);
      place += more;
    });
  }

  // What was found, to where the lists are.
  void move(int64_t leaf) const {
    const Group& group = groups_[static_cast<size_t>(leaf)];
    int64_t from = group.begin;
    auto ask = [&](int64_t begin, int64_t number) {
      prefetch(in_.index + begin, number);
      if (group.has_images) prefetch(in_.shift + begin * D, number * D);
    };
    each_list(in_, staged_.queries(), leaf, ask, [&](int64_t, int64_t begin, int64_t end) {
      std::copy_n(rows_found_ + from, end - begin, in_.index + begin);
      if (group.has_images) std::copy_n(images_found_ + from * D, (end - begin) * D, in_.shift + begin * D);
      from += end - begin;
    });
  }

  // All else of lists of which the rows and images are there.
  void finish(int64_t leaf, ImagePairs<D, T>& pairs) const {
    const Group& group = groups_[static_cast<size_t>(leaf)];
    auto ask = [&](int64_t begin, int64_t number) {
      prefetch(in_.query + begin, number);
      prefetch(in_.index + begin, number);
      prefetch(in_.shift + begin * D, number * D);
      prefetch(in_.vector + begin * D, number * D);
      prefetch(in_.distance + begin, number);
    };
    each_list(in_, staged_.queries(), leaf, ask, [&](int64_t query, int64_t begin, int64_t end) {
      pairs.write(query, group.has_images ? nullptr : &group.image, begin, end);
      std::fill(in_.query + begin, in_.query + end, static_cast<int32_t>(in_.query_name(query)));
      for (int64_t place = begin; in_.source_names && place < end; ++place)
        in_.index[place] = in_.source_names[in_.index[place]];
    });
  }

  const Parallel& parallel_;
  const PairsWithin<D, T>& in_;
  const StagedPairs<D, T> staged_;
  int32_t *const rows_found_, *const images_found_;  // of all lists, group by group, in any order of these
  std::atomic<int64_t> found_{0};                    // how many there are, also of those that have no room
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
