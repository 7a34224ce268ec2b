// The check of lengths that are known only at run time. It hands them through, as `check` does its value.

#include "common/lengths.h"

#include <cstring>
#include <string>

#include "common/cpu/handler.h"

namespace jztree {
namespace {

// rlink: one linking length, or nothing.
ffi::Error lengths(ffi::AnyBuffer box, ffi::AnyBuffer rlink, ffi::Result<ffi::AnyBuffer> checked_box,
                   ffi::Result<ffi::AnyBuffer> checked_rlink) {
  double period[max_dims], length = 0;
  auto dims = box.dimensions();
  if (dims.size() != 2 || dims[0] > max_dims || !read_exact(box, dims[0], period) ||
      checked_box->size_bytes() != box.size_bytes() || checked_rlink->size_bytes() != rlink.size_bytes() ||
      (rlink.element_count() > 0 && !read_exact(rlink, 1, &length)))
    return invalid("lengths was called with arrays that do not fit together.");
  if (std::string wrong = check_box(period, dims[0]); !wrong.empty()) return invalid(wrong);
  if (rlink.element_count() > 0) {
    if (std::string wrong = check_rlink(length, period, dims[0]); !wrong.empty()) return invalid(wrong);
    std::memcpy(checked_rlink->untyped_data(), rlink.untyped_data(), rlink.size_bytes());
  }
  std::memcpy(checked_box->untyped_data(), box.untyped_data(), box.size_bytes());
  return ffi::Error::Success();
}

}  // namespace

JZTREE_HANDLER(jztree_lengths, lengths);

}  // namespace jztree
