#ifndef CADRE_WORKER_DATA_PACKED_DATASET_H_
#define CADRE_WORKER_DATA_PACKED_DATASET_H_

// The training data of one rank. All samples are encoded once and kept in
// memory, packed into rows of at most max_seq_len tokens; the rows are shuffled
// anew in each data epoch, from the seed alone. One step takes the next
// global_batch_size rows of that endless order (a batch may cross an epoch's
// end) and hands each rank a contiguous slice, so what a step trains on does
// not depend on the number of ranks. Not thread-safe.
//
//   ASSIGN_OR_RETURN(auto data, PackedDataset::Load(patterns, encoder,
//   options)); data->Seek(checkpoint.cursor); TrainStep step = data->Next();

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/text/encode.h"
#include "base/text/record.h"
#include "worker/model/batch.h"

namespace cadre {

// Where the next step begins: row next_row of the data epoch's order.
struct DataCursor {
  int64_t epoch = 0;
  int64_t next_row = 0;
  bool operator==(const DataCursor&) const = default;

  // "epoch:row", for checkpoints.
  std::string Serialize() const;
  static absl::StatusOr<DataCursor> Parse(absl::string_view text);
};

struct PackedDatasetOptions {
  DataFormat format = DataFormat::kAuto;
  EncodeOptions encode;
  bool packing = true;  // false: one sample a row
  bool shuffle = true;
  uint64_t seed = 1;
  int64_t global_batch_size = 32;  // rows a step, over all ranks
  int64_t micro_batch_size = 1;    // rows a Batch
  // Data-parallel position of this rank.
  int rank = 0;
  int num_ranks = 1;
};

// One optimizer step of this rank.
struct TrainStep {
  // global_batch_size / (num_ranks * micro_batch_size) batches: the same count
  // on every rank.
  std::vector<Batch> micro_batches;
  // Over all ranks and micro-batches of the step, equal on every rank: the
  // loss's denominator needs no collective.
  int64_t global_targets = 0;
  int64_t global_tokens = 0;
  // Data epoch of the step's first row.
  int64_t epoch = 0;
};

class PackedDataset {
 public:
  // Reads every file (patterns as in ExpandDataFiles). Any bad record is an
  // error: the data changed since it was checked.
  static absl::StatusOr<std::unique_ptr<PackedDataset>> Load(
      const std::vector<std::string>& patterns, const TextEncoder& encoder,
      const PackedDatasetOptions& options);
  // From samples in file order; dropped ones are left out.
  static absl::StatusOr<std::unique_ptr<PackedDataset>> FromSamples(
      std::vector<EncodedSample> samples, const PackedDatasetOptions& options);

  TrainStep Next();

  // What Next will begin with.
  DataCursor cursor() const { return cursor_; }
  absl::Status Seek(const DataCursor& cursor);

  int64_t num_samples() const { return static_cast<int64_t>(samples_.size()); }
  int64_t rows_per_epoch() const { return static_cast<int64_t>(rows_.size()); }
  int64_t num_tokens() const { return num_tokens_; }
  // Steps that cover `epochs` passes: ceil(epochs * rows / global batch).
  int64_t StepsForEpochs(double epochs) const;

  // One pass, in an order of no meaning, for evaluation, split over the ranks
  // like a step; every rank gets the same number of batches, the last ones may
  // be empty.
  std::vector<Batch> EvalBatches() const;

 private:
  struct Sample {
    std::vector<int32_t> ids;
    std::vector<int32_t> targets;  // shifted, Batch::kIgnore where none
    int64_t num_targets = 0;
  };

  explicit PackedDataset(const PackedDatasetOptions& options);
  void PrepareEpoch(int64_t epoch);
  void AppendRow(int64_t row, Batch* batch) const;

  PackedDatasetOptions options_;
  std::vector<Sample> samples_;
  std::vector<std::vector<int32_t>> rows_;  // sample numbers
  int64_t num_tokens_ = 0;
  DataCursor cursor_;
  int64_t order_epoch_ = -1;
  std::vector<int32_t> order_;  // row numbers of order_epoch_
};

}  // namespace cadre

#endif  // CADRE_WORKER_DATA_PACKED_DATASET_H_
