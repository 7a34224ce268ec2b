// The check of lengths that are known only at run time. It hands them through, as `check` does its value.

#include <string>
#include <utility>
#include <vector>

#include "common/lengths.h"
#include "common/cuda/arguments.cuh"
#include "common/cuda/host_copy.cuh"
#include "common/cuda/queue.cuh"

namespace jztree {
namespace {

__global__ void sum_words(Lengths lengths, int64_t count, double* sums) {
  if (thread_index() < count) sums[thread_index()] = lengths[thread_index()];
}

std::vector<double> numbers(Queue& queue, const Lengths& lengths, int64_t count) {
  double* sums = queue.scratch<double>(count);
  queue.launch_over(count, sum_words, lengths, count, sums);
  return to_host(queue, sums, count);
}

// rlink: one linking length, or nothing.
ffi::Error lengths(cudaStream_t stream, DeviceMemory scratch, ffi::AnyBuffer box, ffi::AnyBuffer rlink,
                   ffi::Result<ffi::AnyBuffer> checked_box, ffi::Result<ffi::AnyBuffer> checked_rlink) {
  return guarded([&] {
    Lengths period, length;
    auto dims = box.dimensions();
    bool linked = rlink.element_count() > 0;
    if (dims.size() != 2 || dims[0] > max_dims || !read_lengths(box, dims[0], &period) ||
        checked_box->size_bytes() != box.size_bytes() || checked_rlink->size_bytes() != rlink.size_bytes() ||
        (linked && !read_lengths(rlink, 1, &length)))
      return invalid("lengths was called with arrays that do not fit together.");
    Queue queue(stream, scratch);
    std::vector<double> sides = numbers(queue, period, dims[0]);
    if (std::string wrong = check_box(sides.data(), dims[0]); !wrong.empty()) return invalid(wrong);
    if (linked) {
      double link = numbers(queue, length, 1)[0];
      if (std::string wrong = check_rlink(link, sides.data(), dims[0]); !wrong.empty()) return invalid(wrong);
    }
    for (auto [from, to] : {std::pair{&box, &checked_box}, std::pair{&rlink, &checked_rlink}})
      queue.copy(static_cast<char*>((*to)->untyped_data()), static_cast<const char*>(from->untyped_data()),
                 static_cast<int64_t>(from->size_bytes()));
    return ffi::Error::Success();
  });
}

}  // namespace

JZTREE_HANDLER(jztree_lengths, lengths);

}  // namespace jztree
