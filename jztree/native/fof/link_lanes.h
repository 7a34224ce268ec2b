// Linking lengths of a block of lanes, see link_rule.h.
#pragma once

#include "common/cpu/lanes.h"
#include "link_rule.h"

namespace jztree {

// The squared distances above which particles are not linked. half: of one of them; others: of a block of the others.
template <int D, typename T>
inline Lanes<T> possibly_linked2(const LinkRule<D, T>& rule, typename LinkRule<D, T>::Half,
                                 const typename LinkRule<D, T>::Half*) {
  return Lanes<T>(rule.possibly2);
}
template <int D, typename T>
inline Lanes<T> possibly_linked2(const MeanLinkRule<D, T>& rule, T half, const T* halves) {
  Lanes<T> other;
  load(halves, other);
  return possibly_within2<D, T>(other + Lanes<T>(half), rule);
}

}  // namespace jztree
