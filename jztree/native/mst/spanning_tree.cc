// Rounds of Boruvka's algorithm (boruvka.h), then a sort of the edges (edge_sort.h).

#include "spanning_tree.h"

#include <cstdint>
#include <limits>

#include "boruvka.h"
#include "common/cpu/context.h"
#include "common/cpu/staged_tree.h"
#include "edge_sets.h"
#include "edge_sort.h"

namespace jztree {
namespace {

template <int D, typename T>
class EdgeWriter {
 public:
  EdgeWriter(const Parallel& parallel, EdgeSets<D, T>& sets)
      : sets_(sets), in_(sets.in), places_(in_.measure ? in_.n() : 0) {
    if (!in_.measure) return;
    parallel.blocks(sets.num, 1 << 14, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) places_[in_.output_row(row)] = static_cast<int32_t>(row);
    });
  }

  void write(int64_t place, const Edge& edge) {
    const double weight = weight_of_bits(edge.weight);
    const auto low = static_cast<int32_t>(edge.pair >> 32), high = static_cast<int32_t>(edge.pair & 0xffffffff);
    write_edge(place, low, high, sets_.rule.linking_length(weight));
    if (in_.measure) write_measure(place, places_[low], places_[high], weight);
  }

  void write_padding(int64_t place) const {
    write_edge(place, -1, -1, no_weight);
    if (in_.measure) write_rows(in_.measure, place, -1, -1);
  }

 private:
  void write_edge(int64_t place, int32_t low, int32_t high, double length) const {
    const uint64_t bits = bits_of_weight(length);
    write_rows(in_.ends, place, low, high);
    in_.length[place] = static_cast<T>(length);
    in_.exact[2 * place] = static_cast<uint32_t>(bits);
    in_.exact[2 * place + 1] = static_cast<uint32_t>(bits >> 32);
  }

  // Find the two particles whose distance is the length: the ends, or an end and the last particle of its core.
  void write_measure(int64_t place, int64_t from, int64_t to, double weight) {
    if (sets_.rule.weight(sets_.pos(from), sets_.pos(to)) != weight) {
      if (sets_.core[from] != weight) from = to;
      to = in_.core_row[from];
    }
    write_rows(in_.measure, place, in_.output_row(from), in_.output_row(to));
  }

  static void write_rows(int32_t* to, int64_t place, int32_t a, int32_t b) {
    to[2 * place] = a;
    to[2 * place + 1] = b;
  }

  EdgeSets<D, T>& sets_;
  const SpanningTree<D, T>& in_;
  Scratch<int32_t> places_;  // [output row], z-ordered row; empty without core distances
};

template <int D, typename T>
void spanning_tree(const Parallel& parallel, const SpanningTree<D, T>& in) {
  double period[D];
  in.box.read(period);
  const Scale<D, T> scale(period, open_span(period, in.tree, in.tree).template for_scale<T>());
  const StagedTree<D, T> staged(parallel, in.tree, scale);
  const EdgeRule<D, T> rule(DistanceRule<D, T>(staged.wrapped(), staged.kept(), scale));
  EdgeSets<D, T> sets(in, staged, rule);
  const EdgeList edges(in.exact, in.ends);
  Boruvka<D, T>(parallel, sets, staged, edges).run();
  const int64_t count = std::max<int64_t>(sets.num - 1, 0);
  EdgeWriter<D, T> writer(parallel, sets);
  if (count > 0)
    EdgeSort(parallel, edges, count).run([&](int64_t place, const Edge& edge) { writer.write(place, edge); });
  for (int64_t place = count; place < in.edges(); ++place) writer.write_padding(place);
}

}  // namespace

JZTREE_KERNEL(spanning_tree, SpanningTree);

}  // namespace jztree
