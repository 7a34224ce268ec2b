#include "check.h"
#include "common/cuda/context.cuh"
#include "common/cuda/host_copy.cuh"

namespace jztree {
namespace {

void check(Queue& queue, const Check& in) {
  queue.copy(in.out.data, in.value.data, 1);
  int32_t sentence = to_host(queue, in.failed, 1)[0];
  if (sentence != 0) in.raise(sentence, to_host(queue, in.numbers.data, in.numbers.rows()).data());
}

}  // namespace

JZTREE_READING_KERNEL(check, Check);

}  // namespace jztree
