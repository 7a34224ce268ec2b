// The kernel that raises an error at run time. It returns a small argument unchanged. Later code uses the returned
// value, so the compiler cannot remove the check.
#pragma once

#include <string>
#include <string_view>

#include "common/arguments.h"

namespace jztree {

struct Check {
  Array<const int32_t> value;
  const int32_t* failed;         // the number of the sentence, from 1 on; 0: no error
  Array<const int32_t> numbers;  // values of {0}, {1}, ... in the sentence
  Array<int32_t> out;
  std::string_view sentences;  // one per line

  explicit Check(Arguments& in)
      : value(in.argument<int32_t>("value", {})),
        failed(in.number("failed")),
        numbers(in.argument<int32_t>("numbers", {any})),
        out(in.result<int32_t>("out", {})),
        sentences(in.attributes().text("sentence")) {}

  // which: the value of `failed`; values: the contents of `numbers`; both on the host.
  [[noreturn]] void raise(int32_t sentence, const int32_t* values) const {
    std::string filled(chosen(sentence));
    for (int64_t i = 0; i < numbers.rows(); ++i) {
      std::string mark = "{" + std::to_string(i) + "}", text = std::to_string(values[i]);
      for (size_t place = filled.find(mark); place != std::string::npos; place = filled.find(mark, place + text.size()))
        filled.replace(place, mark.size(), text);
    }
    throw Refusal(filled);
  }

 private:
  // Returns the last sentence if the number is too large.
  std::string_view chosen(int32_t sentence) const {
    std::string_view rest = sentences;
    size_t end = rest.find('\n');
    for (; sentence > 1 && end != std::string_view::npos; --sentence) {
      rest.remove_prefix(end + 1);
      end = rest.find('\n');
    }
    return rest.substr(0, end);
  }
};

}  // namespace jztree
