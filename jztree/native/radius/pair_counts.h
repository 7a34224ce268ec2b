// How many pairs of particles there are in each bin of distance, and the sums of the products of their weights.
#pragma once

#include <cmath>
#include <limits>

#include "common/tree_arguments.h"
#include "pair_rule.h"

namespace jztree {

// One set of particles, z-ordered.
template <int D, typename T>
struct PairSet {
  Tree<D, T> tree;
  Array<const T> weight;        // (n,), or no rows: all weigh 1
  Array<const int32_t> region;  // (n,), from 0 to below the number of regions; or no rows

  PairSet(Arguments& in, const std::string& of)
      : tree(in, of), weight(in.argument<T>(of + "weight", {any})), region(in.argument<int32_t>(of + "region", {any})) {
    in.expect(weight.rows() == 0 || weight.rows() == tree.pos.rows(), weight, 1, of + "weight",
              "as long as pos, or empty");
    in.expect(region.rows() == 0 || region.rows() == tree.pos.rows(), region, 1, of + "region",
              "as long as pos, or empty");
  }
};

// Numbers in words, as `Lengths` reads them; NaN if float32 words would make them 0 or infinite.
struct SumWords {
  void* data;
  int64_t words;
  bool wide;

  JZTREE_BOTH void put(int64_t place, double number) const {
    if (!wide && number != 0 && std::fabs(number) < static_cast<double>(std::numeric_limits<float>::min()))
      number = std::numeric_limits<double>::quiet_NaN();
    for (int64_t i = place * words; i < (place + 1) * words; ++i) {
      if (wide) {
        static_cast<double*>(data)[i] = number;
        number = 0;
      } else {
        float word = static_cast<float>(number);
        static_cast<float*>(data)[i] = word;
        number = std::isfinite(word) ? number - static_cast<double>(word) : 0;
      }
    }
  }
};

template <int D, typename T>
struct PairCounts {
  static constexpr int most_dims = max_dims;

  PairSet<D, T> one, other;
  Lengths edges, edges_b;  // ascending; edges_b: of pi or mu, none if only distances are wanted
  Lengths box;
  Array<uint32_t>
      count;          // (1 + regions, bins, 2), the lower word first: of all, and of pairs with a member in each region
  const Buffer& sum;  // (1 + regions, bins, words), or no rows; numbers as in Lengths
  bool self;          // the sets are one, row by row: no particle is a pair with itself
  PairMode mode;
  int axis;  // of the line of sight; the number of dimensions: that to the middle of each pair, in an open box

  explicit PairCounts(Arguments& in)
      : one(in, ""),
        other(in, "other_"),
        edges(in.lengths("edges", any)),
        edges_b(in.lengths("edges_b", any)),
        box(in.lengths("box", D)),
        count(in.result<uint32_t>("count", {any, any, 2})),
        sum(in.any_result("sum")),
        self(in.attributes().flag("self")),
        mode(static_cast<PairMode>(in.attributes().integer("mode"))),
        axis(static_cast<int>(in.attributes().integer("axis"))) {
    in.expect(bins() == first_bins() * second_bins() && rows() > 0 &&
                  (rows() == 1 || one.region.rows() > 0 || one.tree.pos.rows() == 0),
              count, 3, "count",
              "a row for all and one a region, and a column for each pair of edges that follow each other");
    in.expect(!weighted() || (sum.rank == 3 && sum.dims[0] == rows() && sum.dims[1] == bins()), sum, "sum",
              "like count");
    if (mode == PairMode::distance ? axis != -1 : axis < 0 || axis > D)
      throw Refusal("there is no such line of sight.");
  }

  int64_t rows() const { return count.dims[0]; }
  int64_t bins() const { return count.dims[1]; }
  int64_t first_bins() const { return edges.count - 1; }
  int64_t second_bins() const { return mode == PairMode::distance ? 1 : edges_b.count - 1; }
  bool weighted() const { return sum.dims[0] > 0; }
  SumWords sum_words() const { return {sum.data, sum.dims[2], sum.type == XLA_FFI_DataType_F64}; }
};

}  // namespace jztree
