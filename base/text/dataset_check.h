#ifndef CADRE_BASE_TEXT_DATASET_CHECK_H_
#define CADRE_BASE_TEXT_DATASET_CHECK_H_

// Checks the files of a data set record by record and counts their tokens. The
// coordinator and `cadre dataset check` run the same code. Pure but for reading
// files; thread-safe.
//
//   ASSIGN_OR_RETURN(DatasetReport report,
//                    CheckDataset({"train/*.jsonl"}, model_dir, {}));
//   if (!report.ok()) for (const DataError& e : report.errors) ...

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/text/encode.h"
#include "base/text/record.h"
#include "base/text/token_stats.h"

namespace cadre {

struct DatasetCheckOptions {
  DataFormat format = DataFormat::kAuto;
  EncodeOptions encode;
  bool packing = true;
  // Only the head of each file: what an RPC can afford.
  bool head_only = false;
  int64_t head_records = 100;
  int64_t head_bytes = int64_t{256} << 10;
  int max_errors = 100;    // kept; all are counted
  int max_warnings = 100;  // likewise
  // Where set to true by another thread, the check stops with CANCELLED.
  const std::atomic<bool>* cancelled = nullptr;
};

struct DatasetFile {
  std::string path;
  int64_t size_bytes = 0;
  int64_t records = 0;
};

struct DatasetReport {
  std::vector<DatasetFile> files;
  DataFormat format = DataFormat::kAuto;  // kAuto: no good record was found
  std::vector<DataError> errors;
  int64_t num_errors = 0;
  std::vector<DataError> warnings;
  int64_t num_warnings = 0;
  // Absent without a tokenizer.
  std::optional<TokenStats> token_stats;
  // False when head_only left a part unread.
  bool complete = true;

  bool ok() const { return num_errors == 0; }
};

// encoder null: the format rules only, no tokens. A Status error means that the
// check could not run (a pattern matches nothing, a file cannot be read); bad
// records are in the report. All files together form one data set: one format.
absl::StatusOr<DatasetReport> CheckDataset(
    const std::vector<std::string>& patterns, const TextEncoder* encoder,
    const DatasetCheckOptions& options);

// Loads tokenizer and template of the model directory first; "": none.
absl::StatusOr<DatasetReport> CheckDataset(
    const std::vector<std::string>& patterns, const std::string& model_dir,
    const DatasetCheckOptions& options);

}  // namespace cadre

#endif  // CADRE_BASE_TEXT_DATASET_CHECK_H_
