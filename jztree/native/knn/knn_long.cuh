// The search for any k: a warp answers one query after another. Its list is sorted in shared memory, or in global
// memory if it is too long.
//
// The lanes test 32 particles of a leaf side by side, and those within the radius are collected in shared memory.
// Whenever 32 candidates are collected, they are sorted across the lanes (bitonic, by shuffles) and merged into the
// list. A candidate of the list moves up by the number of new candidates before it, at most 32 places. So the list is
// updated in place if blocks of 32 are moved from its end on. The part before the first new candidate does not change.
#pragma once

#include <cstdint>

#include "knn_limits.cuh"
#include "knn_problem.cuh"

namespace jztree {

constexpr int long_search_threads = 128;

// Shared memory of one warp, in bytes, without its list.
template <typename T>
JZTREE_BOTH inline int64_t long_search_bytes(int planes) {
  int64_t bytes = 3 * warp_size * static_cast<int64_t>(sizeof(Candidate<T>)) +
                  stack_entries(planes) * static_cast<int64_t>(sizeof(StackEntry<T>));
  return (bytes + 15) / 16 * 16;
}

template <int W, typename From, typename T>
class LongSearch {
 public:
  // list: space for k candidates, used only by this warp.
  __device__ LongSearch(const Problem<From>& problem, const Scale<W, T>& scale, const Limits<W, T>& limits,
                        unsigned char* memory, Candidate<T>* list)
      : problem_(problem),
        scale_(scale),
        limits_(limits),
        staging_(scale),
        wrapped_(*problem.wrapped != 0),
        collected_(reinterpret_cast<Candidate<T>*>(memory)),
        batch_(collected_ + 2 * warp_size),
        stack_(reinterpret_cast<StackEntry<T>*>(batch_ + warp_size)),
        list_(list) {}

  // Returns whether float32 can answer the query. If not, nothing is written.
  __device__ bool answer(int64_t query) {
    query_ = query;
    own_ = problem_.own_row(query);
    limit_ = limits_.of(problem_.out_row(query));
    count_ = 0;
    bool searches = query < problem_.queries.num();
    for (int64_t i = lane_index(); i < problem_.k; i += warp_size)
      list_[i] = searches && problem_.own_first(own_) && i == 0 ? Candidate<T>::make(0, 0) : no_candidate<T>();
    __syncwarp();
    if (searches) {
      search();
      if (!precise()) return false;
    }
    for (int64_t i = lane_index(); i < problem_.k; i += warp_size)
      problem_.write(problem_.out_row(query) * problem_.k + i, own_, list_[i].row_plus_one());
    __syncwarp();
    return true;
  }

 private:
  __device__ void search() {
    staging_.point(problem_.queries, static_cast<uint32_t>(query_), x_);
    bound_ = bounded(list_[problem_.k - 1], limit_);
    Group<W, 1, T> group(scale_);
    group.cover(0, x_);
    if (wrapped_) {
      group.widen(staging_);
      staging_.find_rests(problem_.queries, static_cast<uint32_t>(query_), rest_);
    }
    group.complete();
    WarpWalk<W, 1, From, T> walk(problem_.sources, staging_, group, stack_, ~0u);
    LeafRows leaf;
    while (walk.next_leaf({bound_, {bound_.distance2()}}, &leaf))
      for (; leaf.row < leaf.end; leaf.row += warp_size)
        collect(leaf.row + static_cast<uint32_t>(lane_index()), leaf.end);
    if (count_ > 0) absorb();
  }

  // Each lane tests a row.
  __device__ void collect(uint32_t row, uint32_t end) {
    T distance = 0;
    if (row < end) {
      T x[W];
      staging_.point(problem_.sources, row, x);
      if (wrapped_) {
        T row_rest[W];
        staging_.find_rests(problem_.sources, row, row_rest);
        distance = distance2<W, true>(scale_, x_, x, rest_, row_rest);
      } else {
        distance = scale_.periodic ? distance2<W, true>(scale_, x_, x) : distance2<W, false>(scale_, x_, x);
      }
    }
    bool is_candidate = row < end && row != own_ && distance <= bound_.distance2();
    if (is_candidate && limit_) is_candidate = !is_beyond(problem_, limits_, *limit_, distance, query_, row);
    unsigned lanes = __ballot_sync(all_lanes, is_candidate);
    int place = count_ + __popc(lanes & ((1u << lane_index()) - 1));
    if (is_candidate) collected_[place] = Candidate<T>::make(distance, row + 1);
    count_ += __popc(lanes);
    __syncwarp();
    if (count_ >= warp_size) absorb();
  }

  // Absorb the last 32 of the collected candidates.
  __device__ void absorb() {
    int from = count_ > warp_size ? count_ - warp_size : 0, place = from + lane_index();
    Candidate<T> mine = place < count_ ? collected_[place] : no_candidate<T>();
    count_ = from;
    __syncwarp();
    merge(sorted(mine));
    bound_ = bounded(list_[problem_.k - 1], limit_);
  }

  // Lane i gets the i-th smallest.
  __device__ static Candidate<T> sorted(Candidate<T> mine) {
    for (int size = 2; size <= warp_size; size *= 2)
      for (int flip = size / 2; flip > 0; flip /= 2) {
        Candidate<T> other = shuffled(mine, flip);
        bool rising = (lane_index() & size) == 0, lower = (lane_index() & flip) == 0;
        if (rising == lower ? other < mine : mine < other) mine = other;
      }
    return mine;
  }

  // The number of the `count` ascending candidates that are before another.
  __device__ static int64_t number_before(const Candidate<T>* candidates, int64_t count, const Candidate<T>& other) {
    int64_t first = 0, last = count;
    while (first < last) {
      int64_t middle = (first + last) / 2;
      if (candidates[middle] < other) {
        first = middle + 1;
      } else {
        last = middle;
      }
    }
    return first;
  }

  __device__ void merge(const Candidate<T>& mine) {
    batch_[lane_index()] = mine;
    int64_t k = problem_.k, place = lane_index() + number_before(list_, k, mine);
    __syncwarp();
    for (int64_t block = (k - 1) / warp_size; block >= 0; --block) {
      int64_t i = block * warp_size + lane_index();
      Candidate<T> held = i < k ? list_[i] : no_candidate<T>();
      int64_t moves = i < k ? number_before(batch_, warp_size, held) : 0;
      __syncwarp();
      if (moves > 0 && i + moves < k) list_[i + moves] = held;
      __syncwarp();
      // If the first candidate of a block stays, all earlier ones stay as well.
      if (__shfl_sync(all_lanes, static_cast<int>(moves), 0) == 0) break;
    }
    if (place < k) list_[place] = mine;
    __syncwarp();
  }

  __device__ bool precise() const {
    bool is_exact = true;
    for (int64_t i = lane_index(); i < problem_.k; i += warp_size)
      is_exact &= is_precise(problem_, scale_, list_[i], query_);
    return __all_sync(all_lanes, is_exact);
  }

  const Problem<From>& problem_;
  const Scale<W, T>& scale_;
  const Limits<W, T>& limits_;
  const Staging<W, From, T> staging_;
  const bool wrapped_;
  Candidate<T>*collected_, *batch_;
  StackEntry<T>* stack_;
  Candidate<T>* list_;
  Candidate<T> bound_;
  const Within<T>* limit_;  // of the query; null: no limit
  T x_[W], rest_[W];
  int count_;
  int64_t query_, own_;
};

// lists: in global memory, k per warp of the launch; null: in shared memory. again: the queries to answer; empty: all
// queries of the problem.
template <int W, typename From, typename T>
__global__ void __launch_bounds__(long_search_threads)
    search_long(const __grid_constant__ Problem<From> problem, const Scale<W, T>* scale,
                const __grid_constant__ Limits<W, T> limits, int64_t warp_bytes, Candidate<T>* lists, Unanswered again,
                Unanswered unanswered) {
  int64_t warp = thread_index() / warp_size, warps = static_cast<int64_t>(gridDim.x) * blockDim.x / warp_size;
  unsigned char* memory = dynamic_shared() + threadIdx.x / warp_size * warp_bytes;
  Candidate<T>* list = lists ? lists + warp * problem.k
                             : reinterpret_cast<Candidate<T>*>(memory + long_search_bytes<T>(problem.sources.planes));
  LongSearch<W, From, T> search(problem, *scale, limits, memory, list);
  auto answer = [&](int64_t place) {
    if (!search.answer(problem.query(place)) && lane_index() == 0) unanswered.add(place, 1);
  };
  int64_t items = again.count ? *again.count : problem.count();
  for (int64_t i = warp; i < items; i += warps) {
    if (!again.count) {
      answer(i);
      continue;
    }
    for (uint32_t remaining = again.lanes[i]; remaining != 0; remaining &= remaining - 1)
      answer(static_cast<int64_t>(again.first[i]) + __ffs(static_cast<int>(remaining)) - 1);
  }
}

}  // namespace jztree
