#include <vector>

#include "common/cuda/context.cuh"
#include "common/cuda/host_copy.cuh"
#include "lengths.h"

namespace jztree {
namespace {

// The sides; then the linking length, if it is given.
__global__ void sum_words(Lengths sides, int64_t dims, Lengths link, int64_t count, double* sums) {
  int64_t i = thread_index();
  if (i < count) sums[i] = i < dims ? sides[i] : link[i - dims];
}

void lengths(Queue& queue, const CheckedLengths& in) {
  int64_t count = in.dims + (in.linked ? 1 : 0);
  double* sums = queue.scratch<double>(count);
  queue.launch_over(count, sum_words, in.period, in.dims, in.length, count, sums);
  std::vector<double> host = to_host(queue, sums, count);
  in.expect_valid(host.data(), in.linked ? &host.back() : nullptr);
  queue.copy(static_cast<char*>(in.checked_box.data), static_cast<const char*>(in.box.data), in.box.bytes());
  queue.copy(static_cast<char*>(in.checked_linking.data), static_cast<const char*>(in.linking.data),
             in.linking.bytes());
}

}  // namespace

JZTREE_READING_KERNEL(lengths, CheckedLengths);

}  // namespace jztree
