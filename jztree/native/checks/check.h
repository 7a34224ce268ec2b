// The kernel that raises at run time. It hands a small value through, which everything after it needs, so that the
// compiler cannot drop it.
#pragma once

#include <string>
#include <string_view>

#include "common/arguments.h"

namespace jztree {

struct Check {
  Array<const int32_t> value;
  const int32_t* failed;         // the number, from 1 on, of the sentence; 0: nothing is wrong
  Array<const int32_t> numbers;  // what {0}, {1}, ... in the sentence stand for
  Array<int32_t> out;
  std::string_view sentences;  // a line each

  explicit Check(Arguments& in)
      : value(in.argument<int32_t>("value", {})),
        failed(in.number("failed")),
        numbers(in.argument<int32_t>("numbers", {any})),
        out(in.result<int32_t>("out", {})),
        sentences(in.attributes().text("sentence")) {}

  // which: what `failed` holds, and values: what `numbers` hold, on the host.
  [[noreturn]] void raise(int32_t which, const int32_t* values) const {
    std::string filled(chosen(which));
    for (int64_t i = 0; i < numbers.rows(); ++i) {
      std::string mark = "{" + std::to_string(i) + "}", text = std::to_string(values[i]);
      for (size_t at = filled.find(mark); at != std::string::npos; at = filled.find(mark, at + text.size()))
        filled.replace(at, mark.size(), text);
    }
    throw Refusal(filled);
  }

 private:
  // The last sentence for a number that none has.
  std::string_view chosen(int32_t which) const {
    std::string_view rest = sentences;
    size_t end = rest.find('\n');
    for (; which > 1 && end != std::string_view::npos; --which) {
      rest.remove_prefix(end + 1);
      end = rest.find('\n');
    }
    return rest.substr(0, end);
  }
};

}  // namespace jztree
