// Counting rows for the splitters of a distributed sort.
//
// A splitter is where in the z-order the first row of a rank is: its Morton key, and the bits of its coordinates where
// others share that (see OrderWords). It is found byte by byte from the top: every rank counts, in its own z-ordered
// rows, how many lie before each of the 256 ways to go on from the bytes known so far; the sums over the ranks say
// which one is right.

#include <cstdint>
#include <type_traits>

#include "common/morton.h"
#include "common/cpu/handler.h"
#include "common/cpu/parallel.h"

namespace jztree {
namespace {

// The words of a splitter (see OrderWords), which has two halves of each, the higher one first.
template <int D>
struct Splitter {
  static constexpr int halves = 2 * OrderWords<D>::count;
  static constexpr int bytes = 8 * OrderWords<D>::count;
  uint64_t words[OrderWords<D>::count];

  explicit Splitter(const uint32_t* from) {
    for (int i = 0; i < OrderWords<D>::count; ++i) words[i] = uint64_t{from[2 * i]} << 32 | from[2 * i + 1];
  }
  // With byte `place` (0 is the highest), which is 0, set to `value`.
  Splitter with_byte(int place, uint64_t value) const {
    Splitter other(*this);
    other.words[place / 8] |= value << (56 - 8 * (place % 8));
    return other;
  }
};

template <int D, typename T>
struct SortedRows {
  static constexpr int dims = D;
  const T* pos;
  KeyGrid<D> grid;

  // The first row in [first, last) that is not before the splitter (above: is above it); last if there is none.
  int64_t find(int64_t first, int64_t last, const Splitter<D>& splitter, bool above) const {
    while (first < last) {
      int64_t middle = (first + last) / 2;
      bool before = OrderWords<D>::before(grid, pos + middle * D, splitter.words, above);
      (before ? first : last) = before ? middle + 1 : middle;
    }
    return first;
  }
};

template <typename Body>
ffi::Error with_rows(const ffi::AnyBuffer& pos, const ffi::AnyBuffer& lower, const ffi::AnyBuffer& upper,
                     const ffi::AnyBuffer& box, const Body& body) {
  return dispatch<max_dims>(pos, [&](auto type, auto dims) {
    using T = decltype(type);
    constexpr int D = decltype(dims)::value;
    double period[D];
    if (!read_exact(box, D, period) || lower.element_count() != D || upper.element_count() != D)
      return invalid("a splitter search was called with arrays that do not fit together.");
    return body(
        SortedRows<D, T>{pos.typed_data<T>(), KeyGrid<D>(lower.typed_data<T>(), upper.typed_data<T>(), period)});
  });
}

// counts[s, b]: rows before splitter s with byte `place` set to b. Its bytes from there on are 0.
ffi::Error key_counts(ffi::ThreadPool pool, ffi::AnyBuffer pos, ffi::Buffer<ffi::S32> num, ffi::AnyBuffer lower,
                      ffi::AnyBuffer upper, ffi::AnyBuffer box, ffi::Buffer<ffi::U32> splitters,
                      ffi::Buffer<ffi::S32> place, ffi::Result<ffi::Buffer<ffi::S32>> counts) {
  return with_rows(pos, lower, upper, box, [&](const auto& rows) {
    using Rows = std::decay_t<decltype(rows)>;
    using Split = Splitter<Rows::dims>;
    int64_t number = static_cast<int64_t>(splitters.element_count()) / Split::halves;
    int64_t count = read_count(num, pos.dimensions()[0]);
    int byte = place.typed_data()[0];
    if (static_cast<int64_t>(splitters.element_count()) != number * Split::halves ||
        static_cast<int64_t>(counts->element_count()) != number * 256 || byte < 0 || byte >= Split::bytes)
      return invalid("key_counts was called with arrays that do not fit together.");
    Parallel(pool).blocks(number, 1, [&](int64_t begin, int64_t end) {
      for (int64_t s = begin; s < end; ++s) {
        Split splitter(splitters.typed_data() + s * Split::halves);
        int32_t* out = counts->typed_data() + s * 256;
        int64_t first = 0;
        for (uint64_t b = 0; b < 256; ++b) {
          // Most bytes have no rows at all, and then the next row is the answer again.
          Split bound = splitter.with_byte(byte, b);
          if (first < count && rows.find(first, first + 1, bound, false) > first)
            first = rows.find(first + 1, count, bound, false);
          out[b] = static_cast<int32_t>(first);
        }
      }
    });
    return ffi::Error::Success();
  });
}

// below[s]: rows before splitter s; equal[s]: rows at it.
ffi::Error key_positions(ffi::ThreadPool pool, ffi::AnyBuffer pos, ffi::Buffer<ffi::S32> num, ffi::AnyBuffer lower,
                         ffi::AnyBuffer upper, ffi::AnyBuffer box, ffi::Buffer<ffi::U32> splitters,
                         ffi::Result<ffi::Buffer<ffi::S32>> below, ffi::Result<ffi::Buffer<ffi::S32>> equal) {
  return with_rows(pos, lower, upper, box, [&](const auto& rows) {
    using Rows = std::decay_t<decltype(rows)>;
    using Split = Splitter<Rows::dims>;
    int64_t number = static_cast<int64_t>(splitters.element_count()) / Split::halves;
    int64_t count = read_count(num, pos.dimensions()[0]);
    if (static_cast<int64_t>(splitters.element_count()) != number * Split::halves ||
        static_cast<int64_t>(below->element_count()) != number ||
        static_cast<int64_t>(equal->element_count()) != number)
      return invalid("key_positions was called with arrays that do not fit together.");
    Parallel(pool).blocks(number, 16, [&](int64_t begin, int64_t end) {
      for (int64_t s = begin; s < end; ++s) {
        Split splitter(splitters.typed_data() + s * Split::halves);
        int64_t first = rows.find(0, count, splitter, false);
        below->typed_data()[s] = static_cast<int32_t>(first);
        equal->typed_data()[s] = static_cast<int32_t>(rows.find(first, count, splitter, true) - first);
      }
    });
    return ffi::Error::Success();
  });
}

}  // namespace

JZTREE_HANDLER(jztree_key_counts, key_counts);
JZTREE_HANDLER(jztree_key_positions, key_positions);

}  // namespace jztree
