#include "worker/shard/owned_slice.h"

#include <algorithm>

namespace cadre {
namespace {

std::vector<Stretch> Find(const OwnedSlice& slice, bool home_only) {
  const Parameter& parameter = *slice.parameter;
  if (slice.size() == 0) return {};
  if (parameter.rows.empty()) {
    return {{.begin = 0, .size = slice.size(), .global_begin = slice.begin}};
  }
  const int64_t width = parameter.value.num_elements() /
                        static_cast<int64_t>(parameter.rows.size());
  std::vector<Stretch> out;
  for (int64_t at = slice.begin; at < slice.end;) {
    const HeldRow& row = parameter.rows[at / width];
    const int64_t n = std::min(slice.end, (at / width + 1) * width) - at;
    const Stretch next{.begin = at - slice.begin,
                       .size = n,
                       .global_begin = row.index * width + at % width};
    at += n;
    if (row.index < 0 || (home_only && !row.home)) continue;
    if (!out.empty() && out.back().begin + out.back().size == next.begin &&
        out.back().global_begin + out.back().size == next.global_begin) {
      out.back().size += n;
    } else {
      out.push_back(next);
    }
  }
  return out;
}

}  // namespace

std::vector<Stretch> StretchesOf(const OwnedSlice& slice) {
  return Find(slice, /*home_only=*/false);
}

std::vector<Stretch> HomeStretches(const OwnedSlice& slice) {
  return Find(slice, /*home_only=*/true);
}

}  // namespace cadre
