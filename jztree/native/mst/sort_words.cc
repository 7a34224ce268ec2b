// Rows are items of EdgeSort: the first two words are the first key, the next two words the second one.

#include "sort_words.h"

#include <algorithm>
#include <cstdint>

#include "common/cpu/context.h"
#include "edge_sort.h"

namespace jztree {
namespace {

class RowList {
 public:
  explicit RowList(const SortWords& in) : words_(in.words), width_(in.width()) {}

  uint64_t weight(int64_t row) const { return word_pair(words_ + row * width_); }
  Edge operator[](int64_t row) const { return {weight(row), static_cast<uint64_t>(row)}; }
  uint64_t second(const Link& link) const {
    return width_ > 2 ? word_pair(words_ + static_cast<int64_t>(link.bits) * width_ + 2) : 0;
  }
  void order_equal(CacheSort::Item* begin, CacheSort::Item* end, const Edge* part) const {
    std::sort(begin, end, [&](const CacheSort::Item& a, const CacheSort::Item& b) {
      const auto row = static_cast<int64_t>(part[a.index].link.bits),
                 other = static_cast<int64_t>(part[b.index].link.bits);
      const uint32_t *words = words_ + row * width_, *others = words_ + other * width_;
      for (int64_t i = 0; i < width_; ++i)
        if (words[i] != others[i]) return words[i] < others[i];
      return row < other;
    });
  }

 private:
  const uint32_t* words_;
  int64_t width_;
};

void sort_words(const Parallel& parallel, const SortWords& in) {
  const int64_t num = in.num();
  const RowList rows(in);
  if (num > 0) {
    EdgeSort<RowList>(parallel, rows, num)
        .run([&](const Link& link) { return rows.second(link); },
             [&](int64_t place, const Edge& edge) { in.order[place] = static_cast<int32_t>(edge.link.bits); });
  }
  for (int64_t row = num; row < in.words.rows(); ++row) in.order[row] = static_cast<int32_t>(row);
}

}  // namespace

JZTREE_PLAIN_KERNEL(sort_words, SortWords);

}  // namespace jztree
