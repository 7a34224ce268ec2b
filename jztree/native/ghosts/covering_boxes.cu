// A single block finds the ranges, because every choice depends on the previous ones. The expensive part is to find the
// cut of a range and the boxes of both parts. Warps find these for all ranges at once, even for ranges that may not be
// split. Then one warp chooses ranges until it reaches one whose cut is not known yet. For particles in a typical
// order, this takes a dozen rounds for 256 boxes. Boxes come from a pyramid of boxes of 32, 32^2, ... rows. A range
// needs at most two warp loads per level. The pyramid is built from the rows in one pass. Tight boxes of leaves would
// give the same result.

#include <cstdint>
#include <limits>

#include "common/cuda/context.cuh"
#include "common/cuda/keys.cuh"
#include "common/cuda/surrounding.cuh"
#include "common/cuda/warp.cuh"
#include "common/cuda/warp_search.cuh"
#include "cover_rule.h"
#include "covering_boxes.h"

namespace jztree {
namespace {

// The number of threads that the registers allow.
template <int D>
constexpr int cover_threads = D <= 4 ? 512 : 256;

template <int D, typename T>
__device__ Surrounding<D, T> bounds_of_row(const T* pos, const Lengths& box, int64_t row) {
  Surrounding<D, T> bounds;
  for (int d = 0; d < D; ++d) bounds.low[d] = bounds.high[d] = wrap(pos[row * D + d], box[d]);
  return bounds;
}

// Level 0 consists of the rows; an item of a higher level bounds 32 items of the level below.
template <int D, typename T>
struct Pyramid {
  static constexpr int most_levels = 7;  // for 2^31 rows, with a top level of at most 32 items

  const T* pos;
  Lengths box;
  int levels;  // not counting the rows
  const Surrounding<D, T>* items[most_levels];

  __device__ Surrounding<D, T> at(int level, int64_t i) const {
    return level > 0 ? items[level - 1][i] : bounds_of_row<D>(pos, box, i);
  }

  // The bounds of rows [begin, end). All lanes of the warp take part and get them.
  __device__ Surrounding<D, T> of_range(int64_t begin, int64_t end) const {
    Surrounding<D, T> bounds;
    for (int level = 0;; ++level) {
      int64_t first = (begin + warp_size - 1) / warp_size, last = end / warp_size;
      if (level == levels || first >= last) {
        for (int64_t i = begin + lane_index(); i < end; i += warp_size) bounds.include(at(level, i));
        break;
      }
      int64_t left = begin + lane_index(), right = last * warp_size + lane_index();
      if (left < first * warp_size) bounds.include(at(level, left));
      if (right < end) bounds.include(at(level, right));
      begin = first;
      end = last;
    }
    bounds.unite_warp();
    return bounds;
  }
};

// One warp per item of the level above `below`. `below` has `count` items; it is null for the rows.
template <int D, typename T>
__global__ void make_level(const T* pos, Lengths box, const Surrounding<D, T>* below, int64_t count,
                           Surrounding<D, T>* level) {
  int64_t i = thread_index();
  if (i / warp_size * warp_size >= count) return;
  Surrounding<D, T> bounds;
  if (i < count) bounds = below ? below[i] : bounds_of_row<D>(pos, box, i);
  bounds.unite_warp();
  if (lane_index() == 0) level[i / warp_size] = bounds;
}

template <int D, typename T>
Pyramid<D, T> make_pyramid(Queue& queue, const T* pos, int64_t rows, const Lengths& box) {
  Pyramid<D, T> pyramid{pos, box, 0, {}};
  const Surrounding<D, T>* below = nullptr;
  for (int64_t count = rows; count > warp_size; count = (count + warp_size - 1) / warp_size) {
    Surrounding<D, T>* level = queue.scratch<Surrounding<D, T>>((count + warp_size - 1) / warp_size);
    queue.launch_over(count, make_level<D, T>, pos, box, below, count, level);
    pyramid.items[pyramid.levels++] = below = level;
  }
  return pyramid;
}

template <int D, typename T>
struct Range {
  int64_t begin, end;
  Surrounding<D, T> bounds;
  double priority;

  __device__ bool can_be_split() const { return end - begin >= 2 && priority > 0; }
};

template <int D, typename T>
struct Cover {
  Pyramid<D, T> pyramid;
  Count num;
  const KeyGrid<D>* grid;
  int64_t capacity;
  // The ranges so far; lefts, rights: the two parts of each range whose `cut_known` is 1.
  Range<D, T>*ranges, *lefts, *rights;
  int32_t* cut_known;

  // The following functions need all lanes of a warp.
  __device__ Range<D, T> range(int64_t begin, int64_t end) const {
    Range<D, T> made{begin, end, pyramid.of_range(begin, end), 0};
    double longest = 0;
    for (int d = 0; d < D; ++d) {
      double length = static_cast<double>(made.bounds.high[d]) - static_cast<double>(made.bounds.low[d]);
      longest = length > longest ? length : longest;
    }
    made.priority = cover_priority(longest, end - begin);
    return made;
  }

  __device__ MortonKey key(int64_t row) const { return Morton<D>::key(*grid, pyramid.pos + row * D); }

  // The row that starts the second part of a range: the first row with a 1 in the highest bit that differs between the
  // range's keys. If all keys are equal, it is the middle row.
  __device__ int64_t cut(int64_t begin, int64_t end) const {
    MortonKey first = key(begin);
    int level = highest_difference(first, key(end - 1));
    if (level == 0) return (begin + end) / 2;
    return warp_search(begin + 1, end - 1, [&](int64_t row) { return highest_difference(first, key(row)) < level; });
  }

  __device__ void look_up(int64_t i) const {
    int64_t begin = ranges[i].begin, end = ranges[i].end, middle = cut(begin, end);
#pragma unroll 1
    for (int part = 0; part < 2; ++part) {
      Range<D, T> made = range(part == 0 ? begin : middle, part == 0 ? middle : end);
      if (lane_index() == 0) (part == 0 ? lefts : rights)[i] = made;
    }
    __syncwarp();  // all lanes have read `cut_known`
    if (lane_index() == 0) cut_known[i] = 1;
  }

  // The next range to be split out of `count`: the one with the highest priority, the first of equal ones; -1 for none.
  __device__ int64_t next(int64_t count) const {
    double priority = 0;
    int64_t begin = 0, at = -1;
    for (int64_t i = lane_index(); i < count; i += warp_size) {
      const Range<D, T>& other = ranges[i];
      if (!other.can_be_split() || other.priority < priority) continue;
      if (at >= 0 && other.priority == priority && other.begin > begin) continue;
      priority = other.priority;
      begin = other.begin;
      at = i;
    }
    double highest = warp_max(at >= 0 ? priority : -1);
    int64_t first = warp_min(at >= 0 && priority == highest ? begin : std::numeric_limits<int64_t>::max());
    return warp_max(at >= 0 && priority == highest && begin == first ? at : int64_t{-1});
  }

  // Split ranges whose cuts are known. Returns their new number, and whether the splitting is complete.
  __device__ int64_t split(int64_t count, bool* complete) const {
    for (; count < capacity; ++count) {
      int64_t i = next(count);
      if (i < 0) break;
      if (!cut_known[i]) {
        *complete = false;
        return count;
      }
      __syncwarp();
      if (lane_index() == 0) {
        ranges[count] = rights[i];
        ranges[i] = lefts[i];
        cut_known[count] = cut_known[i] = 0;
      }
      __syncwarp();
    }
    *complete = true;
    return count;
  }
};

// Run by one block. Returns the number of ranges; all threads take part.
template <int D, typename T>
__device__ int64_t find_ranges(const Cover<D, T>& cover) {
  __shared__ int64_t count;
  __shared__ bool complete;
  int64_t warp = threadIdx.x / warp_size, rows = cover.num();
  if (warp == 0) {
    Range<D, T> all = cover.range(0, rows);
    if (lane_index() == 0) {
      cover.ranges[0] = all;
      cover.cut_known[0] = 0;
      count = rows > 0 ? 1 : 0;
      complete = false;
    }
  }
  __syncthreads();
  while (!complete) {
    for (int64_t i = warp; i < count; i += cover_threads<D> / warp_size)
      if (!cover.cut_known[i] && cover.ranges[i].can_be_split()) cover.look_up(i);
    __syncthreads();
    if (warp == 0) {
      bool is_complete = false;
      int64_t number = cover.split(count, &is_complete);
      __syncwarp();  // all lanes have read `count`
      if (lane_index() == 0) {
        count = number;
        complete = is_complete;
      }
    }
    __syncthreads();
  }
  return count;
}

// Write ranges in the order of their rows; unused boxes are empty and inverted.
template <int D, typename T>
__global__ void __launch_bounds__(cover_threads<D>, 1)
    cover_rows(Cover<D, T> cover, int32_t* splits, T* lower, T* upper) {
  int64_t count = find_ranges(cover);
  for (int64_t i = threadIdx.x; i <= cover.capacity; i += cover_threads<D>) {
    int64_t place = i, begin = cover.num();
    Surrounding<D, T> bounds;
    if (i < count) {
      begin = cover.ranges[i].begin;
      bounds = cover.ranges[i].bounds;
      place = 0;
      for (int64_t item = 0; item < count; ++item) place += cover.ranges[item].begin < begin;
    }
    splits[place] = static_cast<int32_t>(begin);
    if (place == cover.capacity) continue;
    for (int d = 0; d < D; ++d) {
      lower[place * D + d] = bounds.low[d];
      upper[place * D + d] = bounds.high[d];
    }
  }
}

template <int D, typename T>
void covering_boxes(Queue& queue, const CoveringBoxes<D, T>& in) {
  int64_t capacity = in.capacity();
  Cover<D, T> search{make_pyramid<D, T>(queue, in.pos, in.pos.rows(), in.keys.box),
                     in.num,
                     device_grid(queue, in.keys),
                     capacity,
                     queue.scratch<Range<D, T>>(capacity),
                     queue.scratch<Range<D, T>>(capacity),
                     queue.scratch<Range<D, T>>(capacity),
                     queue.scratch<int32_t>(capacity)};
  queue.launch(1, cover_threads<D>, 0, cover_rows<D, T>, search, in.splits, in.lower, in.upper);
}

}  // namespace

JZTREE_KERNEL(covering_boxes, CoveringBoxes);

}  // namespace jztree
