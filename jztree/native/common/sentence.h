// Sentences with numbers that are known at run time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace jztree {

// Replaces {0}, {1}, ... by the numbers.
inline std::string filled(std::string sentence, const int32_t* numbers, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    std::string mark = "{" + std::to_string(i) + "}", text = std::to_string(numbers[i]);
    for (size_t at = sentence.find(mark); at != std::string::npos; at = sentence.find(mark, at + text.size()))
      sentence.replace(at, mark.size(), text);
  }
  return sentence;
}

}  // namespace jztree
