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
  // Forgets everything; queries below `queries` can be used from then on. own: each is its own first neighbour.
  // None is among the candidates that follow.
  virtual void reset(int64_t queries, bool own) = 0;
  // Takes candidates of a query; returns a bound that its k-th best does not exceed.
  virtual Key absorb(int64_t query, const Near<T>& near) = 0;
  // Writes the k best of a query in order, no_candidate() where there are fewer. There is room for room_for(k).
  // Returns false if there were ties that this list cannot decide; what is written then means nothing.
  virtual bool finish(int64_t query, Key* sorted) = 0;

  static int64_t room_for(int64_t k) { return k + 64; }
};

}  // namespace jztree
