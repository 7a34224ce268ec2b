// Counts the squared distances within each of some edges.
//
// The squares are gathered in a small buffer and compared with three edges at a time, from the outermost inwards.
// Squares within the innermost edge are packed to the front of the buffer, and the next edges are compared only with
// them. In three dimensions, few squares remain after a few edges. If there are only a few edges, squares are compared
// with each edge and never stored.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "common/cpu/candidate.h"
#include "common/cpu/lanes.h"

namespace jztree {

// Write the chosen lanes of 4 bytes one after the other, and return their number. `to` has space for all lanes.
template <typename N>
inline int64_t keep_lanes(const Lanes<N>& values, uint32_t mask, N* to) {
  static_assert(sizeof(N) == 4);
#if defined(__AVX512F__)
  _mm512_storeu_si512(to, _mm512_maskz_compress_epi32(static_cast<__mmask16>(mask), (__m512i)values.part[0]));
  return __builtin_popcount(mask);
#elif defined(__AVX2__)
  int64_t count = 0;
  Lanes<N>::each_register([&](int i) {
    uint32_t part_mask = mask >> i * Lanes<N>::width & 0xff;
    __m256i kept = _mm256_permutevar8x32_epi32((__m256i)values.part[i], chosen_lanes.in_order(part_mask));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + count), kept);
    count += __builtin_popcount(part_mask);
  });
  return count;
#else
  if (mask == 0) return 0;
  N all[lanes];
  store<N>(values, all);
  int64_t count = 0;
  // Write every lane. The next lane overwrites a lane that is not chosen.
  for (int64_t i = 0; i < lanes; ++i) {
    to[count] = all[i];
    count += mask >> i & 1;
  }
  return count;
#endif
}

inline int64_t keep_lanes(const Lanes<double>& values, uint32_t mask, double* to) {
#if defined(__AVX512F__)
  const uint32_t low = mask & 0xff;
  _mm512_storeu_pd(to, _mm512_maskz_compress_pd(static_cast<__mmask8>(low), (__m512d)values.part[0]));
  to += __builtin_popcount(low);
  _mm512_storeu_pd(to, _mm512_maskz_compress_pd(static_cast<__mmask8>(mask >> 8), (__m512d)values.part[1]));
#elif defined(__AVX2__)
  Lanes<double>::each_register([&](int i) {
    const uint32_t part_mask = mask >> 4 * i & 0xf;
    const __m256i kept =
        _mm256_permutevar8x32_epi32((__m256i)values.part[i], chosen_lanes.in_order(_pdep_u32(part_mask, 0x55) * 3));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), kept);
    to += __builtin_popcount(part_mask);
  });
#else
  double all[lanes];
  store<double>(values, all);
  for (uint32_t remaining = mask; remaining != 0; remaining &= remaining - 1) *to++ = all[__builtin_ctz(remaining)];
#endif
  return __builtin_popcount(mask);
}

// Add one to each lane of `counts` if a is at most b.
inline void count_at_most(const Lanes<float>& a, const Lanes<float>& b, Lanes<float>::Mask& counts) {
  Lanes<float>::each_register([&](int i) {
#if defined(__AVX512F__)
    // Without this, the compiler expands the mask to a vector before it subtracts it.
    __mmask16 near = _mm512_cmp_ps_mask((__m512)a.part[i], (__m512)b.part[i], _CMP_LE_OQ);
    __m512i old = (__m512i)counts.part[i];
    counts.part[i] = (RegisterType<float>::Mask)_mm512_mask_sub_epi32(old, near, old, _mm512_set1_epi32(-1));
#else
    counts.part[i] -= a.part[i] <= b.part[i];
#endif
  });
}

// Counts the squares within each of `Edges` edges.
template <int Edges>
struct FewEdges {
  using V = Lanes<float>;

  V surely[Edges], possibly[Edges];
  V::Mask sure[Edges]{}, possible[Edges]{};
  Lanes<int32_t> undecided{};  // the squares that are possibly but not surely within an edge, at the last call

  FewEdges(const float* sure_bounds, const float* possible_bounds) {
    for (int edge = 0; edge < Edges; ++edge)
      surely[edge] = V(sure_bounds[edge]), possibly[edge] = V(possible_bounds[edge]);
  }

  void add(const V& squares) {
    for (int edge = 0; edge < Edges; ++edge) {
      count_at_most(squares, surely[edge], sure[edge]);
      count_at_most(squares, possibly[edge], possible[edge]);
    }
  }

  // Whether there are undecided squares since the last call.
  bool has_undecided() {
    const Lanes<int32_t> before = undecided;
    undecided = {};
    for (int edge = 0; edge < Edges; ++edge)
      V::each_register(
          [&](int i) { undecided.part[i] += (Lanes<int32_t>::Register)(possible[edge].part[i] - sure[edge].part[i]); });
    return lanes_below(before, undecided) != 0;
  }

  static int64_t sum(const V::Mask& counts) {
    int64_t all = 0;
    for (const auto& part : counts.part)
      for (int lane = 0; lane < V::width; ++lane) all += part[lane];
    return all;
  }
};

class PairSquares {
 public:
  using V = Lanes<float>;

  explicit PairSquares(size_t edges) : surely_(edges), possibly_(edges), kept_(room + 2 * lanes) {}

  // Start with the edges from `lo` to before `hi`. Returns the address for squares.
  float* begin(int64_t lo, int64_t hi) {
    lo_ = lo, hi_ = hi;
    std::fill(surely_.begin() + lo, surely_.begin() + hi, 0);
    std::fill(possibly_.begin() + lo, possibly_.begin() + hi, 0);
    return start();
  }
  float* start() { return kept_.data(); }

  bool full(const float* end) const { return end > kept_.data() + room; }

  // Compare the squares before `end`, and discard them. Returns whether some are undecided.
  bool sift(const float* surely, const float* possibly, float* end) {
    bool has_undecided = false;
    for (int64_t edge = hi_; edge > lo_ && end > start();) {
      const int64_t edges = std::min<int64_t>(edge - lo_, edges_at_once);
      edge -= edges;
      switch (edges) {
        case 1: has_undecided |= compare<1>(edge, surely + edge, possibly + edge, end); break;
        case 2: has_undecided |= compare<2>(edge, surely + edge, possibly + edge, end); break;
        default: has_undecided |= compare<edges_at_once>(edge, surely + edge, possibly + edge, end);
      }
    }
    return has_undecided;
  }

  // Add the counts of edges, the first of number `edge`. Returns whether squares are undecided.
  template <int Edges>
  bool add(int64_t edge, const FewEdges<Edges>& edges) {
    bool has_undecided = false;
    for (int i = 0; i < Edges; ++i) {
      const int64_t sure_count = edges.sum(edges.sure[i]), possible_count = edges.sum(edges.possible[i]);
      surely_[static_cast<size_t>(edge + i)] += sure_count;
      possibly_[static_cast<size_t>(edge + i)] += possible_count;
      has_undecided |= sure_count != possible_count;
    }
    return has_undecided;
  }

  // Add decided pairs.
  void add(int64_t edge, int64_t pairs) {
    surely_[static_cast<size_t>(edge)] += pairs;
    possibly_[static_cast<size_t>(edge)] += pairs;
  }

  // Since `begin`: the numbers of squares that are surely and possibly within each edge.
  int64_t surely(int64_t edge) const { return surely_[static_cast<size_t>(edge)]; }
  int64_t possibly(int64_t edge) const { return possibly_[static_cast<size_t>(edge)]; }

 private:
  static constexpr int64_t room = 2048;  // a quarter of the fastest cache
  static constexpr int edges_at_once = 3;

  // Count the squares before `end` within each edge. Only squares within the first edge stay in the buffer.
  // Returns whether some are undecided.
  template <int Edges>
  __attribute__((flatten)) bool compare(int64_t edge, const float* surely, const float* possibly, float*& end) {
    FewEdges<Edges> edges(surely, possibly);
    // The padding of the last vector is within no edge.
    store<float>(V(std::numeric_limits<float>::infinity()), end);
    float* packed = start();
    for (const float* from = start(); from < end; from += lanes) {
      V squares;
      load(from, squares);
      edges.add(squares);
      packed += keep_lanes(squares, lanes_at_most(squares, edges.possibly[0]), packed);
    }
    end = packed;
    return add(edge, edges);
  }

  std::vector<int64_t> surely_, possibly_;
  std::vector<float> kept_;
  int64_t lo_ = 0, hi_ = 0;
};

}  // namespace jztree
