// A block's search for the spheres around one centre. It lists the particles of a shell, sorts them, and continues
// outwards (spheres.h) until the spheres end.
//
// A particle is a 128-bit number: the bits of its squared distance followed by those of its mass. So the order is the
// same as on the CPU, and a shell is a range of such numbers. The walk also counts particles in 256 parts of that
// range. If a shell holds more particles than the list can, it shrinks to the first parts, as many as fit. If the first
// part alone does not fit, it becomes the shell, and a new walk counts its 256 parts. A shell of a single number holds
// identical particles and needs no list. So a sphere can hold any number of particles; the list size only affects the
// number of walks.
//
// Masses must be added one after the other. A warp does this with shuffles for 32 particles of the sorted list, in
// every lane. Each lane then checks whether a sphere ends at its particle, and computes its value for the peak. If
// spheres begin or end in a run of 32 particles, which is rare, a single lane processes this run as on the CPU.
#pragma once

#include <cstdint>
#include <new>

#include "common/cuda/queue.cuh"
#include "common/cuda/tree.cuh"
#include "common/cuda/warp.cuh"
#include "sphere_walk.cuh"
#include "spheres.h"

namespace jztree {

using NearKey = unsigned __int128;

__device__ inline NearKey near_key(double distance2, double mass) {
  return NearKey{static_cast<uint64_t>(__double_as_longlong(distance2))} << 64 |
         static_cast<uint64_t>(__double_as_longlong(mass));
}
__device__ inline double distance2_of(NearKey key) { return __longlong_as_double(static_cast<long long>(key >> 64)); }
__device__ inline double mass_of(NearKey key) {
  return __longlong_as_double(static_cast<long long>(static_cast<uint64_t>(key)));
}

// The last number at this distance, for any mass.
__device__ inline NearKey last_at(double distance2) { return near_key(distance2, 0) | ~uint64_t{0}; }

struct Shell {
  NearKey first, last;
};

template <int D, typename T>
struct SphereProblem {
  DeviceTree<D, T> tree;
  Masses<T> mass;
  const T *centres, *nearest;  // nearest: negative for centres to skip
  Lengths box;
  Thresholds thresholds;
  int64_t min_count;
  SphereRows<T> rows;
};

// The lists of the blocks of a launch.
struct SphereLists {
  int64_t room;   // particles per block
  bool divides;   // shells that do not fit; otherwise their centres are left to another launch
  NearKey* keys;  // in global memory, twice the capacity per block; null: use the shared memory for sorting as the
                  // list
  Span* stacks;
};

constexpr int shell_parts = 256;

template <int D, typename T, int Threads>
struct SphereMemory {
  WalkMemory<Threads> walk;
  int parts[shell_parts], found;  // found: number of particles in the list
  int place;
  bool done;
  Shell shell;
  double radius;
  alignas(16) unsigned char scan[sizeof(SphereScan<D, T>)];
};

template <int D, typename T, int Threads, int Sorted>
class SphereSearch {
 public:
  using Memory = SphereMemory<D, T, Threads>;

  // sorted: shared memory for `Sorted` particles.
  __device__ SphereSearch(const SphereProblem<D, T>& problem, const SphereLists& lists, Memory& memory, NearKey* sorted,
                          Span* stack)
      : problem_(problem),
        memory_(memory),
        scan_(*reinterpret_cast<SphereScan<D, T>*>(memory.scan)),
        sorted_(sorted),
        list_(lists.keys ? lists.keys + 2 * lists.room * blockIdx.x : sorted),
        spare_(list_ + lists.room),
        walk_(problem.tree, memory.walk, stack),
        room_(lists.room),
        divides_(lists.divides) {}

  // Search one centre. Returns whether the list was long enough. All threads of the block call this with the same row.
  __device__ bool answer(int64_t row) {
    double box[D];
    for (int d = 0; d < D; ++d) box[d] = problem_.box[d];
    Centre<D, T> centre(problem_.centres + row * D, box);
    if (threadIdx.x == 0) {
      memory_.done = false;
      new (&scan_) SphereScan<D, T>(problem_.thresholds, problem_.min_count, centre.half_box(), problem_.rows, row);
    }
    NearKey next = 0;
    for (double radius = centre.first_radius(problem_.nearest[row]); radius >= 0; radius = close(radius)) {
      NearKey last = last_at(radius * radius);
      while (next <= last) {
        Shell shell{next, last};
        if (!fill(centre, &shell)) return false;
        take(shell);
        if (memory_.done) return true;
        next = shell.last + 1;
      }
    }
    return true;
  }

 private:
  __device__ double close(double radius) {
    __syncthreads();  // the radius of the previous call has been read
    if (threadIdx.x == 0) memory_.radius = scan_.close(radius, problem_.tree.num());
    __syncthreads();
    return memory_.radius;
  }

  // ---- listing ----

  // List the particles in a shell, which is narrowed if there are too many. Returns false if they do not fit and the
  // shell may not be narrowed.
  __device__ bool fill(const Centre<D, T>& centre, Shell* shell) {
    while (true) {
      collect(centre, *shell);
      if (memory_.found <= room_) return true;
      if (!divides_) return false;
      if (shell->first == shell->last) return true;
      narrow(shell);
    }
  }

  // The right shift that turns the numbers of a shell into part numbers.
  __device__ static int part_shift(const Shell& shell) {
    NearKey width = shell.last - shell.first;
    uint64_t high = static_cast<uint64_t>(width >> 64), low = static_cast<uint64_t>(width);
    int bits = high ? 128 - leading_zeros(high) : low ? 64 - leading_zeros(low) : 0;
    return bits > 8 ? bits - 8 : 0;
  }

  // Narrow the shell to the first non-empty parts: as many as fit, but at least one.
  __device__ void narrow(Shell* shell) {
    if (threadIdx.x == 0) {
      int shift = part_shift(*shell), first = 0;
      while (memory_.parts[first] == 0) ++first;
      int end = first + 1;
      for (int64_t sum = memory_.parts[first]; end < shell_parts; ++end) {
        sum += memory_.parts[end];
        if (sum > room_) break;
      }
      NearKey last = shell->first + (NearKey(end) << shift) - 1;
      memory_.shell = {shell->first + (NearKey(first) << shift), last < shell->last ? last : shell->last};
    }
    __syncthreads();
    *shell = memory_.shell;
  }

  __device__ void collect(const Centre<D, T>& centre, const Shell& shell) {
    __syncthreads();  // all reads of the previous call are done
    if (threadIdx.x == 0) memory_.found = 0;
    if (divides_)
      for (int part = threadIdx.x; part < shell_parts; part += Threads) memory_.parts[part] = 0;
    double inner = std::sqrt(distance2_of(shell.first)), outer = std::sqrt(distance2_of(shell.last));
    int shift = part_shift(shell);
    walk_.rows(centre, inner, outer, [&](int64_t row) {
      NearKey key = 0;
      bool in_shell = false;
      if (row >= 0) {
        key = near_key(centre.distance2(problem_.tree.pos + row * D), problem_.mass[row]);
        in_shell = shell.first <= key && key <= shell.last;
      }
      int place = place_in(&memory_.found, in_shell);
      if (in_shell && place < room_) list_[place] = key;
      if (in_shell && divides_) atomicAdd(&memory_.parts[static_cast<int>((key - shell.first) >> shift)], 1);
    });
  }

  // ---- sorting ----

  // The list in ascending order.
  __device__ const NearKey* sort(int64_t count) {
    if (list_ == sorted_) {
      sort_shared(static_cast<int>(count));
      return sorted_;
    }
    for (int64_t first = 0; first < count; first += Sorted) {
      int length = static_cast<int>(smaller<int64_t>(Sorted, count - first));
      for (int i = threadIdx.x; i < length; i += Threads) sorted_[i] = list_[first + i];
      sort_shared(length);
      for (int i = threadIdx.x; i < length; i += Threads) list_[first + i] = sorted_[i];
      __syncthreads();
    }
    NearKey *from = list_, *to = spare_;
    for (int64_t width = Sorted; width < count; width *= 2) {
      merge(from, to, count, width);
      __syncthreads();
      NearKey* other = from;
      from = to;
      to = other;
    }
    return from;
  }

  // Sort the particles in shared memory by K. E. Batcher's bitonic network (1968).
  __device__ void sort_shared(int count) {
    int size = 1;
    while (size < count) size *= 2;
    for (int i = count + static_cast<int>(threadIdx.x); i < size; i += Threads) sorted_[i] = ~NearKey{0};
    for (int run = 2; run <= size; run *= 2)
      for (int flip = run / 2; flip > 0; flip /= 2) {
        __syncthreads();
        for (int i = threadIdx.x; i < size / 2; i += Threads) {
          int low = 2 * i - (i & (flip - 1)), high = low + flip;
          NearKey a = sorted_[low], b = sorted_[high];
          bool rising = (low & run) == 0;
          if ((b < a) != rising) continue;
          sorted_[low] = b;
          sorted_[high] = a;
        }
      }
    __syncthreads();
  }

  // Merge neighbouring runs of `width`. A thread writes one piece at a time. It finds the start of the piece in both
  // runs by bisection (O. Green, R. McColl & D. A. Bader, 2012, "GPU merge path").
  __device__ void merge(const NearKey* from, NearKey* to, int64_t count, int64_t width) const {
    constexpr int piece = 8;
    static_assert(Sorted % piece == 0, "a piece lies in one pair of runs");
    for (int64_t start = int64_t{threadIdx.x} * piece; start < count; start += Threads * piece) {
      int64_t pair = start / (2 * width) * (2 * width), place = start - pair;
      const NearKey* a = from + pair;
      int64_t a_count = smaller(width, count - pair), b_count = smaller(width, count - pair - a_count);
      const NearKey* b = a + a_count;
      int64_t i = larger<int64_t>(0, place - b_count), last = smaller(place, a_count);
      while (i < last) {
        int64_t middle = (i + last) / 2;
        if (b[place - 1 - middle] < a[middle]) {
          last = middle;
        } else {
          i = middle + 1;
        }
      }
      int64_t j = place - i, end = smaller(start + piece, pair + a_count + b_count);
      for (int64_t out = start; out < end; ++out) {
        bool second = i == a_count || (j < b_count && b[j] < a[i]);
        to[out] = second ? b[j++] : a[i++];
      }
    }
  }

  // ---- the way outwards ----

  // Take the listed particles, or the counted particles of a shell of one number.
  __device__ void take(const Shell& shell) {
    int64_t count = memory_.found;
    if (count > room_) {
      take_each(count, [&](int64_t) { return shell.first; });
    } else if (count > 0) {
      const NearKey* keys = sort(count);
      take_each(count, [&](int64_t i) { return keys[i]; });
    }
    __syncthreads();
  }

  template <typename At>
  __device__ void take_each(int64_t count, const At& at) {
    if (threadIdx.x >= warp_size) return;
    bool all = true;
    for (int64_t first = 0; all && first < count; first += warp_size)
      all = take_warp(first, smaller<int64_t>(warp_size, count - first), at);
    if (!all && threadIdx.x == 0) memory_.done = true;
  }

  // Take up to 32 particles. Returns whether a sphere continues.
  template <typename At>
  __device__ bool take_warp(int64_t first, int64_t count, const At& at) {
    bool exists = lane_index() < count;
    NearKey key = exists ? at(first + lane_index()) : NearKey{0};
    double distance2 = distance2_of(key), mass = mass_of(key), before = 0, sum = scan_.mass();
    for (int lane = 0; lane < warp_size; ++lane) {
      double lane_mass = __shfl_sync(all_lanes, mass, lane);
      if (lane == lane_index()) before = sum;
      sum += lane_mass;
    }
    bool all = true;
    if (scan_.begun() && __all_sync(all_lanes, !exists || scan_.passes(distance2, before))) {
      double radius = std::sqrt(distance2), peak = exists ? scan_.peak_of(before + mass, radius) : 0;
      double highest = warp_max(peak);
      int lane = __ffs(static_cast<int>(__ballot_sync(all_lanes, peak == highest))) - 1;
      radius = __shfl_sync(all_lanes, radius, lane);
      __syncwarp();
      if (lane_index() == 0) scan_.take_all(count, sum, highest, radius);
    } else {
      __syncwarp();
      for (int i = 0; all && i < count && lane_index() == 0; ++i) {
        NearKey taken = at(first + i);
        all = scan_.take(distance2_of(taken), mass_of(taken));
      }
      all = __shfl_sync(all_lanes, static_cast<int>(all), 0) != 0;
    }
    __syncwarp();
    return all;
  }

  const SphereProblem<D, T>& problem_;
  Memory& memory_;
  SphereScan<D, T>& scan_;
  NearKey *sorted_, *list_, *spare_;
  ShellWalk<D, T, Threads> walk_;
  int64_t room_;
  bool divides_;
};

}  // namespace jztree
