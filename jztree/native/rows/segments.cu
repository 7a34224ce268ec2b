// The time is bound by memory. One launch moves all arrays, and a block moves a tile of packed rows. Neighbouring
// threads move neighbouring words of the buffer and, if rows are in order, of the arrays. An array whose rows consist
// of whole words is moved word by word, all others byte by byte. Only the GPU knows the number of rows, so the launch
// has enough blocks for the largest possible number. Blocks without rows end at once.

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "common/cuda/context.cuh"
#include "common/geometry.h"
#include "segments.h"

namespace jztree {
namespace {

constexpr int tile_threads = 256, tile_words = 1024;

// An array of rows; `offset` is its position in the packed row.
struct Column {
  unsigned char* data;
  int64_t bytes, offset;

  __host__ __device__ bool whole_words() const { return bytes % 4 == 0 && offset % 4 == 0; }
  __device__ unsigned char* at(int64_t row, int64_t byte) const { return data + row * bytes + (byte - offset); }
  __device__ uint32_t* word_at(int64_t row, int64_t byte) const { return reinterpret_cast<uint32_t*>(at(row, byte)); }
};

// The columns that one launch moves, passed to kernels by value.
struct Batch {
  static constexpr int capacity = 32;

  Column list[capacity];
  int count;
  int64_t rows;        // of every array
  int64_t begin, end;  // bytes of the packed row

  // The column that contains a byte; the search starts with column `from`.
  __device__ int find(int64_t byte, int from = 0) const {
    while (from + 1 < count && list[from + 1].offset <= byte) ++from;
    return from;
  }
};

// The arrays of a row table. Arrays with rows of zero bytes are left out.
class Columns {
 public:
  // aligned: every column begins with a word.
  explicit Columns(const RowTable& table, bool aligned = false) : rows_(table.rows) {
    for (size_t i = 0; i < table.arrays.size(); ++i) {
      int64_t size = table.row_bytes(i);
      if (size > 0) list_.push_back({static_cast<unsigned char*>(table.arrays[i].data), size, bytes_});
      bytes_ += aligned ? (size + 3) / 4 * 4 : size;
    }
  }

  int64_t rows() const { return rows_; }
  size_t size() const { return list_.size(); }

  Batch batch(size_t first) const {
    Batch made{};
    made.rows = rows();
    for (size_t i = first; i < list_.size() && made.count < Batch::capacity; ++i) made.list[made.count++] = list_[i];
    made.begin = made.list[0].offset;
    made.end = first + made.count < list_.size() ? list_[first + made.count].offset : bytes_;
    return made;
  }

 private:
  std::vector<Column> list_;
  int64_t rows_, bytes_ = 0;
};

// How blocks share the words of segments.
struct Tiles {
  int64_t chunk;         // row capacity of a segment
  int64_t a_segment;     // tiles per segment
  int64_t rows;          // rows per tile
  int64_t first, words;  // words of the packed row

  Tiles(int64_t chunk_, const Batch& batch)
      : chunk(chunk_), first(batch.begin / 4), words((batch.end + 3) / 4 - first) {
    rows = std::max<int64_t>(1, tile_words / words);
    a_segment = (chunk + rows - 1) / rows;
  }

  __device__ int64_t segment() const { return blockIdx.x / a_segment; }

  // Call work(row in the segment, word of the row) for this block's words, if the segment has `count` rows.
  template <typename Work>
  __device__ void each_word(int64_t count, const Work& work) const {
    int64_t first_row = blockIdx.x % a_segment * rows, left = (count < chunk ? count : chunk) - first_row;
    if (left <= 0) return;
    uint32_t width = static_cast<uint32_t>(words);
    int64_t all = (left < rows ? left : rows) * words;
    for (int64_t i = threadIdx.x; i < all; i += tile_threads) {
      // A tile of several rows has few words; a tile of one row needs no division.
      uint32_t row = rows == 1 ? 0 : static_cast<uint32_t>(i) / width;
      work(first_row + row, first + (i - static_cast<int64_t>(row) * words));
    }
  }
};

// The inputs of a launch for segments.
struct Segments {
  RowOrder order;
  const int32_t *starts, *counts;
};

// A list may contain a row several times, for example if the row was sent to several ranks. Its last occurrence in the
// list then counts. `last` holds for each row its largest position in the list, counted from 1. A maximum does not
// depend on the order of the threads.
__global__ void find_last(Segments segments, int64_t chunk, int64_t all, int64_t rows, uint32_t* last) {
  int64_t i = thread_index();
  if (i >= all) return;
  int64_t segment = i / chunk, j = i - segment * chunk;
  if (j >= segments.counts[segment]) return;
  int64_t row = segments.order(segments.starts[segment] + j);
  if (row >= 0 && row < rows) atomicMax(last + row, static_cast<uint32_t>(i + 1));
}

// Null for the identity, which contains no row twice.
const uint32_t* last_places(Queue& queue, const Segments& segments, int64_t count, int64_t chunk, int64_t rows) {
  if (segments.order.count == 0) return nullptr;
  uint32_t* last = queue.scratch<uint32_t>(rows);
  queue.fill_bytes(last, 0, rows);
  queue.launch_over(count * chunk, find_last, segments, chunk, count * chunk, rows, last);
  return last;
}

__global__ void pack_words(Batch batch, Tiles tiles, Segments segments, int64_t row_words, uint32_t* buffer) {
  int64_t segment = tiles.segment(), start = segments.starts[segment];
  tiles.each_word(segments.counts[segment], [&](int64_t j, int64_t word) {
    int64_t row = segments.order(start + j), byte = 4 * word;
    if (row < 0 || row >= batch.rows) return;
    uint32_t* out = buffer + (segment * tiles.chunk + j) * row_words + word;
    int c = batch.find(byte);
    if (batch.list[c].whole_words()) {
      *out = *batch.list[c].word_at(row, byte);
      return;
    }
    // The first bytes of the word may be those of the previous launch.
    uint32_t value = byte < batch.begin ? *out & ((1u << 8 * (batch.begin - byte)) - 1) : 0;
    for (int64_t b = larger(byte, batch.begin); b < smaller(byte + 4, batch.end); ++b) {
      c = batch.find(b, c);
      value |= uint32_t{*batch.list[c].at(row, b)} << 8 * (b - byte);
    }
    *out = value;
  });
}

__global__ void unpack_words(Batch batch, Tiles tiles, Segments segments, int64_t row_words, const uint32_t* buffer,
                             const uint32_t* last) {
  int64_t segment = tiles.segment(), start = segments.starts[segment];
  tiles.each_word(segments.counts[segment], [&](int64_t j, int64_t word) {
    int64_t row = segments.order(start + j), place = segment * tiles.chunk + j, byte = 4 * word;
    if (row < 0 || row >= batch.rows || (last && last[row] != place + 1)) return;
    uint32_t value = buffer[place * row_words + word];
    int c = batch.find(byte);
    if (batch.list[c].whole_words()) {
      *batch.list[c].word_at(row, byte) = value;
      return;
    }
    for (int64_t b = larger(byte, batch.begin); b < smaller(byte + 4, batch.end); ++b) {
      c = batch.find(b, c);
      *batch.list[c].at(row, b) = static_cast<unsigned char>(value >> 8 * (b - byte));
    }
  });
}

// Columns of both begin with whole words, at the same offsets.
__device__ void copy_word(const Batch& from, int64_t row, const Batch& to, int64_t out, int64_t word) {
  int64_t byte = 4 * word;
  int c = to.find(byte);
  if (to.list[c].whole_words()) {
    *to.list[c].word_at(out, byte) = *from.list[c].word_at(row, byte);
    return;
  }
  int64_t end = smaller(byte + 4, to.list[c].offset + to.list[c].bytes);
  for (int64_t b = byte; b < end; ++b) *to.list[c].at(out, b) = *from.list[c].at(row, b);
}

__global__ void fill_words(Batch fill, Batch to, Tiles tiles, const int32_t* first_filled) {
  tiles.each_word(to.rows, [&](int64_t row, int64_t word) {
    if (row >= *first_filled) copy_word(fill, 0, to, row, word);
  });
}

__global__ void place_words(Batch from, Batch to, Tiles tiles, Segments source, Segments goal, const uint32_t* last) {
  int64_t start = source.starts[0], target = goal.starts[0];
  tiles.each_word(goal.counts[0], [&](int64_t j, int64_t word) {
    int64_t row = source.order(start + j), out = goal.order(target + j);
    if (row < 0 || row >= from.rows || out < 0 || out >= to.rows || (last && last[out] != j + 1)) return;
    copy_word(from, row, to, out, word);
  });
}

// Call move(batch, tiles) for all columns, unless there are no rows or columns.
template <typename Move>
void each_batch(const Columns& columns, int64_t rows, int64_t chunk, const Move& move) {
  if (rows == 0 || columns.rows() == 0) return;
  for (size_t first = 0; first < columns.size(); first += Batch::capacity) {
    Batch batch = columns.batch(first);
    move(first, batch, Tiles(chunk, batch));
  }
}

void pack_segments(Queue& queue, const PackSegments& in) {
  int64_t number = in.segments.number(), chunk = in.chunk();
  Segments segments{in.segments.order, in.segments.starts, in.segments.counts};
  each_batch(Columns(in.table), number * chunk, chunk, [&](size_t, const Batch& batch, const Tiles& tiles) {
    queue.launch(number * tiles.a_segment, tile_threads, 0, pack_words, batch, tiles, segments, in.words(), in.buffer);
  });
}

void unpack_segments(Queue& queue, const UnpackSegments& in) {
  int64_t number = in.segments.number(), chunk = in.chunk();
  Segments segments{in.segments.order, in.segments.starts, in.segments.counts};
  const uint32_t* last = last_places(queue, segments, number, chunk, in.table.rows);
  each_batch(Columns(in.table), number * chunk, chunk, [&](size_t, const Batch& batch, const Tiles& tiles) {
    queue.launch(number * tiles.a_segment, tile_threads, 0, unpack_words, batch, tiles, segments, in.words(), in.buffer,
                 last);
  });
}

void place_rows(Queue& queue, const PlaceRows& in) {
  if (in.to.rows == 0) return;
  Columns from(in.from, true), to(in.to, true), fill(in.fill, true);
  each_batch(to, to.rows(), to.rows(), [&](size_t first, const Batch& batch, const Tiles& tiles) {
    queue.launch(tiles.a_segment, tile_threads, 0, fill_words, fill.batch(first), batch, tiles, in.place + 3);
  });
  if (in.from.rows == 0) return;
  Segments source{in.from_order, in.place, in.place + 2}, goal{in.to_order, in.place + 1, in.place + 2};
  // The number of placed rows is limited by both sides.
  int64_t max_rows = std::min(source.order.length(from.rows()), goal.order.length(to.rows()));
  const uint32_t* last = last_places(queue, goal, 1, max_rows, to.rows());
  each_batch(to, max_rows, max_rows, [&](size_t first, const Batch& batch, const Tiles& tiles) {
    queue.launch(tiles.a_segment, tile_threads, 0, place_words, from.batch(first), batch, tiles, source, goal, last);
  });
}

}  // namespace

JZTREE_PLAIN_KERNEL(pack_segments, PackSegments);
JZTREE_PLAIN_KERNEL(unpack_segments, UnpackSegments);
JZTREE_PLAIN_KERNEL(place_rows, PlaceRows);

}  // namespace jztree
