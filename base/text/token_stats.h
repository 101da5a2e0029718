#ifndef CADRE_BASE_TEXT_TOKEN_STATS_H_
#define CADRE_BASE_TEXT_TOKEN_STATS_H_

// Length statistics of a data set, collected record by record. Percentiles are
// exact (nearest rank). Not thread-safe.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/text/encode.h"

namespace cadre {

struct LineRef {
  std::string file;
  int64_t line = 0;
  bool operator==(const LineRef&) const = default;
};

struct TokenStats {
  int64_t records = 0;       // all, dropped ones included
  int64_t total_tokens = 0;  // of the records kept, after truncation
  int64_t loss_tokens = 0;   // of these, counted in the loss
  int32_t max_id = -1;       // largest token id of the records kept
  // Lengths of all records before truncation.
  int64_t min = 0, p5 = 0, p50 = 0, p95 = 0, p99 = 0, max = 0;
  // Bucket 0: length <= 1; bucket i: 2^i <= length < 2^(i+1); the last one also
  // holds everything longer.
  std::array<int64_t, 16> log2_buckets = {};
  int64_t truncated = 0;
  int64_t dropped = 0;
  std::vector<LineRef> truncated_lines;  // the first 100
  std::vector<LineRef> dropped_lines;    // the first 100
  // Rows of max_seq_len that the records kept take, and the part of them that
  // holds tokens (1 = no padding). Without packing, a row a record.
  int64_t rows = 0;
  double packing_fill = 0.0;
};

class TokenStatsCollector {
 public:
  TokenStatsCollector(int64_t max_seq_len, bool packing);
  void Add(const EncodedSample& sample, const std::string& file, int64_t line);
  TokenStats Finish() const;

 private:
  int64_t max_seq_len_;
  bool packing_;
  TokenStats stats_;
  std::vector<int32_t> full_lengths_;
  std::vector<int32_t> kept_lengths_;
};

// Rows that first-fit in the given order makes of the lengths (each <=
// capacity): result[i] is the row of item i; rows are numbered from 0 in order
// of creation. O(n log n). What the trainer packs with.
std::vector<int32_t> FirstFitRows(const std::vector<int32_t>& lengths,
                                  int64_t capacity);

}  // namespace cadre

#endif  // CADRE_BASE_TEXT_TOKEN_STATS_H_
