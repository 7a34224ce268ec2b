#include "check.h"

#include "common/cpu/context.h"

namespace jztree {
namespace {

void check(const Parallel&, const Check& in) {
  if (*in.failed != 0) in.raise(*in.failed, in.numbers);
  *in.out = *in.value;
}

}  // namespace

JZTREE_READING_KERNEL(check, Check);

}  // namespace jztree
