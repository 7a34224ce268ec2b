// The numbers of dimensions.
#pragma once

namespace jztree {

constexpr int max_dims = 8;

// A bit mask of the numbers of dimensions to compile a kernel for: bit d for d dimensions.
constexpr unsigned dims_up_to(int most) { return (2u << most) - 2; }
// Rows of 4 to 7 dimensions are padded with zeros to 8. This changes no distance and halves the compile time.
constexpr unsigned padded_dims = dims_up_to(3) | 1u << max_dims;

}  // namespace jztree
