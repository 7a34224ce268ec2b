// Sentences that are chosen, and whose numbers are known, at run time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

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

// Line number ``which``, from 1 on, of sentences that are a line each; the last for a larger number.
inline std::string chosen(std::string_view sentences, int32_t which) {
  size_t end = sentences.find('\n');
  for (; which > 1 && end != std::string_view::npos; --which) {
    sentences.remove_prefix(end + 1);
    end = sentences.find('\n');
  }
  return std::string(sentences.substr(0, end));
}

}  // namespace jztree
