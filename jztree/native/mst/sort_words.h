// The lexicographic order of rows of words. Rows that agree in all words keep their order.
#pragma once

#include "common/arguments.h"

namespace jztree {

struct SortWords {
  Array<const uint32_t> words;  // (m, 2 or 4 or more), the most significant word first; an even number
  Count num;
  int32_t* order;  // (m,), the first `num` rows in order, then all others

  explicit SortWords(Arguments& in)
      : words(in.argument<uint32_t>("words", {any, any})),
        num(in.count("num", words.rows())),
        order(in.result<int32_t>("order", {words.rows()})) {
    in.expect(width() > 0 && width() % 2 == 0, words, 2, "words", "of an even number of columns");
  }

  int64_t width() const { return words.dims[1]; }
};

// Two words as one number.
JZTREE_BOTH inline uint64_t word_pair(const uint32_t* words) { return uint64_t{words[0]} << 32 | words[1]; }

}  // namespace jztree
