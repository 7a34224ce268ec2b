// Distributes the spheres to warps and blocks; overdensity_search.cuh has the search.
//
// Spheres hold from 20 particles to nearly all. First a warp searches each centre and lists the particles of a shell in
// shared memory. It gives up if a shell has more than 512 particles; spheres of a few thousand particles have smaller
// shells. Blocks with lists in global memory process the remaining centres. If a shell does not fit these lists, its
// centre goes to fewer, larger blocks with longer lists. So the lists take only a few times the memory of the
// positions. These blocks divide shells if necessary. Centres are distributed one by one, because some take 10^5 times
// as long as others.
//
// The cost is that of a tree walk per shell and of sorting the particles in the spheres. The largest sphere sets a
// lower limit, because one warp adds its masses one by one. Masses are added in the CPU's order with the CPU's
// formulas, so the results have the same bits.

#include <algorithm>
#include <cstdint>

#include "common/cuda/context.cuh"
#include "common/cuda/tree.cuh"
#include "overdensity.h"
#include "overdensity_search.cuh"

namespace jztree {
namespace {

template <int D>
__global__ void sort_thresholds(Lengths density, int64_t count, double* factor, int32_t* column) {
  if (thread_index() < count) place_threshold<D>(density, count, thread_index(), factor, column);
}

// Centres that are distributed to blocks.
struct Centres {
  int64_t capacity;      // their largest number
  const int32_t* count;  // their number; null: `capacity`
  const int32_t* rows;   // null: every centre in order
  int32_t* taken;

  __device__ int64_t number() const { return count ? *count : capacity; }
  __device__ int64_t row(int64_t place) const { return rows ? rows[place] : place; }
};

// Centres whose lists were too short.
struct LeftOver {
  int32_t *count, *rows;
};

template <int D, typename T, int Threads, int Sorted>
__global__ void __launch_bounds__(Threads) search_spheres(const __grid_constant__ SphereProblem<D, T> problem,
                                                          Centres centres, SphereLists lists, LeftOver left) {
  __shared__ SphereMemory<D, T, Threads> memory;
  static_assert(sizeof(memory) <= most_declared_shared, "a launch assumes less");
  auto* sorted = reinterpret_cast<NearKey*>(dynamic_shared());
  Span* stack = lists.keys ? lists.stacks + span_stack(Threads, problem.tree.planes) * blockIdx.x
                           : reinterpret_cast<Span*>(sorted + Sorted);
  SphereSearch<D, T, Threads, Sorted> search(problem, lists, memory, sorted, stack);
  while (true) {
    __syncthreads();
    if (threadIdx.x == 0) memory.place = atomicAdd(centres.taken, 1);
    __syncthreads();
    int64_t place = memory.place;
    if (place >= centres.number()) return;
    int64_t row = centres.row(place);
    if (threadIdx.x == 0) problem.rows.clear(row, problem.thresholds.count);
    if (!(problem.nearest[row] >= 0) || search.answer(row) || threadIdx.x != 0) continue;
    left.rows[atomicAdd(left.count, 1)] = static_cast<int32_t>(row);
  }
}

// The blocks of a launch, and their resources.
template <int ThreadCount, int SortedCount, int MostBlocks>
struct Team {
  static constexpr int threads = ThreadCount, sorted = SortedCount, most_blocks = MostBlocks;

  static int64_t blocks(int64_t centres) { return std::min<int64_t>(centres, most_blocks); }
  static int64_t room(int64_t centres, int64_t rows, int64_t bytes) {
    constexpr int64_t min_room = 4096, two_lists = 2 * sizeof(NearKey);
    return std::min(rows, std::max(min_room, bytes / blocks(centres) / two_lists));
  }
};
// Not tuned on a GPU yet.
using Warps = Team<warp_size, 512, 8192>;
using Blocks = Team<256, 1024, 512>;
using LargeBlocks = Team<512, 1024, 32>;

template <typename Team, int D, typename T>
void launch_team(Queue& queue, const SphereProblem<D, T>& problem, const Centres& centres, const SphereLists& lists,
                 const LeftOver& left) {
  size_t bytes = Team::sorted * sizeof(NearKey);
  if (!lists.keys) bytes += static_cast<size_t>(span_stack(Team::threads, problem.tree.planes)) * sizeof(Span);
  queue.launch(Team::blocks(centres.capacity), Team::threads, bytes, search_spheres<D, T, Team::threads, Team::sorted>,
               problem, centres, lists, left);
}

template <int D, typename T>
void search_all(Queue& queue, const SphereProblem<D, T>& problem, int64_t q) {
  int64_t rows = problem.tree.num.rows, list_bytes = 4 * rows * D * static_cast<int64_t>(sizeof(T));
  int64_t room = Blocks::room(q, rows, list_bytes), large_room = LargeBlocks::room(q, rows, list_bytes);
  int64_t stack = span_stack(Blocks::threads, problem.tree.planes);
  int64_t large_stack = span_stack(LargeBlocks::threads, problem.tree.planes);
  // Successive launches share this memory.
  int64_t blocks = Blocks::blocks(q), large_blocks = LargeBlocks::blocks(q);
  auto* keys = queue.scratch<NearKey>(2 * std::max(blocks * room, large_blocks * large_room));
  auto* stacks = queue.scratch<Span>(std::max(blocks * stack, large_blocks * large_stack));
  // The number of centres that each team has taken, and left to the next one.
  int32_t *taken = queue.scratch<int32_t>(5), *left = taken + 3;
  queue.fill_bytes(taken, 0, 5);
  auto *large = queue.scratch<int32_t>(q), *largest = queue.scratch<int32_t>(q);
  launch_team<Warps>(queue, problem, Centres{q, nullptr, nullptr, taken},
                     SphereLists{Warps::sorted, false, nullptr, nullptr}, LeftOver{left, large});
  launch_team<Blocks>(queue, problem, Centres{q, left, large, taken + 1}, SphereLists{room, false, keys, stacks},
                      LeftOver{left + 1, largest});
  launch_team<LargeBlocks>(queue, problem, Centres{q, left + 1, largest, taken + 2},
                           SphereLists{large_room, true, keys, stacks}, LeftOver{});
}

template <int D, typename T>
void overdensity(Queue& queue, const Overdensity<D, T>& in) {
  if (in.q() == 0) return;
  auto* factors = queue.scratch<double>(in.m());
  auto* columns = queue.scratch<int32_t>(in.m());
  queue.launch_over(in.m(), sort_thresholds<D>, in.density, in.m(), factors, columns);
  SphereProblem<D, T> problem{on_device(in.tree),         in.masses(),  in.centre, in.nearest, in.box,
                              {factors, columns, in.m()}, in.min_count, in.rows};
  search_all(queue, problem, in.q());
}

}  // namespace

JZTREE_KERNEL(overdensity, Overdensity);

}  // namespace jztree
