// A warp takes a node of the first set and walks both hierarchies (pair_walk.cuh). Counts are integers, and are summed
// in any order. With weights, each warp takes the same nodes in every run and has a separate table of sums. The tables
// are summed in the order of the nodes.

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "common/cuda/context.cuh"
#include "common/cuda/share.cuh"
#include "pair_walk.cuh"

namespace jztree {
namespace {

constexpr int pair_threads = 64;
// This number of nodes is enough to keep a GPU busy until the end.
constexpr int64_t enough_nodes = 1 << 14;
// Tables of sums take at most this much memory, if it is enough for the minimum number of warps.
constexpr int64_t most_table_bytes = int64_t{1} << 25, least_tables = 128, most_tables = 4096;

template <PairMode Mode, int D, typename T>
__global__ void __launch_bounds__(pair_threads, 8)
    tally_pairs(const __grid_constant__ PairProblem<D, T> in, const __grid_constant__ PairTotals totals) {
  using Walk = PairWalk<Mode, D, T>;
  alignas(16) __shared__ unsigned char memory[sizeof(PairSetup<D, T>)];
  const PairSetup<D, T>& setup = share_setup(in.setup, memory);
  int64_t task = thread_index() / warp_size;
  if (task >= in.tasks) return;
  int tally_bytes = PairTally::shared_bytes(totals), bytes = tally_bytes + Walk::shared_bytes(in);
  unsigned char* shared = dynamic_shared() + static_cast<int>(threadIdx.x) / warp_size * bytes;
  PairTally tally(totals, shared, task);
  Walk walk(in, setup, shared + tally_bytes);
  int64_t end = in.nodes * (task + 1) / in.tasks;
  for (int64_t node = in.nodes * task / in.tasks; node < end; ++node)
    walk.run(static_cast<uint32_t>(in.one.tree.starts[in.plane] + node), tally);
  tally.leave();
}

// Each pair of one set was found once, but counts in both orders.
__global__ void count_both_orders(unsigned long long* count, int64_t number) {
  int64_t i = thread_index();
  if (i < number) count[i] *= 2;
}

__global__ void add_tables(const double* sum, int64_t tables, int64_t number, double orders, SumWords words) {
  int64_t i = thread_index();
  if (i >= number) return;
  double total = 0;
  for (int64_t table = 0; table < tables; ++table) total += sum[table * number + i];
  words.put(i, orders * total);
}

template <PairMode Mode, int D, typename T>
void launch_pairs(Queue& queue, const PairProblem<D, T>& problem, const PairTotals& totals) {
  int bytes = PairTally::shared_bytes(totals) + PairWalk<Mode, D, T>::shared_bytes(problem);
  queue.launch_warps(problem.tasks, bytes, pair_threads, tally_pairs<Mode, D, T>, problem, totals);
}

template <int D, typename T>
void launch_mode(Queue& queue, PairMode mode, const PairProblem<D, T>& problem, const PairTotals& totals) {
  if (mode == PairMode::distance) return launch_pairs<PairMode::distance>(queue, problem, totals);
  if constexpr (D == 2 || D == 3) {
    if (mode == PairMode::across_along) return launch_pairs<PairMode::across_along>(queue, problem, totals);
    return launch_pairs<PairMode::distance_cosine>(queue, problem, totals);
  }
  throw Refusal("counts along a line of sight need 2 or 3 dimensions.");
}

// Distribute the nodes of a plane to warps.
template <int D, typename T>
void deal_out(PairProblem<D, T>& problem, const TreeLayout& layout, int64_t most_tasks) {
  problem.plane = layout.planes() - 1;
  while (problem.plane > 0 && layout.sizes[static_cast<size_t>(problem.plane)] < enough_nodes) --problem.plane;
  problem.nodes = layout.sizes[static_cast<size_t>(problem.plane)];
  problem.tasks = std::min(problem.nodes, most_tasks);
}

template <int D, typename T>
void pair_counts(Queue& queue, const PairCounts<D, T>& in) {
  int64_t number = in.rows() * in.bins();
  PairProblem<D, T> problem = set_up(queue, in);
  int64_t tables = std::max(std::min(most_table_bytes / (number * 8), most_tables), least_tables);
  deal_out(problem, in.one.tree.layout, in.weighted() ? tables : problem.one.tree.num.rows + 1);
  tables = problem.tasks;
  PairTotals totals{reinterpret_cast<unsigned long long*>(in.count.data),
                    in.weighted() ? queue.scratch<double>(tables * number) : nullptr,
                    in.rows(),
                    in.bins(),
                    static_cast<int>(in.second_bins()),
                    in.bins() <= PairTally::most_shared_bins};
  queue.fill_bytes(totals.count, 0, number);
  if (in.weighted()) queue.fill_bytes(totals.sum, 0, tables * number);
  launch_mode(queue, in.mode, problem, totals);
  if (in.self) queue.launch_over(number, count_both_orders, totals.count, number);
  if (in.weighted())
    queue.launch_over(number, add_tables, totals.sum, tables, number, in.self ? 2. : 1., in.sum_words());
}

}  // namespace

JZTREE_KERNEL(pair_counts, PairCounts);

}  // namespace jztree
