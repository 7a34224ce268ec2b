#include "common/handler.h"

#include <algorithm>
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

void* CpuRowPadder::memory(int64_t bytes) {
  memory_.emplace_back(bytes);
  return memory_.back().get();
}

void CpuRowPadder::copy_rows(const void* source, int64_t from, void* target, int64_t to, int64_t rows) {
  const auto common = static_cast<size_t>(std::min(from, to)), more = static_cast<size_t>(to) - common;
  parallel_.blocks(rows, 1 << 12, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      char* at = static_cast<char*>(target) + row * to;
      std::memcpy(at, static_cast<const char*>(source) + row * from, common);
      std::memset(at + common, 0, more);
    }
  });
}

void continue_results(const Arguments& arguments) {
  for (const auto& [old, result] : arguments.continued())
    if (old->data != result->data) std::memcpy(result->data, old->data, static_cast<size_t>(old->bytes()));
}

}  // namespace jztree
