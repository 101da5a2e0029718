#include "base/text/token_stats.h"

#include <algorithm>
#include <cmath>

namespace cadre {
namespace {

constexpr size_t kMaxLines = 100;

int Bucket(int64_t length) {
  int bucket = 0;
  while (length > 1 && bucket < 15) {
    length >>= 1;
    ++bucket;
  }
  return bucket;
}

// Nearest rank, of sorted values.
int64_t Percentile(const std::vector<int32_t>& sorted, double fraction) {
  const int64_t n = static_cast<int64_t>(sorted.size());
  const int64_t rank =
      static_cast<int64_t>(std::ceil(fraction * static_cast<double>(n)));
  return sorted[std::clamp<int64_t>(rank - 1, 0, n - 1)];
}

}  // namespace

TokenStatsCollector::TokenStatsCollector(int64_t max_seq_len, bool packing)
    : max_seq_len_(max_seq_len), packing_(packing) {}

void TokenStatsCollector::Add(const EncodedSample& sample,
                              const std::string& file, int64_t line) {
  ++stats_.records;
  full_lengths_.push_back(static_cast<int32_t>(sample.full_length));
  ++stats_.log2_buckets[Bucket(sample.full_length)];
  const auto note = [&](std::vector<LineRef>* lines) {
    if (lines->size() < kMaxLines) lines->push_back({file, line});
  };
  if (sample.truncated) {
    ++stats_.truncated;
    note(&stats_.truncated_lines);
  }
  if (sample.dropped) {
    ++stats_.dropped;
    note(&stats_.dropped_lines);
    return;
  }
  stats_.total_tokens += static_cast<int64_t>(sample.ids.size());
  stats_.loss_tokens += sample.num_targets();
  for (const int32_t id : sample.ids) {
    stats_.max_id = std::max(stats_.max_id, id);
  }
  kept_lengths_.push_back(static_cast<int32_t>(sample.ids.size()));
}

TokenStats TokenStatsCollector::Finish() const {
  TokenStats stats = stats_;
  if (!full_lengths_.empty()) {
    std::vector<int32_t> sorted = full_lengths_;
    std::sort(sorted.begin(), sorted.end());
    stats.min = sorted.front();
    stats.p5 = Percentile(sorted, 0.05);
    stats.p50 = Percentile(sorted, 0.50);
    stats.p95 = Percentile(sorted, 0.95);
    stats.p99 = Percentile(sorted, 0.99);
    stats.max = sorted.back();
  }
  if (packing_) {
    const std::vector<int32_t> rows = FirstFitRows(kept_lengths_, max_seq_len_);
    if (!rows.empty()) {
      stats.rows = *std::max_element(rows.begin(), rows.end()) + 1;
    }
  } else {
    stats.rows = static_cast<int64_t>(kept_lengths_.size());
  }
  if (stats.rows > 0) {
    stats.packing_fill =
        static_cast<double>(stats.total_tokens) /
        (static_cast<double>(stats.rows) * static_cast<double>(max_seq_len_));
  }
  return stats;
}

std::vector<int32_t> FirstFitRows(const std::vector<int32_t>& lengths,
                                  int64_t capacity) {
  const int64_t n = static_cast<int64_t>(lengths.size());
  // A tree over the rows (as many as there could be) that knows the largest
  // free space below each node; the leftmost row that fits is found from the
  // root.
  int64_t leaves = 1;
  while (leaves < n) leaves *= 2;
  std::vector<int64_t> space(2 * leaves, capacity);
  std::vector<int32_t> rows(n);
  for (int64_t i = 0; i < n; ++i) {
    int64_t node = 1;
    while (node < leaves) {
      node *= 2;
      if (space[node] < lengths[i]) ++node;
    }
    rows[i] = static_cast<int32_t>(node - leaves);
    space[node] -= lengths[i];
    while (node > 1) {
      node /= 2;
      space[node] = std::max(space[2 * node], space[2 * node + 1]);
    }
  }
  return rows;
}

}  // namespace cadre
