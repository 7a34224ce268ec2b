#include "lengths.h"

#include <cstring>

#include "common/cpu/context.h"

namespace jztree {
namespace {

void lengths(const Parallel&, const CheckedLengths& in) {
  double sides[max_dims];
  for (int64_t d = 0; d < in.dims; ++d) sides[d] = in.period[d];
  double link = in.linked ? in.length[0] : 0;
  in.expect_valid(sides, in.linked ? &link : nullptr);
  std::memcpy(in.checked_box.data, in.box.data, static_cast<size_t>(in.box.bytes()));
  std::memcpy(in.checked_linking.data, in.linking.data, static_cast<size_t>(in.linking.bytes()));
}

}  // namespace

JZTREE_READING_KERNEL(lengths, CheckedLengths);

}  // namespace jztree
