// Rows on their way between ranks: grouped by destination, packed into one buffer whatever arrays they are made of, and
// unpacked at the place they are to have.
//
// A row is the bytes of its part of every array, one after the other, filled up to whole words of 32 bits. A segment is
// a run of rows to or from one rank.
//
// Bound by memory. A block moves a tile of packed rows, all arrays in one launch: neighbouring threads take
// neighbouring words of the buffer, and where rows are in order also of the arrays. A word that lies in an array whose
// rows are whole words is moved as one; others byte by byte. How many rows there are is known on the GPU only, so there
// are blocks for as many as there may be, and those that have none end at once.

#include <cstdint>
#include <utility>
#include <vector>

#include "common/geometry.h"
#include "common/cuda/arguments.cuh"
#include "common/cuda/primitives.cuh"
#include "common/cuda/queue.cuh"

namespace jztree {
namespace {

constexpr int tile_threads = 256, tile_words = 1024;

// An array of rows, of which `offset` is the place in the packed row.
struct Column {
  unsigned char* data;
  int64_t bytes, offset;

  __host__ __device__ bool whole_words() const { return bytes % 4 == 0 && offset % 4 == 0; }
  __device__ unsigned char* at(int64_t row, int64_t byte) const { return data + row * bytes + (byte - offset); }
  __device__ uint32_t* word_at(int64_t row, int64_t byte) const { return reinterpret_cast<uint32_t*>(at(row, byte)); }
};

// The columns that one launch moves, passed to kernels by value.
struct Batch {
  static constexpr int most = 32;

  Column list[most];
  int count;
  int64_t rows;        // of every array
  int64_t begin, end;  // bytes of the packed row

  // The column that holds a byte; the search begins with column `from`.
  __device__ int find(int64_t byte, int from = 0) const {
    while (from + 1 < count && list[from + 1].offset <= byte) ++from;
    return from;
  }
};

// The arrays that rows are made of. Those whose rows have no bytes are left out.
class Columns {
 public:
  explicit Columns(bool aligned = false) : aligned_(aligned) {}

  template <typename Buffer>
  bool add(const Buffer& buffer, void* data) {
    auto dims = buffer.dimensions();
    if (dims.size() == 0) return false;
    if (rows_ < 0) rows_ = dims[0];
    int64_t size = dims[0] == 0 ? 0 : static_cast<int64_t>(buffer.size_bytes()) / dims[0];
    if (size > 0) list_.push_back({static_cast<unsigned char*>(data), size, bytes_});
    bytes_ += aligned_ ? (size + 3) / 4 * 4 : size;
    return dims[0] == rows_;
  }

  int64_t rows() const { return rows_ < 0 ? 0 : rows_; }
  int64_t bytes() const { return bytes_; }
  size_t size() const { return list_.size(); }

  bool as_wide_as(const Columns& other) const {
    bool equal = list_.size() == other.list_.size();
    for (size_t i = 0; equal && i < list_.size(); ++i) equal = list_[i].bytes == other.list_[i].bytes;
    return equal;
  }

  Batch batch(size_t first) const {
    Batch made{};
    made.rows = rows();
    for (size_t i = first; i < list_.size() && made.count < Batch::most; ++i) made.list[made.count++] = list_[i];
    made.begin = made.list[0].offset;
    made.end = first + made.count < list_.size() ? list_[first + made.count].offset : bytes_;
    return made;
  }

 private:
  std::vector<Column> list_;
  int64_t rows_ = -1, bytes_ = 0;
  bool aligned_;  // whether every column begins with a word
};

// How blocks share the words of segments.
struct Tiles {
  int64_t chunk;         // rows that a segment has room for
  int64_t a_segment;     // tiles
  int64_t rows;          // of a tile
  int64_t first, words;  // of the packed row

  Tiles(int64_t chunk_, const Batch& batch)
      : chunk(chunk_), first(batch.begin / 4), words((batch.end + 3) / 4 - first) {
    rows = std::max<int64_t>(1, tile_words / words);
    a_segment = (chunk + rows - 1) / rows;
  }

  __device__ int64_t segment() const { return blockIdx.x / a_segment; }

  // Calls work(row in the segment, word of the row) for this block's words, where the segment has `count` rows.
  template <typename Work>
  __device__ void each_word(int64_t count, const Work& work) const {
    int64_t first_row = blockIdx.x % a_segment * rows, left = (count < chunk ? count : chunk) - first_row;
    if (left <= 0) return;
    uint32_t width = static_cast<uint32_t>(words);
    int64_t all = (left < rows ? left : rows) * words;
    for (int64_t i = threadIdx.x; i < all; i += tile_threads) {
      // A tile of several rows has few words; one of a single row needs no division.
      uint32_t row = rows == 1 ? 0 : static_cast<uint32_t>(i) / width;
      work(first_row + row, first + (i - static_cast<int64_t>(row) * words));
    }
  }
};

// A list of rows, or all rows in their order if it is empty; -1 outside.
struct Order {
  const int32_t* rows;
  int64_t count;

  explicit Order(const ffi::Buffer<ffi::S32>& list)
      : rows(list.typed_data()), count(static_cast<int64_t>(list.element_count())) {}

  int64_t length(int64_t all) const { return count == 0 ? all : count; }
  __device__ int64_t operator()(int64_t i) const { return count == 0 ? i : i >= 0 && i < count ? rows[i] : -1; }
};

// What a buffer of segments holds: rows from `starts` of an order on, `counts` of them and at most a chunk.
struct Segments {
  Order order;
  const int32_t *starts, *counts;
};

ffi::Error misfit(const char* what) {
  return invalid(std::string(what) + " was called with arrays that do not fit together.");
}

bool read_columns(const ffi::RemainingArgs& args, size_t begin, size_t end, Columns& columns) {
  for (size_t i = begin; i < end; ++i) {
    auto buffer = args.get<ffi::AnyBuffer>(i);
    if (!buffer.has_value() || !columns.add(*buffer, buffer->untyped_data())) return false;
  }
  return true;
}

// The results, which hold what the arguments from `begin` on hold: the same memory if XLA could arrange that.
bool continue_columns(Queue& queue, const ffi::RemainingArgs& args, size_t begin, ffi::RemainingRets& rets,
                      Columns& columns) {
  for (size_t i = 0; i < rets.size(); ++i) {
    auto old = args.get<ffi::AnyBuffer>(begin + i);
    auto buffer = rets.get<ffi::AnyBuffer>(i);
    if (!old.has_value() || !buffer.has_value() || old->size_bytes() != (*buffer)->size_bytes() ||
        !columns.add(**buffer, (*buffer)->untyped_data()))
      return false;
    if (old->untyped_data() != (*buffer)->untyped_data())
      queue.copy(static_cast<unsigned char*>((*buffer)->untyped_data()),
                 static_cast<const unsigned char*>(old->untyped_data()), static_cast<int64_t>(old->size_bytes()));
  }
  return true;
}

// A list may name a row several times, as where one row was sent to several ranks. The last one in the list is then the
// one that counts, whole: `last` holds for each row the largest of the places in the list that name it, counted from 1.
// A maximum does not depend on the order in which threads come.
__global__ void find_last(Segments segments, int64_t chunk, int64_t all, int64_t rows, uint32_t* last) {
  int64_t i = thread_index();
  if (i >= all) return;
  int64_t segment = i / chunk, j = i - segment * chunk;
  if (j >= segments.counts[segment]) return;
  int64_t row = segments.order(segments.starts[segment] + j);
  if (row >= 0 && row < rows) atomicMax(last + row, static_cast<uint32_t>(i + 1));
}

// Null for an order that is the identity and names no row twice.
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
    // The first bytes of the word may be those of the launch before.
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

// Columns of both begin with whole words, at the same places.
__global__ void place_words(Batch from, Batch to, Tiles tiles, Segments source, Segments goal, const uint32_t* last) {
  int64_t start = source.starts[0], target = goal.starts[0];
  tiles.each_word(goal.counts[0], [&](int64_t j, int64_t word) {
    int64_t row = source.order(start + j), out = goal.order(target + j), byte = 4 * word;
    if (row < 0 || row >= from.rows || out < 0 || out >= to.rows || (last && last[out] != j + 1)) return;
    int c = to.find(byte);
    if (to.list[c].whole_words()) {
      *to.list[c].word_at(out, byte) = *from.list[c].word_at(row, byte);
      return;
    }
    int64_t end = smaller(byte + 4, to.list[c].offset + to.list[c].bytes);
    for (int64_t b = byte; b < end; ++b) *to.list[c].at(out, b) = *from.list[c].at(row, b);
  });
}

// Whether a buffer has a row for each place in these segments.
bool segments_fit(const ffi::Buffer<ffi::U32>& buffer, const ffi::Buffer<ffi::S32>& starts,
                  const ffi::Buffer<ffi::S32>& counts) {
  auto shape = buffer.dimensions();
  return shape.size() == 3 && static_cast<int64_t>(starts.element_count()) == shape[0] &&
         static_cast<int64_t>(counts.element_count()) == shape[0] && shape[0] * shape[1] < int64_t{0xffffffff};
}

// Calls move(batch, tiles) for all columns, where blocks can be of use.
template <typename Move>
void each_batch(const Columns& columns, int64_t rows, int64_t chunk, const Move& move) {
  if (rows == 0 || columns.rows() == 0) return;
  for (size_t first = 0; first < columns.size(); first += Batch::most) {
    Batch batch = columns.batch(first);
    move(first, batch, Tiles(chunk, batch));
  }
}

// buffer[s, j] = row order[starts[s] + j] of the arrays, for j below counts[s]. An empty order is the identity.
ffi::Error pack_segments(cudaStream_t stream, DeviceMemory scratch, ffi::Buffer<ffi::S32> order,
                         ffi::Buffer<ffi::S32> starts, ffi::Buffer<ffi::S32> counts, ffi::RemainingArgs arrays,
                         ffi::Result<ffi::Buffer<ffi::U32>> buffer) {
  return guarded([&] {
    Columns columns;
    auto shape = buffer->dimensions();
    if (!segments_fit(*buffer, starts, counts) || !read_columns(arrays, 0, arrays.size(), columns) ||
        columns.bytes() > shape[2] * 4)
      return misfit("pack_segments");
    Queue queue(stream, scratch);
    Segments segments{Order(order), starts.typed_data(), counts.typed_data()};
    each_batch(columns, shape[0] * shape[1], shape[1], [&](size_t, const Batch& batch, const Tiles& tiles) {
      queue.launch(shape[0] * tiles.a_segment, tile_threads, 0, pack_words, batch, tiles, segments, shape[2],
                   buffer->typed_data());
    });
    return ffi::Error::Success();
  });
}

// Row order[starts[s] + j] of the arrays = buffer[s, j], for j below counts[s]; all other rows stay. An empty order is
// the identity.
ffi::Error unpack_segments(cudaStream_t stream, DeviceMemory scratch, ffi::Buffer<ffi::U32> buffer,
                           ffi::Buffer<ffi::S32> order, ffi::Buffer<ffi::S32> starts, ffi::Buffer<ffi::S32> counts,
                           ffi::RemainingArgs olds, ffi::RemainingRets news) {
  return guarded([&] {
    Columns columns;
    Queue queue(stream, scratch);
    auto shape = buffer.dimensions();
    if (!segments_fit(buffer, starts, counts) || olds.size() != news.size() ||
        !continue_columns(queue, olds, 0, news, columns) || columns.bytes() > shape[2] * 4)
      return misfit("unpack_segments");
    Segments segments{Order(order), starts.typed_data(), counts.typed_data()};
    const uint32_t* last = last_places(queue, segments, shape[0], shape[1], columns.rows());
    each_batch(columns, shape[0] * shape[1], shape[1], [&](size_t, const Batch& batch, const Tiles& tiles) {
      queue.launch(shape[0] * tiles.a_segment, tile_threads, 0, unpack_words, batch, tiles, segments, shape[2],
                   buffer.typed_data(), last);
    });
    return ffi::Error::Success();
  });
}

// Row to_order[target + j] of the results = row from_order[start + j] of the first half of the arrays, for j below
// count; all other rows are those of the second half. place: start, target and count. An empty order is the identity.
ffi::Error place_rows(cudaStream_t stream, DeviceMemory scratch, ffi::Buffer<ffi::S32> from_order,
                      ffi::Buffer<ffi::S32> to_order, ffi::Buffer<ffi::S32> place, ffi::RemainingArgs arrays,
                      ffi::RemainingRets news) {
  return guarded([&] {
    Columns from(true), to(true);
    Queue queue(stream, scratch);
    if (place.element_count() != 3 || arrays.size() != 2 * news.size() || !read_columns(arrays, 0, news.size(), from) ||
        !continue_columns(queue, arrays, news.size(), news, to))
      return misfit("place_rows");
    if (from.rows() == 0 || to.rows() == 0) return ffi::Error::Success();
    if (!to.as_wide_as(from)) return misfit("place_rows");
    const int32_t* numbers = place.typed_data();
    Segments source{Order(from_order), numbers, numbers + 2}, goal{Order(to_order), numbers + 1, numbers + 2};
    // No more rows can be placed than either side has.
    int64_t most = std::min(source.order.length(from.rows()), goal.order.length(to.rows()));
    const uint32_t* last = last_places(queue, goal, 1, most, to.rows());
    each_batch(to, most, most, [&](size_t first, const Batch& batch, const Tiles& tiles) {
      queue.launch(tiles.a_segment, tile_threads, 0, place_words, from.batch(first), batch, tiles, source, goal, last);
    });
    return ffi::Error::Success();
  });
}

// Rows that go nowhere get the number after the last rank, which sorts them to the end.
__global__ void sort_keys(const int32_t* rank, Count num, int64_t ranks, uint32_t* key, int32_t* row) {
  int64_t i = thread_index();
  if (i >= num.rows) return;
  bool goes = i < num() && rank[i] >= 0 && rank[i] < ranks;
  key[i] = static_cast<uint32_t>(goes ? rank[i] : ranks);
  row[i] = static_cast<int32_t>(i);
}

__device__ int64_t first_of(const uint32_t* sorted, int64_t count, int64_t key) {
  int64_t first = 0, last = count;
  while (first < last) {
    int64_t middle = (first + last) / 2;
    bool before = sorted[middle] < key;
    (before ? first : last) = before ? middle + 1 : middle;
  }
  return first;
}

__global__ void finish_groups(const uint32_t* key, const int32_t* row, int64_t rows, int64_t ranks, int32_t* order,
                              int32_t* counts) {
  int64_t i = thread_index();
  // The rows may be sorted in place.
  if (i < rows) order[i] = key[i] < ranks ? row[i] : -1;
  if (i < ranks) counts[i] = static_cast<int32_t>(first_of(key, rows, i + 1) - first_of(key, rows, i));
}

// The rows below num in the order of their ranks, stable; those whose rank is no rank are left out. A radix sort by few
// bits: one pass for up to 255 ranks.
ffi::Error group_by_rank(cudaStream_t stream, DeviceMemory scratch, ffi::Buffer<ffi::S32> rank,
                         ffi::Buffer<ffi::S32> num, ffi::Result<ffi::Buffer<ffi::S32>> order,
                         ffi::Result<ffi::Buffer<ffi::S32>> counts) {
  return guarded([&] {
    int64_t rows = static_cast<int64_t>(rank.element_count()), ranks = static_cast<int64_t>(counts->element_count());
    if (static_cast<int64_t>(order->element_count()) != rows) return misfit("group_by_rank");
    Queue queue(stream, scratch);
    cub::DoubleBuffer<uint32_t> keys(queue.scratch<uint32_t>(rows), queue.scratch<uint32_t>(rows));
    cub::DoubleBuffer<int32_t> sorted(queue.scratch<int32_t>(rows), order->typed_data());
    if (rows > 0) {
      queue.launch_over(rows, sort_keys, rank.typed_data(), read_count(num, rows), ranks, keys.Current(),
                        sorted.Current());
      sort_pairs(queue, keys, sorted, rows, 0, bits_of(ranks));
    }
    queue.launch_over(std::max(rows, ranks), finish_groups, keys.Current(), sorted.Current(), rows, ranks,
                      order->typed_data(), counts->typed_data());
    return ffi::Error::Success();
  });
}

}  // namespace

JZTREE_HANDLER(jztree_pack_segments, pack_segments);
JZTREE_HANDLER(jztree_unpack_segments, unpack_segments);
JZTREE_HANDLER(jztree_place_rows, place_rows);
JZTREE_HANDLER(jztree_group_by_rank, group_by_rank);

}  // namespace jztree
