// A hierarchy as handlers receive it.
#pragma once

#include <cstdint>
#include <optional>

#include "handler.h"
#include "staged_tree.h"

namespace jztree {

// The arrays of a hierarchy over positions (n, D) of type T; nothing if shapes or dtypes do not fit together. Whether
// the values do, jztree_belongs finds out.
template <int D, typename T>
std::optional<TreeArrays<D, T>> read_tree(const ffi::AnyBuffer& pos, const ffi::Buffer<ffi::S32>& num,
                                          const ffi::Buffer<ffi::S32>& splits,
                                          const ffi::Buffer<ffi::S32>& particle_splits, const ffi::AnyBuffer& lower,
                                          const ffi::AnyBuffer& upper, ffi::Span<const int64_t> plane_sizes) {
  TreeLayout layout(plane_sizes);
  auto shape = pos.dimensions();
  auto fits = [](const auto& buffer, int64_t count) { return static_cast<int64_t>(buffer.element_count()) == count; };
  if (shape.size() != 2 || shape[1] != D || pos.element_type() != (sizeof(T) == sizeof(float) ? ffi::F32 : ffi::F64) ||
      lower.element_type() != pos.element_type() || upper.element_type() != pos.element_type() ||
      !fits(splits, layout.splits()) || !fits(particle_splits, layout.splits()) || !fits(lower, layout.nodes() * D) ||
      !fits(upper, layout.nodes() * D))
    return std::nullopt;
  return TreeArrays<D, T>{pos.typed_data<T>(),
                          read_count(num, shape[0]),
                          splits.typed_data(),
                          particle_splits.typed_data(),
                          lower.typed_data<T>(),
                          upper.typed_data<T>(),
                          layout};
}

}  // namespace jztree
