// Counting keys for the splitters of a distributed sort.
//
// A splitter is the Morton key of the row that is to be the first of a rank. It is found byte by byte from the top:
// every rank counts, in its own z-ordered rows, how many keys lie below each of the 256 ways to go on from the bytes
// known so far; the sums over the ranks say which one is right.

#include <cstdint>

#include "../common/morton.h"
#include "handler.h"
#include "parallel.h"

namespace jztree {
namespace {

constexpr int key_words = 4;  // of 32 bits, the highest first

MortonKey read_key(const uint32_t* words) {
  return {uint64_t{words[0]} << 32 | words[1], uint64_t{words[2]} << 32 | words[3]};
}

// The key with byte `place` (0 is the highest) set to `value`.
MortonKey with_byte(MortonKey key, int place, uint64_t value) {
  (place < 8 ? key.high : key.low) |= value << (56 - 8 * (place % 8));
  return key;
}

template <int D, typename T>
struct SortedKeys {
  const T* pos;
  KeyGrid<D> grid;

  // The first row in [first, last) whose key is not below (above: is above) the given one; last if there is none.
  int64_t find(int64_t first, int64_t last, const MortonKey& key, bool above) const {
    while (first < last) {
      int64_t middle = (first + last) / 2;
      MortonKey other = Morton<D>::key(grid, pos + middle * D);
      bool before = above ? !(key < other) : other < key;
      (before ? first : last) = before ? middle + 1 : middle;
    }
    return first;
  }
};

template <typename Body>
ffi::Error with_keys(const ffi::AnyBuffer& pos, const ffi::AnyBuffer& lower, const ffi::AnyBuffer& upper,
                     const ffi::AnyBuffer& box, const Body& body) {
  return dispatch<max_dims>(pos, [&](auto type, auto dims) {
    using T = decltype(type);
    constexpr int D = decltype(dims)::value;
    double period[D];
    if (!read_exact(box, D, period) || lower.element_count() != D || upper.element_count() != D)
      return invalid("a splitter search was called with arrays that do not fit together.");
    return body(
        SortedKeys<D, T>{pos.typed_data<T>(), KeyGrid<D>(lower.typed_data<T>(), upper.typed_data<T>(), period)});
  });
}

// counts[s, b]: rows whose key is below splitter s with byte `place` set to b. Its bytes from there on are 0.
ffi::Error key_counts(ffi::ThreadPool pool, ffi::AnyBuffer pos, ffi::Buffer<ffi::S32> num, ffi::AnyBuffer lower,
                      ffi::AnyBuffer upper, ffi::AnyBuffer box, ffi::Buffer<ffi::U32> splitters,
                      ffi::Buffer<ffi::S32> place, ffi::Result<ffi::Buffer<ffi::S32>> counts) {
  return with_keys(pos, lower, upper, box, [&](const auto& keys) {
    int64_t number = static_cast<int64_t>(splitters.element_count()) / key_words;
    int64_t rows = read_count(num, pos.dimensions()[0]);
    int byte = place.typed_data()[0];
    if (static_cast<int64_t>(counts->element_count()) != number * 256 || byte < 0 || byte > 15)
      return invalid("key_counts was called with arrays that do not fit together.");
    Parallel(pool).blocks(number, 1, [&](int64_t begin, int64_t end) {
      for (int64_t s = begin; s < end; ++s) {
        MortonKey key = read_key(splitters.typed_data() + s * key_words);
        int32_t* out = counts->typed_data() + s * 256;
        int64_t first = 0;
        for (uint64_t b = 0; b < 256; ++b) {
          // Most bytes have no keys at all, and then the next row is the answer again.
          MortonKey bound = with_byte(key, byte, b);
          if (first < rows && keys.find(first, first + 1, bound, false) > first)
            first = keys.find(first + 1, rows, bound, false);
          out[b] = static_cast<int32_t>(first);
        }
      }
    });
    return ffi::Error::Success();
  });
}

// below[s]: rows whose key is below splitter s; equal[s]: rows that have it.
ffi::Error key_positions(ffi::ThreadPool pool, ffi::AnyBuffer pos, ffi::Buffer<ffi::S32> num, ffi::AnyBuffer lower,
                         ffi::AnyBuffer upper, ffi::AnyBuffer box, ffi::Buffer<ffi::U32> splitters,
                         ffi::Result<ffi::Buffer<ffi::S32>> below, ffi::Result<ffi::Buffer<ffi::S32>> equal) {
  return with_keys(pos, lower, upper, box, [&](const auto& keys) {
    int64_t number = static_cast<int64_t>(splitters.element_count()) / key_words;
    int64_t rows = read_count(num, pos.dimensions()[0]);
    if (static_cast<int64_t>(below->element_count()) != number ||
        static_cast<int64_t>(equal->element_count()) != number)
      return invalid("key_positions was called with arrays that do not fit together.");
    Parallel(pool).blocks(number, 16, [&](int64_t begin, int64_t end) {
      for (int64_t s = begin; s < end; ++s) {
        MortonKey key = read_key(splitters.typed_data() + s * key_words);
        int64_t first = keys.find(0, rows, key, false);
        below->typed_data()[s] = static_cast<int32_t>(first);
        equal->typed_data()[s] = static_cast<int32_t>(keys.find(first, rows, key, true) - first);
      }
    });
    return ffi::Error::Success();
  });
}

}  // namespace

JZTREE_HANDLER(jztree_key_counts, key_counts);
JZTREE_HANDLER(jztree_key_positions, key_positions);

}  // namespace jztree
