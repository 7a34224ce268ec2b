// Groups hold from a handful to all particles. A group of at most `rows_of_warp` rows is summed by one warp, which
// takes all three passes and writes the row of the catalogue: the particles are read from memory once, and from the
// first-level cache after that. Larger groups, and the parts of groups that straddle ranks, are cut into chunks of
// `rows_of_block` rows. In each pass, one block sums each chunk, then one block sums the chunks of a group.
//
// Lanes and threads take every 32nd or 256th row, and are added in a fixed order. So sums have the same bits in every
// run, and depend only on the group's own particles. Their rounding order differs from that on the CPU.
//
// Bound by memory: each row of a listed group is read once if its group is small, otherwise three times (only masses in
// the first pass). Work arrays: 4 bytes per row of the catalogue, and 2 sums (176 bytes each in 3D) per chunk.

#include <algorithm>
#include <cstdint>

#include "catalogue.h"
#include "common/cuda/context.cuh"
#include "common/cuda/primitives.cuh"
#include "common/cuda/warp.cuh"
#include "common/partition.h"
#include "moments.cuh"

namespace jztree {
namespace {

// Not tuned on a GPU yet: a warp needs some 100 us for its largest group, a block less for a chunk.
constexpr int64_t rows_of_warp = 1024, rows_of_block = 8192;
constexpr int block_threads = 256;

// The rows of each group. Rows outside the particles are left out; this library never passes any.
struct Segments {
  Count groups;
  const int32_t *count, *offset;
  int64_t rows;

  __device__ int64_t inside(int64_t row) const { return row < 0 ? 0 : row < rows ? row : rows; }
  __device__ int64_t begin(int64_t group) const { return inside(offset[group]); }
  __device__ int64_t end(int64_t group) const { return inside(static_cast<int64_t>(offset[group]) + count[group]); }
  __device__ int64_t size(int64_t group) const { return end(group) - begin(group); }
};

// A run of rows that one block sums, and the chunks of the same group: `number` chunks from `first` on.
struct Chunk {
  int64_t begin, end;
  int32_t group, first, number;
};

// The chunks of the groups with more than `alone` rows, group after group.
struct Chunks {
  Segments segments;
  int64_t alone, most;
  int32_t skipped;  // number of trailing groups that are not cut
  int32_t* starts;  // (capacity for groups + 1,): the first chunk of each group
  Chunk* list;      // (most,)

  __device__ int64_t groups() const { return segments.groups() - skipped; }
  __device__ int64_t chunks_of(int64_t group) const {
    int64_t size = group < groups() ? segments.size(group) : 0;
    return size > alone ? (size + rows_of_block - 1) / rows_of_block : 0;
  }
  __device__ int64_t total() const { return std::min<int64_t>(starts[segments.groups.rows], most); }

  // The first chunk of a group represents the group.
  __device__ bool has(int64_t chunk) const { return chunk < total(); }
  __device__ bool begins_group(int64_t chunk) const { return has(chunk) && list[chunk].first == chunk; }
};

__global__ void count_chunks(Chunks chunks) {
  int64_t group = thread_index();
  if (group <= chunks.segments.groups.rows) chunks.starts[group] = static_cast<int32_t>(chunks.chunks_of(group));
}

// The group of a chunk is the last one that starts no later; a group without chunks has the same start as the next one.
__global__ void list_chunks(Chunks chunks) {
  int64_t chunk = thread_index();
  if (!chunks.has(chunk)) return;
  const int64_t after =
      partition_point(0, chunks.segments.groups.rows, [&](int64_t group) { return chunks.starts[group] <= chunk; });
  int64_t group = std::max<int64_t>(0, after - 1), start = chunks.starts[group];
  int64_t begin = chunks.segments.begin(group) + (chunk - start) * rows_of_block, end = chunks.segments.end(group);
  chunks.list[chunk] = {begin, std::min(end, begin + rows_of_block), static_cast<int32_t>(group),
                        static_cast<int32_t>(start), static_cast<int32_t>(chunks.chunks_of(group))};
}

// A pass number that is known on the host, or one stored on the GPU.
struct PassNumber {
  SumPass value;
  const int32_t* stored;

  __device__ SumPass operator()() const { return stored ? static_cast<SumPass>(*stored) : value; }
};

// Add the sums of the block's threads; the first thread gets the result.
template <int D>
__device__ void reduce_block(SumPass pass, Moments<D>& sums) {
  alignas(16) __shared__ unsigned char memory[sizeof(Moments<D>) * (block_threads / warp_size)];
  auto* warps = reinterpret_cast<Moments<D>*>(memory);
  reduce_warp(pass, sums);
  if (lane_index() == 0) warps[threadIdx.x / warp_size] = sums;
  __syncthreads();
  if (threadIdx.x == 0)
    for (int warp = 1; warp < block_threads / warp_size; ++warp) sums.join(pass, warps[warp]);
}

// found[chunk]: the result of a pass for it. group[first chunk]: the sums of the previous passes.
template <int D, typename T>
__global__ void sum_chunks(GroupParticles<D, T> rows, Lengths box, Chunks chunks, PassNumber number,
                           const Moments<D>* group, Moments<D>* found) {
  int64_t chunk = blockIdx.x;
  if (!chunks.has(chunk)) return;
  GroupParticles<D, T> particles = in_box(rows, box);
  Chunk here = chunks.list[chunk];
  SumPass pass = number();
  RowSums<D, T> rows_of_pass(particles, pass, group[here.first]);
  Moments<D> sums = rows_of_pass.of(here.begin + threadIdx.x, here.end, block_threads);
  reduce_block(pass, sums);
  if (threadIdx.x > 0) return;
  particles.place_of(here.begin, sums.first);
  found[chunk] = sums;
}

// group[first chunk] = the sum over the chunks of the group.
template <int D>
__global__ void join_chunks(Chunks chunks, PassNumber number, const Moments<D>* found, Moments<D>* group) {
  int64_t first = blockIdx.x;
  if (!chunks.begins_group(first)) return;
  SumPass pass = number();
  Moments<D> sums{};
  int64_t end = std::min<int64_t>(first + chunks.list[first].number, chunks.most);
  for (int64_t chunk = first + threadIdx.x; chunk < end; chunk += block_threads) sums.join(pass, found[chunk]);
  reduce_block(pass, sums);
  if (threadIdx.x > 0) return;
  for (int d = 0; d < D; ++d) sums.first[d] = found[first].first[d];
  group[first].take(pass, sums);
}

template <int D, typename T>
void run_pass(Queue& queue, const GroupParticles<D, T>& rows, const Lengths& box, const Chunks& chunks,
              const PassNumber& number, Moments<D>* group, Moments<D>* found) {
  queue.launch(chunks.most, block_threads, 0, sum_chunks<D, T>, rows, box, chunks, number, group, found);
  queue.launch(chunks.most, block_threads, 0, join_chunks<D>, chunks, number, found, group);
}

// Cut the groups of more than `alone` rows, except the last `skipped` groups. There are at most `groups` such groups.
Chunks cut(Queue& queue, const Segments& segments, int64_t alone, int64_t groups, int skipped) {
  int64_t room = segments.groups.rows, most = segments.rows / rows_of_block + groups;
  Chunks chunks{segments, alone, most, skipped, queue.scratch<int32_t>(room + 1), queue.scratch<Chunk>(most)};
  queue.launch_over(room + 1, count_chunks, chunks);
  exclusive_sum(queue, chunks.starts, chunks.starts, room + 1);
  queue.launch_over(most, list_chunks, chunks);
  return chunks;
}

// ---- catalogue ----

// A warp takes all passes over a group.
template <int D, typename T>
__global__ void sum_small_groups(GroupParticles<D, T> rows, Lengths box, Chunks chunks,
                                 CatalogueColumns<D, T> columns) {
  int64_t group = thread_index() / warp_size;
  if (group >= chunks.groups() || chunks.segments.size(group) > chunks.alone) return;  // the same in all lanes
  GroupParticles<D, T> particles = in_box(rows, box);
  int64_t begin = chunks.segments.begin(group), end = chunks.segments.end(group);
  Moments<D> sums{};
  if (begin < end) particles.place_of(begin, sums.first);
  for (SumPass pass : {SumPass::masses, SumPass::centres, SumPass::spreads}) {
    Moments<D> part = RowSums<D, T>(particles, pass, sums).of(begin + lane_index(), end, warp_size);
    reduce_warp(pass, part);
    sums.join(pass, part);
  }
  if (lane_index() == 0) columns.write(group, sums, particles.period, particles.vel != nullptr);
}

template <int D, typename T>
__global__ void write_large_groups(GroupParticles<D, T> rows, Lengths box, Chunks chunks, const Moments<D>* sums,
                                   CatalogueColumns<D, T> columns) {
  int64_t chunk = thread_index();
  if (!chunks.begins_group(chunk)) return;
  GroupParticles<D, T> particles = in_box(rows, box);
  columns.write(chunks.list[chunk].group, sums[chunk], particles.period, particles.vel != nullptr);
}

// The last group; all ranks know the sum over its parts.
template <int D, typename T>
__global__ void write_last_group(GroupParticles<D, T> rows, Lengths box, Count groups, AllEnds<D> all, Count rank,
                                 CatalogueColumns<D, T> columns, int32_t* count) {
  int64_t group = groups() - 1;
  if (group < 0) return;
  GroupParticles<D, T> particles = in_box(rows, box);
  Moments<D> sums = all.tail_group(rank());
  columns.write(group, sums, particles.period, particles.vel != nullptr);
  count[group] = static_cast<int32_t>(sums.count);
}

template <int D, typename T>
void sum_large_groups(Queue& queue, const GroupParticles<D, T>& rows, const Lengths& box, const Chunks& chunks,
                      const CatalogueColumns<D, T>& columns) {
  auto* sums = queue.scratch<Moments<D>>(chunks.most);
  auto* partial_sums = queue.scratch<Moments<D>>(chunks.most);
  for (SumPass pass : {SumPass::masses, SumPass::centres, SumPass::spreads})
    run_pass(queue, rows, box, chunks, PassNumber{pass, nullptr}, sums, partial_sums);
  queue.launch_over(chunks.most, write_large_groups<D, T>, rows, box, chunks, sums, columns);
}

template <int D, typename T>
Segments segments_of(const GroupedParticles<D, T>& in) {
  return {in.groups(), in.count, in.offset, in.rows()};
}

template <int D>
AllEnds<D> all_ends(const KnownEnds<D>& in) {
  return {reinterpret_cast<const Ends<D>*>(in.known.data), in.ranks()};
}

template <int D, typename T>
void catalogue(Queue& queue, const Catalogue<D, T>& in) {
  if (in.room == 0) return;
  GroupParticles<D, T> rows = in.grouped.particles();
  Segments segments = segments_of(in.grouped);
  AllEnds<D> all = all_ends(in.ends);
  const Lengths& box = in.grouped.box;
  in.each_column([&](T* column, int64_t elements) { queue.fill_bytes(column, 0, elements); });
  queue.copy(in.count, segments.count, in.room);
  Chunks chunks =
      cut(queue, segments, rows_of_warp, std::min(in.room, segments.rows / rows_of_warp), all.ranks > 0 ? 1 : 0);
  queue.launch_warps(in.room, sum_small_groups<D, T>, rows, box, chunks, in.columns);
  if (chunks.most > 0) sum_large_groups(queue, rows, box, chunks, in.columns);
  if (all.ranks > 0)
    queue.launch(1, 1, 0, write_last_group<D, T>, rows, box, segments.groups, all, Count{in.ends.rank, all.ranks - 1},
                 in.columns, in.count);
}

// ---- straddling_sums ----

// This rank's parts of the groups at its ends: 0 is the head, 1 the tail.
struct TwoParts {
  int32_t *number, *count, *offset;
};

// head: number of leading rows that continue the last group of the previous ranks.
__global__ void find_ends(Segments segments, const int32_t* head, TwoParts parts) {
  int64_t groups = segments.groups(), leading = segments.inside(*head);
  if (groups > 0) leading = std::min(leading, segments.begin(0));
  *parts.number = 2;
  parts.offset[0] = 0;
  parts.count[0] = static_cast<int32_t>(leading);
  parts.offset[1] = groups > 0 ? segments.offset[groups - 1] : 0;
  parts.count[1] = groups > 0 ? segments.count[groups - 1] : 0;
}

// sums[first chunk of a part] = the known sums of its group.
template <int D>
__global__ void know_ends(Chunks chunks, AllEnds<D> all, Count rank, Moments<D>* sums) {
  int64_t part = thread_index();
  if (part > 1 || chunks.chunks_of(part) == 0) return;
  sums[chunks.starts[part]] = part == 0 ? all.head_group(rank()) : all.tail_group(rank());
}

// Write this rank's results of the pass; missing parts keep their old values.
template <int D>
__global__ void write_ends(Chunks chunks, AllEnds<D> all, Count rank, PassNumber number, const Moments<D>* sums,
                           Ends<D>* found) {
  int64_t part = thread_index();
  if (part > 1) return;
  Moments<D> end = part == 0 ? all.ends[rank()].head : all.ends[rank()].tail;
  if (chunks.chunks_of(part) > 0) end.take(number(), sums[chunks.starts[part]]);
  (part == 0 ? found->head : found->tail) = end;
}

template <int D, typename T>
void straddling_sums(Queue& queue, const StraddlingSums<D, T>& in) {
  TwoParts parts{queue.scratch<int32_t>(1), queue.scratch<int32_t>(2), queue.scratch<int32_t>(2)};
  queue.launch(1, 1, 0, find_ends, segments_of(in.grouped), in.head, parts);
  Chunks chunks = cut(queue, Segments{Count{parts.number, 2}, parts.count, parts.offset, in.grouped.rows()}, 0, 2, 0);
  AllEnds<D> all = all_ends(in.ends);
  PassNumber number{SumPass::masses, in.pass};
  Count me{in.ends.rank, all.ranks - 1};
  auto* sums = queue.scratch<Moments<D>>(chunks.most);
  queue.launch_over(2, know_ends<D>, chunks, all, me, sums);
  run_pass(queue, in.grouped.particles(), in.grouped.box, chunks, number, sums, queue.scratch<Moments<D>>(chunks.most));
  queue.launch_over(2, write_ends<D>, chunks, all, me, number, sums, reinterpret_cast<Ends<D>*>(in.found));
}

}  // namespace

JZTREE_KERNEL(straddling_sums, StraddlingSums);
JZTREE_KERNEL(catalogue, Catalogue);

}  // namespace jztree
