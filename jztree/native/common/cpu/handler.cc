#include "common/handler.h"

#include <cstring>

#include "context.h"
#include "subnormals.h"

namespace jztree {

xla::ffi::Ffi* handler_of(const char* kernel, WorkOnCpu work) {
  auto call = [=](ffi::ThreadPool pool, ffi::RemainingArgs given, ffi::RemainingRets wanted, ffi::Dictionary values) {
    KeepSubnormals kept;
    return guarded([&] {
      GivenAttributes attributes(values);
      Arguments arguments = read_call(kernel, given, wanted, attributes);
      // Results are fresh memory, and many are written in random order.
      for (const Buffer& result : arguments.all_results())
        prefer_huge_pages(result.data, static_cast<size_t>(result.bytes()));
      work(Parallel(pool), arguments);
    });
  };
  return ffi::Ffi::Bind()
      .Ctx<ffi::ThreadPool>()
      .RemainingArgs()
      .RemainingRets()
      .Attrs<ffi::Dictionary>()
      .To(call)
      .release();
}

void continue_results(const Arguments& arguments) {
  for (const auto& [old, result] : arguments.continued())
    if (old->data != result->data) std::memcpy(result->data, old->data, static_cast<size_t>(old->bytes()));
}

}  // namespace jztree
