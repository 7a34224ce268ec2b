// The k nearest candidates seen so far, for every query of a group.
#pragma once

#include <cstdint>

#include "common/cpu/candidate.h"

namespace jztree {

template <typename T>
class KBest {
 public:
  using Key = Candidate<T>;
  virtual ~KBest() = default;
  // Forgets everything; queries below `queries` can be used from then on.
  virtual void reset(int64_t queries) = 0;
  // Takes candidates of a query; returns a bound that its k-th best does not exceed.
  virtual Key absorb(int64_t query, const Key* candidates, int64_t count) = 0;
  // Writes the k best of a query in order, no_candidate() where there are fewer.
  virtual void finish(int64_t query, Key* sorted) = 0;
};

}  // namespace jztree
