#include "group_order.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/cpu/context.h"

namespace jztree {
namespace {

// Puts rows into the order of their groups, in passes over parts of consecutive rows. A group belongs to the part of
// its first row. Its rows in later parts are guests there: tables count them, and only the steps between the passes,
// which visit the parts and the groups with guests, run on one thread. In z-order, few groups have guests.
class Order {
 public:
  Order(const Parallel& parallel, const GroupOrder& in, int64_t num)
      : parallel_(parallel),
        in_(in),
        num_(num),
        rows_of_part_(std::max(fewest_rows, (num - 1) / (4 * parallel.threads()) + 1)),
        parts_(static_cast<size_t>((num + rows_of_part_ - 1) / rows_of_part_)),
        place_(num) {}

  // Returns the number of listed groups.
  int64_t find() {
    each_part([&](Part& part, int64_t begin, int64_t end) { count_rows(part, begin, end); });
    for (Part& part : parts_) {
      if (part.bad_row >= 0)
        throw Refusal("row " + std::to_string(part.bad_row) + " has a group label outside the particles.");
      for (auto& [label, guests] : part.guests) {
        const int64_t before = place_[label];
        place_[label] += static_cast<int32_t>(guests);
        guests = before;
      }
    }
    each_part([&](Part& part, int64_t begin, int64_t end) { count_groups(part, begin, end); });
    Sizes before;
    for (Part& part : parts_) {
      std::swap(part.before, before);
      before.groups += part.before.groups;
      before.members += part.before.members;
      before.others += part.before.others;
    }
    each_part([&](Part& part, int64_t begin, int64_t end) { list_groups(part.before, begin, end); });
    each_part([&](Part& part, int64_t, int64_t) {
      for (auto& [label, guests] : part.guests) guests = place_[label] < 0 ? unlisted : place_[label] + guests;
    });
    each_part([&](Part& part, int64_t begin, int64_t end) {
      place_rows(part, before.members + part.before.others, begin, end);
    });
    return before.groups;
  }

 private:
  static constexpr int64_t fewest_rows = 1 << 14;
  static constexpr int32_t unlisted = -1;

  struct Sizes {
    int64_t groups = 0, members = 0, others = 0;  // listed groups, their rows, and all other rows
  };
  struct Part {
    // By label: the number of guests, then the number of rows of the group in earlier parts, then the next place.
    std::unordered_map<int32_t, int64_t> guests;
    Sizes before;  // of the part, then of all earlier parts
    int64_t bad_row = -1;
  };

  template <typename Work>
  void each_part(const Work& work) {
    parallel_.blocks(num_, rows_of_part_, [&](int64_t begin, int64_t end) {
      work(parts_[static_cast<size_t>(begin / rows_of_part_)], begin, end);
    });
  }

  // Call visit(row, number) with place_ of the row's group, or with the number of the group among the guests. Guests of
  // one group often follow each other.
  template <typename Own, typename Guest>
  void each_row(Part& part, int64_t begin, int64_t end, const Own& own, const Guest& guest) {
    int32_t label = -1;
    int64_t* number = nullptr;
    for (int64_t row = begin; row < end; ++row) {
      if (in_.label[row] >= begin) {
        own(row, place_[in_.label[row]]);
        continue;
      }
      if (in_.label[row] != label) number = &part.guests[label = in_.label[row]];
      guest(row, *number);
    }
  }

  void count_rows(Part& part, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      place_[row] = 0;
      if (in_.label[row] < 0 || in_.label[row] > row) {
        part.bad_row = row;
        return;
      }
    }
    each_row(part, begin, end, [](int64_t, int32_t& size) { ++size; }, [](int64_t, int64_t& guests) { ++guests; });
  }

  void count_groups(Part& part, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      part.before.others += place_[in_.label[row]] < in_.npart_min;
      if (place_[row] < in_.npart_min) continue;
      ++part.before.groups;
      part.before.members += place_[row];
    }
  }

  void list_groups(const Sizes& before, int64_t begin, int64_t end) {
    int64_t group = before.groups, next = before.members;
    for (int64_t row = begin; row < end; ++row) {
      const int32_t size = place_[row];
      place_[row] = size >= in_.npart_min ? static_cast<int32_t>(next) : unlisted;
      if (size < in_.npart_min) continue;
      in_.count[group] = size;
      in_.offset[group++] = static_cast<int32_t>(next);
      next += size;
    }
  }

  void place_rows(Part& part, int64_t unlisted_place, int64_t begin, int64_t end) {
    auto put = [&](int64_t row, auto& next) {
      in_.order[next >= 0 ? next++ : unlisted_place++] = static_cast<int32_t>(row);
    };
    each_row(part, begin, end, put, put);
  }

  const Parallel& parallel_;
  const GroupOrder& in_;
  const int64_t num_, rows_of_part_;
  std::vector<Part> parts_;
  Scratch<int32_t> place_;  // in the first row of each group: its size, then the next place in the order
};

void group_order(const Parallel& parallel, const GroupOrder& in) {
  const int64_t rows = in.num();
  std::fill_n(in.count.data, in.room(), 0);
  std::fill_n(in.offset, in.room(), 0);
  *in.ngroups = static_cast<int32_t>(Order(parallel, in, rows).find());
  parallel.blocks(in.label.rows() - rows, 1 << 16, [&](int64_t begin, int64_t end) {
    for (int64_t row = rows + begin; row < rows + end; ++row) in.order[row] = static_cast<int32_t>(row);
  });
}

}  // namespace

JZTREE_PLAIN_KERNEL(group_order, GroupOrder);

}  // namespace jztree
