// Kernels on the CPU. What they work with is `Parallel`, loops on XLA's threads.
#pragma once

#include <cstring>

#include "common/kernel.h"
#include "memory.h"
#include "parallel.h"
#include "subnormals.h"

namespace jztree {

template <typename Interface, typename Work>
ffi::Error run_on_cpu(const char* kernel, ffi::ThreadPool& pool, const ffi::RemainingArgs& given,
                      const ffi::RemainingRets& wanted, const ffi::Dictionary& attributes, const Work& work) {
  KeepSubnormals kept;
  return guarded([&] {
    Arguments arguments = read_call(kernel, given, wanted, attributes);
    // Results are fresh memory, and many are written in random order.
    for (const Buffer& result : arguments.all_results())
      prefer_huge_pages(result.data, static_cast<size_t>(result.bytes()));
    Parallel parallel(pool);
    Interface::run(arguments, [&](const auto& in) {
      for (const auto& [old, result] : arguments.continued())
        if (old->data != result->data) std::memcpy(result->data, old->data, static_cast<size_t>(old->bytes()));
      work(parallel, in);
    });
  });
}

}  // namespace jztree

// The traits matter on GPUs only.
#define JZTREE_BACKEND_KERNEL(name, Runner, traits)                                                                  \
  static jztree::ffi::Error call_##name(jztree::ffi::ThreadPool pool, jztree::ffi::RemainingArgs given,              \
                                        jztree::ffi::RemainingRets wanted, jztree::ffi::Dictionary attributes) {     \
    return jztree::run_on_cpu<Runner>(#name, pool, given, wanted, attributes,                                        \
                                      [](const jztree::Parallel& parallel, const auto& in) { name(parallel, in); }); \
  }                                                                                                                  \
  JZTREE_DEFINE_SYMBOL(name, call_##name,                                                                            \
                       jztree::ffi::Ffi::Bind()                                                                      \
                           .Ctx<jztree::ffi::ThreadPool>()                                                           \
                           .RemainingArgs()                                                                          \
                           .RemainingRets()                                                                          \
                           .Attrs<jztree::ffi::Dictionary>());                                                       \
  static const jztree::Registered registered_##name(#name)
