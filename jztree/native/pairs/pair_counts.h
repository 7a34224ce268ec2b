// The number of particle pairs in each bin of distance, and the sums of the products of their weights, which may be
// multiplied by the separation of each pair.
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
  Array<const T> weight;        // (n,), or no rows: all weights are 1
  Array<const int32_t> region;  // (n,), from 0 to below the number of regions; or no rows

  PairSet(Arguments& in, const std::string& of)
      : tree(in, of), weight(in.argument<T>(of + "weight", {any})), region(in.argument<int32_t>(of + "region", {any})) {
    in.expect(weight.rows() == 0 || weight.rows() == tree.pos.rows(), weight, 1, of + "weight",
              "of the length of pos, or empty");
    in.expect(region.rows() == 0 || region.rows() == tree.pos.rows(), region, 1, of + "region",
              "of the length of pos, or empty");
  }
};

// Numbers in the format of `Lengths`; NaN if a float32 cannot hold them.
struct SumWords {
  void* data;
  bool wide;

  JZTREE_BOTH void put(int64_t place, double number) const {
    if (wide) {
      static_cast<double*>(data)[place] = number;
      return;
    }
    using Narrow = std::numeric_limits<float>;
    double size = std::fabs(number);
    bool out_of_range =
        size > static_cast<double>(Narrow::max()) || (size > 0 && size < static_cast<double>(Narrow::min()));
    Words::write(out_of_range ? std::numeric_limits<double>::quiet_NaN() : number,
                 static_cast<float*>(data) + place * Words::count);
  }
};

template <int D, typename T>
struct PairCounts {
  PairSet<D, T> one, other;
  Lengths edges, edges_b;  // ascending; edges_b: of pi or mu, empty for distances only
  Lengths box;
  Array<uint32_t> count;  // (1 + regions, bins, 2), the lower word first: all pairs, then pairs with a member in each
                          // region
  const Buffer& sum;      // (1 + regions, bins, words), or no rows; numbers like in Lengths
  bool self;              // the sets are identical, row by row: no particle pairs with itself
  bool separations;       // multiply each product of weights by the first quantity of the pair
  PairMode mode;
  int axis;  // of the line of sight; D: to the middle of each pair, in an open box

  explicit PairCounts(Arguments& in)
      : one(in, ""),
        other(in, "other_"),
        edges(in.lengths("edges", any)),
        edges_b(in.lengths("edges_b", any)),
        box(in.lengths("box", D)),
        count(in.result<uint32_t>("count", {any, any, 2})),
        sum(in.any_result("sum")),
        self(in.attributes().flag("self")),
        separations(in.attributes().flag("separations")),
        mode(static_cast<PairMode>(in.attributes().integer("mode"))),
        axis(static_cast<int>(in.attributes().integer("axis"))) {
    in.expect(bins() == first_bins() * second_bins() && rows() > 0 &&
                  (rows() == 1 || one.region.rows() > 0 || one.tree.pos.rows() == 0),
              count, 3, "count", "of one row for all pairs and one per region, and one column per bin");
    in.expect(!weighted() || (sum.rank == 3 && sum.dims[0] == rows() && sum.dims[1] == bins()), sum, "sum",
              "of the shape of count");
    in.as_lengths(sum, "sum", any);
    if (mode == PairMode::distance ? axis != -1 : axis < 0 || axis > D)
      throw Refusal("the axis of the line of sight is invalid.");
  }

  int64_t rows() const { return count.dims[0]; }
  int64_t bins() const { return count.dims[1]; }
  int64_t first_bins() const { return edges.count - 1; }
  int64_t second_bins() const { return mode == PairMode::distance ? 1 : edges_b.count - 1; }
  bool weighted() const { return sum.dims[0] > 0; }
  SumWords sum_words() const { return {sum.data, sum.type == XLA_FFI_DataType_F64}; }
};

}  // namespace jztree
