// Rounds of Boruvka's algorithm (boruvka.h), then a sort of the edges (edge_sort.h).

#include "spanning_tree.h"

#include <algorithm>
#include <cstdint>
#include <utility>

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
  // core: weights of core distances; empty for Euclidean lengths.
  EdgeWriter(const SpanningTree<D, T>& in, const EdgeRule<D, T>& rule, const Scratch<double>& core)
      : in_(in), rule_(rule), core_(core.get()) {}

  uint64_t rows_of(const Link& link) const { return pair_of(output_row(link.from()), output_row(link.to())); }

  void write(int64_t place, const Edge& edge) const {
    const double weight = weight_of_bits(edge.weight);
    int32_t from = edge.link.from(), to = edge.link.to();
    if (output_row(from) > output_row(to)) std::swap(from, to);
    write_edge(place, output_row(from), output_row(to), rule_.linking_length(weight));
    if (in_.measure) write_measure(place, from, to, weight);
    if (in_.weight) write_words(in_.weight, place, edge.weight);
    if (in_.places) write_rows(in_.places, place, from, to);
    if (in_.certain) in_.certain[place] = edge.link.certain();
  }

  void write_padding(int64_t place) const {
    write_edge(place, -1, -1, no_weight);
    if (in_.measure) write_rows(in_.measure, place, -1, -1);
    if (in_.weight) write_words(in_.weight, place, bits_of_weight(no_weight));
    if (in_.places) write_rows(in_.places, place, -1, -1);
    if (in_.certain) in_.certain[place] = 0;
  }

 private:
  // Of an end of a link; see EdgeSets::link.
  int32_t output_row(int32_t end) const { return in_.needs_places() ? in_.particles.output_row(end) : end; }

  void write_edge(int64_t place, int32_t low, int32_t high, double length) const {
    write_rows(in_.ends, place, low, high);
    in_.length[place] = static_cast<T>(length);
    write_words(in_.exact, place, bits_of_weight(length));
  }

  // Find the two particles whose distance is the length: the ends, or an end and the last particle of its core.
  void write_measure(int64_t place, int64_t from, int64_t to, double weight) const {
    if (rule_.weight(in_.particles.place(from), in_.particles.place(to)) == weight)
      return write_rows(in_.measure, place, in_.particles.output_row(from), in_.particles.output_row(to));
    if (core_[from] != weight) from = to;
    write_rows(in_.measure, place, in_.particles.output_row(from), in_.particles.core_id_of(from));
  }

  static void write_rows(int32_t* to, int64_t place, int32_t a, int32_t b) {
    to[2 * place] = a;
    to[2 * place + 1] = b;
  }

  static void write_words(uint32_t* to, int64_t place, uint64_t bits) {
    to[2 * place] = static_cast<uint32_t>(bits);
    to[2 * place + 1] = static_cast<uint32_t>(bits >> 32);
  }

  const SpanningTree<D, T>& in_;
  const EdgeRule<D, T>& rule_;
  const double* core_;
};

template <int D, typename T>
void write_joined(const Parallel& parallel, const SpanningTree<D, T>& in, int64_t num, Boruvka<D, T>& sets) {
  parallel.blocks(in.n(), 1 << 14, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      in.joined[row] = row < num ? sets.certain_set(row) : static_cast<int32_t>(row);
  });
}

template <int D, typename T>
void spanning_tree(const Parallel& parallel, const SpanningTree<D, T>& in) {
  double period[D];
  in.box.read(period);
  const OpenSpan span = in.particles.domain ? in.particles.domain_span(period) : open_span(period, in.tree, in.tree);
  const Scale<D, T> scale(period, span.template for_scale<T>());
  const StagedTree<D, T> staged(parallel, in.tree, scale);
  const EdgeRule<D, T> rule(DistanceRule<D, T>(staged.wrapped(), staged.kept(), scale));
  // The list is in the memory of results that the writer does not read.
  const EdgeList edges(in.exact, in.ends);
  int64_t count;
  Scratch<double> core;
  {  // frees the memory of the rounds before the sort
    EdgeSets<D, T> sets(in, staged, rule);
    Boruvka<D, T> boruvka(parallel, sets, staged, edges);
    boruvka.run();
    if (in.joined) write_joined(parallel, in, sets.num, boruvka);
    count = boruvka.count();
    core = std::move(sets.core);
  }
  const EdgeWriter<D, T> writer(in, rule, core);
  if (count > 0) {
    EdgeSort<>(parallel, edges, count)
        .run([&](const Link& link) { return writer.rows_of(link); },
             [&](int64_t place, const Edge& edge) { writer.write(place, edge); });
  }
  for (int64_t place = count; place < in.edges(); ++place) writer.write_padding(place);
}

}  // namespace

JZTREE_KERNEL(spanning_tree, SpanningTree);

}  // namespace jztree
