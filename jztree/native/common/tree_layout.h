// How the planes of a hierarchy are stored in flat arrays.
//
// Plane 0 holds the leaves; every higher plane groups runs of nodes of the plane below. The planes are stored one after
// the other. Splits have one entry more than the plane has nodes: node i covers the nodes from splits[i] up to splits[i
// + 1] of the plane below (the particles, for plane 0). So each earlier plane shifts a plane's splits by one extra
// place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "arguments.h"

namespace jztree {

// More planes than 2^31 rows can have: each plane has at most about half the nodes of the plane below.
constexpr int most_planes = 32;

struct TreeLayout {
  std::vector<int64_t> sizes;   // number of nodes in each plane
  std::vector<int64_t> starts;  // first node of each plane in the flat arrays

  // sizes_of_planes: any type with size() and operator[].
  template <typename Sizes>
  explicit TreeLayout(const Sizes& sizes_of_planes) {
    int64_t start = 0;
    for (size_t p = 0; p < sizes_of_planes.size(); ++p) {
      sizes.push_back(static_cast<int64_t>(sizes_of_planes[p]));
      starts.push_back(start);
      start += sizes.back();
    }
    starts.push_back(start);
    if (planes() < 1 || planes() > most_planes)
      throw Refusal("a hierarchy must have 1 to " + std::to_string(most_planes) + " planes.");
  }

  int planes() const { return static_cast<int>(sizes.size()); }
  int64_t nodes() const { return starts.back(); }
  int64_t splits() const { return nodes() + planes(); }
  int64_t split_start(int plane) const { return starts[static_cast<size_t>(plane)] + plane; }
};

}  // namespace jztree
