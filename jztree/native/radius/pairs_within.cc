// Two walks (image_walk.h): the first counts the pairs of every query, which tells where each list begins; the second
// writes them, with what float64 says of each from the positions as given. A list that does not fit is not written.

#include "pairs_within.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "common/cpu/context.h"
#include "image_walk.h"
#include "list_splits.h"

namespace jztree {
namespace {

template <int D, typename T>
class Pairs {
 public:
  Pairs(const Parallel& parallel, const PairsWithin<D, T>& in, const double* box)
      : parallel_(parallel), in_(in), staged_(parallel, in, box) {}

  void run() {
    int64_t written = make_lists(in_, [&] { count(); }, [&] { write(); });
    parallel_.blocks(in_.room() - written, 1 << 14, [&](int64_t begin, int64_t end) {
      begin += written, end += written;
      std::fill(in_.index + begin, in_.index + end, -1);
      std::fill(in_.shift + begin * D, in_.shift + end * D, 0);
      std::fill(in_.vector + begin * D, in_.vector + end * D, T{0});
      std::fill(in_.distance + begin, in_.distance + end, std::numeric_limits<T>::infinity());
    });
  }

 private:
  using Walk = ImageWalk<D, T>;

  // work(walk, leaf): for each group.
  template <typename Work>
  void groups(const Work& work) {
    parallel_.blocks(staged_.queries().leaves(), 32, [&](int64_t begin, int64_t end) {
      Walk walk(in_, staged_);
      for (int64_t leaf = begin; leaf < end; ++leaf) work(walk, leaf);
    });
  }

  void count() {
    groups([&](Walk& walk, int64_t leaf) {
      int64_t first = staged_.queries().leaf_row(leaf), last = staged_.queries().leaf_row(leaf + 1);
      std::vector<int64_t> numbers(static_cast<size_t>(last - first), 0);
      walk.group(leaf, [&](int64_t i, int64_t) { ++numbers[static_cast<size_t>(i)]; });
      for (int64_t query = first; query < last; ++query)
        in_.splits[in_.output_row(query) + 1] = narrowed(numbers[static_cast<size_t>(query - first)]);
    });
  }

  void write() {
    groups([&](Walk& walk, int64_t leaf) {
      int64_t first = staged_.queries().leaf_row(leaf), last = staged_.queries().leaf_row(leaf + 1);
      std::vector<int64_t> places;
      for (int64_t query = first; query < last; ++query) places.push_back(in_.splits[in_.output_row(query)]);
      walk.group(leaf, [&](int64_t i, int64_t row) { write_pair(walk, i, row, places[static_cast<size_t>(i)]++); });
    });
  }

  void write_pair(const Walk& walk, int64_t i, int64_t row, int64_t place) const {
    double difference[D], sum = 0;
    walk.apart(i, row, difference);
    in_.index[place] = static_cast<int32_t>(in_.source_name(row));
    const T *a = in_.queries.pos + (walk.begin() + i) * D, *b = in_.sources.pos + row * D;
    for (int d = 0; d < D; ++d) {
      double scaled = difference[d] * staged_.rule.factor;
      sum += scaled * scaled;
      in_.vector[place * D + d] = static_cast<T>(-difference[d]);
      in_.shift[place * D + d] = image_shift(a[d], b[d], difference[d], staged_.rule.period[d]);
    }
    in_.distance[place] = staged_.rule.length(sum);
  }

  const Parallel& parallel_;
  const PairsWithin<D, T>& in_;
  const StagedPairs<D, T> staged_;
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
