// The friends-of-friends catalogue: sums over groups (moments.h) of particles in group order.
//
// Groups hold from a handful to all particles. One of at most `rows_of_warp` rows is summed by one warp, which takes
// all three passes and writes the row of the catalogue: the particles come from memory once, and from the first-level
// cache after that. Larger groups, and the parts of groups that straddle ranks, are cut into chunks of `rows_of_block`
// rows. Each pass sums each chunk by one block, then the chunks of a group by one block.
//
// Lanes and threads take every 32nd or 256th row, and are added in a fixed order: sums have the same bits in every run,
// and depend on nothing but the group's own particles. They are rounded in another order than on the CPU.
//
// Bound by memory: each row of a listed group is read once if its group is small, and three times if not (masses only
// in the first pass). Work arrays: 4 bytes a row of the catalogue, and 2 sums (176 bytes each in 3D) a chunk.

#include <algorithm>
#include <cstdint>

#include "moments.h"
#include "common/cuda/arguments.cuh"
#include "common/cuda/primitives.cuh"
#include "common/cuda/queue.cuh"
#include "common/cuda/warp.cuh"

namespace jztree {
namespace {

// Not tuned on a GPU yet: a warp needs some 100 us for its largest group, a block less for a chunk.
constexpr int64_t rows_of_warp = 1024, rows_of_block = 8192;
constexpr int block_threads = 256;

// Which rows are in which group. Rows outside the particles are left out; nothing in this library asks for them.
struct Segments {
  Count groups;
  const int32_t *count, *offset;
  int64_t rows;

  __device__ int64_t inside(int64_t row) const { return row < 0 ? 0 : row < rows ? row : rows; }
  __device__ int64_t begin(int64_t group) const { return inside(offset[group]); }
  __device__ int64_t end(int64_t group) const { return inside(static_cast<int64_t>(offset[group]) + count[group]); }
  __device__ int64_t size(int64_t group) const { return end(group) - begin(group); }
};

// A run of rows that one block sums, and the chunks of the same group: `number` from `first` on.
struct Chunk {
  int64_t begin, end;
  int32_t group, first, number;
};

// The chunks of all groups of more than `alone` rows, one group after the other.
struct Chunks {
  Segments segments;
  int64_t alone, most;
  int32_t skipped;  // trailing groups that are not cut
  int32_t* starts;  // (rooms for groups + 1,): the first chunk of each group
  Chunk* list;      // (most,)

  __device__ int64_t groups() const { return segments.groups() - skipped; }
  __device__ int64_t chunks_of(int64_t group) const {
    int64_t size = group < groups() ? segments.size(group) : 0;
    return size > alone ? (size + rows_of_block - 1) / rows_of_block : 0;
  }
  __device__ int64_t total() const { return std::min<int64_t>(starts[segments.groups.rows], most); }

  // Chunks that begin a group stand for it.
  __device__ bool has(int64_t chunk) const { return chunk < total(); }
  __device__ bool begins_group(int64_t chunk) const { return has(chunk) && list[chunk].first == chunk; }
};

__global__ void count_chunks(Chunks chunks) {
  int64_t group = thread_index();
  if (group <= chunks.segments.groups.rows) chunks.starts[group] = static_cast<int32_t>(chunks.chunks_of(group));
}

// The group of a chunk is the last that starts no later; groups without chunks start where the next one does.
__global__ void list_chunks(Chunks chunks) {
  int64_t chunk = thread_index();
  if (!chunks.has(chunk)) return;
  int64_t first = 0, last = chunks.segments.groups.rows;
  while (first < last) {
    int64_t middle = (first + last) / 2;
    bool before = chunks.starts[middle] <= chunk;
    (before ? first : last) = before ? middle + 1 : middle;
  }
  int64_t group = std::max<int64_t>(0, first - 1), start = chunks.starts[group];
  int64_t begin = chunks.segments.begin(group) + (chunk - start) * rows_of_block, end = chunks.segments.end(group);
  chunks.list[chunk] = {begin, std::min(end, begin + rows_of_block), static_cast<int32_t>(group),
                        static_cast<int32_t>(start), static_cast<int32_t>(chunks.chunks_of(group))};
}

// A pass that the host knows, or one whose number is on the GPU.
struct PassNumber {
  SumPass known;
  const int32_t* given;

  __device__ SumPass operator()() const { return given ? static_cast<SumPass>(*given) : known; }
};

// The box lengths are on the GPU only.
template <int D, typename T>
__device__ GroupParticles<D, T> in_box(GroupParticles<D, T> particles, const Lengths& box) {
  for (int d = 0; d < D; ++d) particles.period[d] = box[d];
  return particles;
}

template <int D>
__device__ void reduce_warp(SumPass pass, Moments<D>& sums) {
  sums.change(
      pass, sums, [](double& mine, double) { mine = warp_sum(mine); },
      [](double& mine, double) { mine = warp_max(mine); });
}

// The sums of the block's threads, for its first thread.
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

// found[chunk]: what a pass finds in it. group[first chunk]: the sums of the passes before.
template <int D, typename T>
__global__ void sum_chunks(GroupParticles<D, T> rows, Lengths box, Chunks chunks, PassNumber number,
                           const Moments<D>* group, Moments<D>* found) {
  int64_t chunk = blockIdx.x;
  if (!chunks.has(chunk)) return;
  GroupParticles<D, T> particles = in_box(rows, box);
  Chunk here = chunks.list[chunk];
  SumPass pass = number();
  Moments<D> sums = particles.sum(pass, here.begin + threadIdx.x, here.end, block_threads, group[here.first]);
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

// Cuts the groups of more than `alone` rows, of which there can be `groups`, but not the last `skipped` ones.
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
  if (group >= chunks.groups() || chunks.segments.size(group) > chunks.alone) return;  // all lanes alike
  GroupParticles<D, T> particles = in_box(rows, box);
  int64_t begin = chunks.segments.begin(group), end = chunks.segments.end(group);
  Moments<D> sums{};
  if (begin < end) particles.place_of(begin, sums.first);
  for (SumPass pass : {SumPass::masses, SumPass::centres, SumPass::spreads}) {
    Moments<D> part = particles.sum(pass, begin + lane_index(), end, warp_size, sums);
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

// The last group, of which all ranks know the sum over its parts.
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
  auto* found = queue.scratch<Moments<D>>(chunks.most);
  for (SumPass pass : {SumPass::masses, SumPass::centres, SumPass::spreads})
    run_pass(queue, rows, box, chunks, PassNumber{pass, nullptr}, sums, found);
  queue.launch_over(chunks.most, write_large_groups<D, T>, rows, box, chunks, sums, columns);
}

// An empty mass or vel is one that the particles do not have; a mass of one element is shared by all.
template <int D, typename T>
bool read_particles(const ffi::AnyBuffer& pos, const ffi::AnyBuffer& mass, const ffi::AnyBuffer& vel,
                    GroupParticles<D, T>& particles) {
  int64_t n = pos.dimensions()[0];
  int64_t masses = static_cast<int64_t>(mass.element_count()), vels = static_cast<int64_t>(vel.element_count());
  particles.pos = pos.typed_data<T>();
  particles.mass = masses ? mass.typed_data<T>() : nullptr;
  particles.vel = vels ? vel.typed_data<T>() : nullptr;
  particles.shared_mass = masses == 1;
  return (masses <= 1 || masses == n) && (vels == 0 || vels == n * D) && mass.element_type() == pos.element_type() &&
         vel.element_type() == pos.element_type();
}

bool read_segments(const ffi::Buffer<ffi::S32>& ngroups, const ffi::Buffer<ffi::S32>& count,
                   const ffi::Buffer<ffi::S32>& offset, int64_t n, Segments& segments) {
  int64_t room = static_cast<int64_t>(count.element_count());
  segments = Segments{read_count(ngroups, room), count.typed_data(), offset.typed_data(), n};
  return static_cast<int64_t>(offset.element_count()) == room;
}

// words: (r, words of Ends), what all ranks found.
template <int D>
bool read_ends(const ffi::Buffer<ffi::U32>& words, AllEnds<D>& all) {
  all = {static_cast<const Ends<D>*>(words.untyped_data()), static_cast<int64_t>(words.size_bytes() / sizeof(Ends<D>))};
  return words.size_bytes() % sizeof(Ends<D>) == 0;
}

bool has_elements(const ffi::AnyBuffer& buffer, ffi::DataType type, int64_t elements) {
  return buffer.element_type() == type && static_cast<int64_t>(buffer.element_count()) == elements;
}

// known: empty, or what `straddling_sums` found on all ranks; the last group is then the sum over its parts.
ffi::Error catalogue(cudaStream_t stream, DeviceMemory scratch, ffi::AnyBuffer pos, ffi::AnyBuffer mass,
                     ffi::AnyBuffer vel, ffi::Buffer<ffi::S32> ngroups, ffi::Buffer<ffi::S32> count,
                     ffi::Buffer<ffi::S32> offset, ffi::AnyBuffer box, ffi::Buffer<ffi::U32> known,
                     ffi::Buffer<ffi::S32> rank, ffi::Result<ffi::Buffer<ffi::S32>> out_count,
                     ffi::Result<ffi::AnyBuffer> out_mass, ffi::Result<ffi::AnyBuffer> centre,
                     ffi::Result<ffi::AnyBuffer> size, ffi::Result<ffi::AnyBuffer> radius,
                     ffi::Result<ffi::AnyBuffer> shape, ffi::Result<ffi::AnyBuffer> velocity,
                     ffi::Result<ffi::AnyBuffer> dispersion, ffi::Result<ffi::AnyBuffer> rotation) {
  return dispatch<catalogue_dims>(pos, [&](auto type, auto dims) {
    using T = decltype(type);
    constexpr int D = decltype(dims)::value;
    GroupParticles<D, T> rows{};
    Segments segments{};
    Lengths lengths;
    AllEnds<D> all{};
    if (!read_particles(pos, mass, vel, rows) ||
        !read_segments(ngroups, count, offset, pos.dimensions()[0], segments) || !read_lengths(box, D, &lengths) ||
        !read_ends(known, all))
      return invalid("catalogue was called with arrays that do not fit together.");
    int64_t room = segments.groups.rows, speeds = rows.vel ? room : 0;
    auto fits = [&](auto& out, int64_t elements) { return has_elements(*out, pos.element_type(), elements); };
    if (static_cast<int64_t>(out_count->element_count()) != room || !fits(out_mass, room) || !fits(centre, room * D) ||
        !fits(size, room) || !fits(radius, room) || !fits(shape, room * D * D) || !fits(velocity, speeds * D) ||
        !fits(dispersion, speeds) || !fits(rotation, speeds * Pairs<D>::distinct))
      return invalid("catalogue was called with arrays that do not fit together.");
    if (room == 0) return ffi::Error::Success();
    Queue queue(stream, scratch);
    CatalogueColumns<D, T> columns{out_mass->typed_data<T>(),   centre->typed_data<T>(),  size->typed_data<T>(),
                                   radius->typed_data<T>(),     shape->typed_data<T>(),   velocity->typed_data<T>(),
                                   dispersion->typed_data<T>(), rotation->typed_data<T>()};
    for (auto* out : {&out_mass, &centre, &size, &radius, &shape, &velocity, &dispersion, &rotation})
      if ((*out)->element_count() > 0)
        queue.fill_bytes((*out)->template typed_data<T>(), 0, static_cast<int64_t>((*out)->element_count()));
    queue.copy(out_count->typed_data(), segments.count, room);
    Chunks chunks =
        cut(queue, segments, rows_of_warp, std::min(room, segments.rows / rows_of_warp), all.ranks > 0 ? 1 : 0);
    queue.launch_warps(room, sum_small_groups<D, T>, rows, lengths, chunks, columns);
    if (chunks.most > 0) sum_large_groups(queue, rows, lengths, chunks, columns);
    if (all.ranks > 0)
      queue.launch(1, 1, 0, write_last_group<D, T>, rows, lengths, segments.groups, all,
                   read_count(rank, all.ranks - 1), columns, out_count->typed_data());
    return ffi::Error::Success();
  });
}

// ---- straddling_sums ----

// This rank's parts of the groups at its ends: 0 is the head, 1 the tail.
struct TwoParts {
  int32_t *number, *count, *offset;
};

// head: the leading rows that continue the last group of the ranks before.
__global__ void find_ends(Segments segments, const int32_t* head, TwoParts parts) {
  int64_t groups = segments.groups(), leading = segments.inside(*head);
  if (groups > 0) leading = std::min(leading, segments.begin(0));
  *parts.number = 2;
  parts.offset[0] = 0;
  parts.count[0] = static_cast<int32_t>(leading);
  parts.offset[1] = groups > 0 ? segments.offset[groups - 1] : 0;
  parts.count[1] = groups > 0 ? segments.count[groups - 1] : 0;
}

// sums[first chunk of a part] = what all ranks know of its group.
template <int D>
__global__ void know_ends(Chunks chunks, AllEnds<D> all, Count rank, Moments<D>* sums) {
  int64_t part = thread_index();
  if (part > 1 || chunks.chunks_of(part) == 0) return;
  sums[chunks.starts[part]] = part == 0 ? all.head_group(rank()) : all.tail_group(rank());
}

// What this rank knows now: of parts that it does not have, nothing new.
template <int D>
__global__ void write_ends(Chunks chunks, AllEnds<D> all, Count rank, PassNumber number, const Moments<D>* sums,
                           Ends<D>* found) {
  int64_t part = thread_index();
  if (part > 1) return;
  Moments<D> end = part == 0 ? all.ends[rank()].head : all.ends[rank()].tail;
  if (chunks.chunks_of(part) > 0) end.take(number(), sums[chunks.starts[part]]);
  (part == 0 ? found->head : found->tail) = end;
}

// One of three passes over the rows of groups that straddle ranks. known: what all ranks have found in the passes
// before. head: the leading rows that continue the last group of the ranks before.
ffi::Error straddling_sums(cudaStream_t stream, DeviceMemory scratch, ffi::AnyBuffer pos, ffi::AnyBuffer mass,
                           ffi::AnyBuffer vel, ffi::Buffer<ffi::S32> ngroups, ffi::Buffer<ffi::S32> count,
                           ffi::Buffer<ffi::S32> offset, ffi::Buffer<ffi::S32> head, ffi::AnyBuffer box,
                           ffi::Buffer<ffi::S32> pass, ffi::Buffer<ffi::U32> known, ffi::Buffer<ffi::S32> rank,
                           ffi::Result<ffi::Buffer<ffi::U32>> found) {
  return dispatch<catalogue_dims>(pos, [&](auto type, auto dims) {
    using T = decltype(type);
    constexpr int D = decltype(dims)::value;
    GroupParticles<D, T> rows{};
    Segments segments{};
    Lengths lengths;
    AllEnds<D> all{};
    int64_t n = pos.dimensions()[0];
    if (!read_particles(pos, mass, vel, rows) || !read_segments(ngroups, count, offset, n, segments) ||
        !read_lengths(box, D, &lengths) || !read_ends(known, all) || all.ranks == 0 ||
        found->size_bytes() != sizeof(Ends<D>))
      return invalid("straddling_sums was called with arrays that do not fit together.");
    Queue queue(stream, scratch);
    TwoParts parts{queue.scratch<int32_t>(1), queue.scratch<int32_t>(2), queue.scratch<int32_t>(2)};
    queue.launch(1, 1, 0, find_ends, segments, head.typed_data(), parts);
    Chunks chunks = cut(queue, Segments{Count{parts.number, 2}, parts.count, parts.offset, n}, 0, 2, 0);
    PassNumber number{SumPass::masses, pass.typed_data()};
    Count me = read_count(rank, all.ranks - 1);
    auto* sums = queue.scratch<Moments<D>>(chunks.most);
    queue.launch_over(2, know_ends<D>, chunks, all, me, sums);
    run_pass(queue, rows, lengths, chunks, number, sums, queue.scratch<Moments<D>>(chunks.most));
    queue.launch_over(2, write_ends<D>, chunks, all, me, number, sums, static_cast<Ends<D>*>(found->untyped_data()));
    return ffi::Error::Success();
  });
}

}  // namespace

JZTREE_HANDLER(jztree_straddling_sums, straddling_sums);
JZTREE_HANDLER(jztree_catalogue, catalogue);

}  // namespace jztree
