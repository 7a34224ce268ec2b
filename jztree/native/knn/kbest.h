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
  // Clear the lists of the first `queries` queries. self_first: each query is its own first neighbour. Candidates that
  // are added later must not contain the query itself.
  virtual void reset(int64_t queries, bool self_first) = 0;
  // Add candidates of a query. Returns an upper bound of its k-th best candidate.
  virtual Key absorb(int64_t query, const Near<T>& near) = 0;
  // Write the k best candidates of a query in order, followed by no_candidate() if it has fewer. `sorted` has capacity
  // for room_for(k). Returns false, with meaningless output, if this list cannot decide a tie.
  virtual bool finish(int64_t query, Key* sorted) = 0;

  static int64_t room_for(int64_t k) { return 2 * k + 64; }
};

}  // namespace jztree
