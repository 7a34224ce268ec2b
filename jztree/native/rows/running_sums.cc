#include "running_sums.h"

#include <algorithm>
#include <cstdint>

#include "common/cpu/context.h"

namespace jztree {
namespace {

void running_sums(const Parallel& parallel, const RunningSums& in) {
  in.with_type([&](auto zero) {
    using T = decltype(zero);
    const T* values = static_cast<const T*>(in.values.data);
    T* sums = static_cast<T*>(in.sums.data);
    auto place = [&](int64_t list) { return std::clamp<int64_t>(in.splits[list], 0, in.entries()); };
    parallel.blocks(in.lists(), 64, [&](int64_t begin, int64_t end) {
      for (int64_t list = begin; list < end; ++list) {
        double sum = 0;
        for (int64_t i = place(list); i < place(list + 1); ++i) {
          sum += static_cast<double>(values[i]);
          sums[i] = static_cast<T>(sum);
        }
      }
    });
    std::fill(sums, sums + place(0), zero);
    std::fill(sums + place(in.lists()), sums + in.entries(), zero);
  });
}

}  // namespace

JZTREE_PLAIN_KERNEL(running_sums, RunningSums);

}  // namespace jztree
