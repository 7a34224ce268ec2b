// The k nearest candidates seen so far, for every query of a group.
#pragma once

#include <cstdint>

#include "common/cpu/candidate.h"
#include "common/cpu/leaf_distances.h"

namespace jztree {

template <typename T>
class KBest {
 public:
  using Key = Candidate<T>;
  virtual ~KBest() = default;
  // Clear all lists, for queries below `queries`. own: each query is its own first neighbour. Later candidates must not
  // contain the query itself.
  virtual void reset(int64_t queries, bool own) = 0;
  // Add candidates of a query; returns a bound that its k-th best does not exceed.
  virtual Key absorb(int64_t query, const Near<T>& near) = 0;
  // Write the k best of a query in order, no_candidate() if there are fewer. `sorted` has capacity for room_for(k).
  // Returns false, with meaningless output, if there were ties that this list cannot decide.
  virtual bool finish(int64_t query, Key* sorted) = 0;

  static int64_t room_for(int64_t k) { return k + 64; }
};

}  // namespace jztree
