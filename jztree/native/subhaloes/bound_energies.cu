// A block takes a candidate. It finds the largest key of the core digit by digit, from the most significant one on: in
// each pass, it counts the rows with the digits found so far by their next digit. The row is the last part of the key,
// so that no two keys are equal. Not tuned on a GPU yet.

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "bound_energies.h"
#include "common/cuda/context.cuh"
#include "common/cuda/warp.cuh"
#include "groups/moments.cuh"

namespace jztree {
namespace {

constexpr int energy_warps = 8, energy_threads = energy_warps * warp_size, digit_values = 256;

template <int D, typename T>
struct FrameProblem {
  Frame<D, T> frame;
  Lengths box, constants;
  const T* key;
  Count candidates;
  const int32_t *count, *offset;
  int64_t rows;
  int32_t* centre;
  T* velocity;
};

// A key that is unique in its candidate, in words that sort like numbers: first the float, then the row.
struct UniqueKey {
  uint64_t number;
  uint32_t row;

  __device__ unsigned digit(int place) const {
    return static_cast<unsigned>(place < 8 ? number >> (56 - 8 * place) : row >> (88 - 8 * place)) & (digit_values - 1);
  }
  // Whether another key has the same digits before a place.
  __device__ bool begins_like(const UniqueKey& other, int place) const {
    if (place <= 8) return place == 0 || (number ^ other.number) >> (64 - 8 * place) == 0;
    return number == other.number && (row ^ other.row) >> (96 - 8 * place) == 0;
  }
  __device__ bool is_above(const UniqueKey& other) const {
    return number != other.number ? number > other.number : row > other.row;
  }
};

template <typename T>
__device__ UniqueKey key_of(T value, int64_t row) {
  using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
  constexpr int shift = 64 - 8 * sizeof(T);
  value += T{0};  // both zeros are equal
  Bits bits;
  memcpy(&bits, &value, sizeof(T));
  bits = bits >> (8 * sizeof(T) - 1) ? ~bits : bits | Bits{1} << (8 * sizeof(T) - 1);
  return {static_cast<uint64_t>(bits) << shift, static_cast<uint32_t>(row)};
}

// The largest key of the `size` lowest.
template <typename T>
__device__ UniqueKey largest_of_core(const T* key, int64_t begin, int64_t end, int64_t size) {
  __shared__ unsigned counts[digit_values];
  __shared__ UniqueKey shared;
  UniqueKey largest{0, 0};
  int64_t remaining = size;
  for (int place = 0; place < 12; ++place) {
    if (sizeof(T) == 4 && place >= 4 && place < 8) continue;
    for (unsigned i = threadIdx.x; i < digit_values; i += energy_threads) counts[i] = 0;
    __syncthreads();
    for (int64_t row = begin + threadIdx.x; row < end; row += energy_threads) {
      const UniqueKey own = key_of(key[row], row);
      if (own.begins_like(largest, place)) atomicAdd(counts + own.digit(place), 1u);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      uint64_t digit = 0;
      while (digit < digit_values - 1 && remaining > counts[digit]) remaining -= counts[digit++];
      shared = largest;
      if (place < 8) shared.number |= digit << (56 - 8 * place);
      if (place >= 8) shared.row |= static_cast<uint32_t>(digit) << (88 - 8 * place);
    }
    __syncthreads();
    largest = shared;
  }
  return largest;
}

// The sum over the threads of a block, in an order that never changes.
__device__ inline double block_sum(double value) {
  __shared__ double parts[energy_warps];
  value = warp_sum(value);
  __syncthreads();
  if (lane_index() == 0) parts[threadIdx.x / warp_size] = value;
  __syncthreads();
  double sum = 0;
  for (double part : parts) sum += part;
  return sum;
}

template <typename T>
__device__ int64_t lowest_row(const T* potential, int64_t begin, int64_t end) {
  __shared__ UniqueKey parts[energy_warps];
  UniqueKey lowest{~uint64_t{0}, ~uint32_t{0}};
  for (int64_t row = begin + threadIdx.x; row < end; row += energy_threads) {
    const UniqueKey own = key_of(potential[row], row);
    if (lowest.is_above(own)) lowest = own;
  }
  for (int flip = warp_size / 2; flip > 0; flip /= 2) {
    const UniqueKey other{__shfl_xor_sync(all_lanes, lowest.number, flip),
                          __shfl_xor_sync(all_lanes, lowest.row, flip)};
    if (lowest.is_above(other)) lowest = other;
  }
  if (lane_index() == 0) parts[threadIdx.x / warp_size] = lowest;
  __syncthreads();
  for (const UniqueKey& other : parts)
    if (lowest.is_above(other)) lowest = other;
  return lowest.row;
}

template <int D, typename T>
__global__ void write_states(const __grid_constant__ FrameProblem<D, T> in) {
  const int64_t candidate = blockIdx.x;
  if (candidate >= in.candidates()) return;
  const int64_t begin = in.offset[candidate], count = in.count[candidate], end = begin + count;
  if (count <= 0 || begin < 0 || end > in.rows) return;
  Frame<D, T> frame = in.frame;
  frame.particles = in_box(frame.particles, in.box);
  frame.take(in.constants);
  const int64_t centre = lowest_row(frame.potential, begin, end), size = core_size(count);
  frame.particles.place_of(centre, frame.place);
  const UniqueKey largest = largest_of_core(in.key, begin, end, size);
  double mass = 0, sums[D] = {}, plain[D] = {};
  for (int64_t row = begin + threadIdx.x; row < end; row += energy_threads) {
    if (key_of(in.key[row], row).is_above(largest)) continue;
    const double weight = frame.particles.mass_of(row);
    mass += weight;
    for (int d = 0; d < D; ++d) {
      sums[d] += weight * static_cast<double>(frame.particles.vel[row * D + d]);
      plain[d] += static_cast<double>(frame.particles.vel[row * D + d]);
    }
  }
  mass = block_sum(mass);
  for (int d = 0; d < D; ++d) {
    const double weighted = block_sum(sums[d]), unweighted = block_sum(plain[d]);
    frame.velocity[d] = mass > 0 ? weighted / mass : unweighted / static_cast<double>(size);
    if (threadIdx.x == 0) in.velocity[candidate * D + d] = static_cast<T>(frame.velocity[d]);
  }
  if (threadIdx.x == 0) in.centre[candidate] = static_cast<int32_t>(centre);
  for (int64_t row = begin + threadIdx.x; row < end; row += energy_threads) frame.write(row);
}

template <int D, typename T>
void bound_energies(Queue& queue, const BoundEnergies<D, T>& in) {
  const GroupedParticles<D, T>& grouped = in.grouped;
  const FrameProblem<D, T> problem{
      {grouped.particles(), in.internal.rows() > 0 ? in.internal.data : nullptr, in.potential, in.state, 0, 0, {}, {}},
      grouped.box,
      in.constants,
      in.key,
      grouped.groups(),
      grouped.count,
      grouped.offset,
      grouped.rows(),
      in.centre,
      in.velocity};
  queue.fill_bytes(in.centre, 0xff, grouped.room());
  queue.fill_bytes(in.velocity, 0, grouped.room() * D);
  queue.launch(grouped.room(), energy_threads, 0, write_states<D, T>, problem);
}

}  // namespace

JZTREE_KERNEL(bound_energies, BoundEnergies);

}  // namespace jztree
