#include "worker/data/packed_dataset.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "base/text/jsonl_reader.h"
#include "base/text/token_stats.h"

namespace cadre {
namespace {

// SplitMix64 (public domain algorithm by S. Vigna): the same numbers on every
// machine and standard library, which std::shuffle does not promise.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next() {
    state_ += 0x9E3779B97F4A7C15u;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  // Below n > 0; the bias is under n / 2^64.
  int64_t Below(int64_t n) {
    return static_cast<int64_t>(
        (static_cast<unsigned __int128>(Next()) * static_cast<uint64_t>(n)) >>
        64);
  }

 private:
  uint64_t state_;
};

// The order of n items; `stream` tells shuffles of one seed apart.
std::vector<int32_t> Order(int64_t n, bool shuffle, uint64_t seed,
                           uint64_t stream) {
  std::vector<int32_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  if (!shuffle) return order;
  Random random(Random(seed).Next() ^ (stream * 0xD1342543DE82EF95u + 1));
  for (int64_t i = n - 1; i > 0; --i) {
    std::swap(order[i], order[random.Below(i + 1)]);
  }
  return order;
}

// Stream 0 orders the samples for packing, stream e + 1 the rows of epoch e.
constexpr uint64_t kPackingStream = 0;

absl::Status CheckOptions(const PackedDatasetOptions& options) {
  if (options.global_batch_size < 1 || options.micro_batch_size < 1 ||
      options.num_ranks < 1 || options.rank < 0 ||
      options.rank >= options.num_ranks || options.encode.max_seq_len < 2) {
    return absl::InvalidArgumentError(absl::StrCat(
        "data: global_batch_size ", options.global_batch_size,
        ", micro_batch_size ", options.micro_batch_size, ", rank ",
        options.rank, " of ", options.num_ranks, ", max_seq_len ",
        options.encode.max_seq_len,
        ": each size must be positive and the rank below their number"));
  }
  if (options.micro_batch_size >
      std::numeric_limits<int32_t>::max() / options.encode.max_seq_len) {
    return absl::InvalidArgumentError(absl::StrCat(
        "micro_batch_size ", options.micro_batch_size, " x max_seq_len ",
        options.encode.max_seq_len, " is over 2^31 tokens a batch"));
  }
  const int64_t unit = options.num_ranks * options.micro_batch_size;
  if (options.global_batch_size % unit != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "global_batch_size ", options.global_batch_size, " does not divide by ",
        options.num_ranks, " data-parallel ranks x micro_batch_size ",
        options.micro_batch_size, " = ", unit, "; choose a multiple of ",
        unit));
  }
  return absl::OkStatus();
}

}  // namespace

std::string DataCursor::Serialize() const {
  return absl::StrCat(epoch, ":", next_row);
}

absl::StatusOr<DataCursor> DataCursor::Parse(absl::string_view text) {
  const std::vector<std::string> parts = absl::StrSplit(text, ':');
  DataCursor cursor;
  if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &cursor.epoch) ||
      !absl::SimpleAtoi(parts[1], &cursor.next_row) || cursor.epoch < 0 ||
      cursor.next_row < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("data cursor `", text, "` is not `epoch:row`"));
  }
  return cursor;
}

PackedDataset::PackedDataset(const PackedDatasetOptions& options)
    : options_(options) {}

absl::StatusOr<std::unique_ptr<PackedDataset>> PackedDataset::Load(
    const std::vector<std::string>& patterns, const TextEncoder& encoder,
    const PackedDatasetOptions& options) {
  CADRE_RETURN_IF_ERROR(CheckOptions(options));
  CADRE_ASSIGN_OR_RETURN(const std::vector<std::string> files,
                         ExpandDataFiles(patterns));
  std::vector<EncodedSample> samples;
  DataFormat format = options.format;
  for (const std::string& file : files) {
    CADRE_ASSIGN_OR_RETURN(std::unique_ptr<JsonlReader> reader,
                           JsonlReader::Open(file));
    JsonlLine line;
    while (true) {
      CADRE_ASSIGN_OR_RETURN(const bool more, reader->Next(&line));
      if (!more) break;
      if (line.IsBlank()) continue;
      const std::string where = absl::StrCat(file, ":", line.number);
      if (line.problem != JsonlLine::Problem::kNone) {
        return absl::InvalidArgumentError(absl::StrCat(
            where, ": the line is too long or not UTF-8; check the data set"));
      }
      ParsedRecord parsed = ParseRecord(line.text, format, file, line.number);
      if (!parsed.record.has_value()) {
        return absl::InvalidArgumentError(parsed.errors.front().ToString());
      }
      format = parsed.record->format;
      absl::StatusOr<EncodedSample> sample =
          encoder.Encode(*parsed.record, options.encode);
      if (!sample.ok()) return Annotate(sample.status(), where);
      if (!sample->dropped) samples.push_back(*std::move(sample));
    }
  }
  return FromSamples(std::move(samples), options);
}

absl::StatusOr<std::unique_ptr<PackedDataset>> PackedDataset::FromSamples(
    std::vector<EncodedSample> samples, const PackedDatasetOptions& options) {
  CADRE_RETURN_IF_ERROR(CheckOptions(options));
  const int64_t capacity = options.encode.max_seq_len;
  std::unique_ptr<PackedDataset> data(new PackedDataset(options));
  for (EncodedSample& sample : samples) {
    if (sample.dropped) continue;
    const int64_t length = static_cast<int64_t>(sample.ids.size());
    if (length > capacity || sample.trained.size() != sample.ids.size()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "sample ", data->num_samples(), " has ", length, " tokens and ",
          sample.trained.size(), " mask values; max_seq_len is ", capacity));
    }
    if (length == 0) continue;
    Sample& kept = data->samples_.emplace_back();
    kept.targets.assign(length, Batch::kIgnore);
    for (int64_t t = 0; t + 1 < length; ++t) {
      if (sample.trained[t + 1] == 0) continue;
      kept.targets[t] = sample.ids[t + 1];
      ++kept.num_targets;
    }
    kept.ids = std::move(sample.ids);
    data->num_tokens_ += length;
  }
  if (data->samples_.empty()) {
    return absl::InvalidArgumentError(
        "the data set holds no sample to train on; all records were dropped, "
        "or there are none");
  }
  if (data->samples_.size() > std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError("more than 2^31 samples");
  }
  // Rows are made once, so that their number is the same in every epoch;
  // shuffled before, so that neighbours in a file do not share a row.
  const std::vector<int32_t> order =
      Order(data->num_samples(), options.shuffle && options.packing,
            options.seed, kPackingStream);
  if (!options.packing) {
    for (int32_t sample : order) data->rows_.push_back({sample});
    return data;
  }
  std::vector<int32_t> lengths;
  lengths.reserve(order.size());
  for (int32_t sample : order) {
    lengths.push_back(static_cast<int32_t>(data->samples_[sample].ids.size()));
  }
  const std::vector<int32_t> rows = FirstFitRows(lengths, capacity);
  for (size_t i = 0; i < order.size(); ++i) {
    if (rows[i] >= static_cast<int32_t>(data->rows_.size())) {
      data->rows_.resize(rows[i] + 1);
    }
    data->rows_[rows[i]].push_back(order[i]);
  }
  return data;
}

void PackedDataset::PrepareEpoch(int64_t epoch) {
  if (order_epoch_ == epoch) return;
  order_ = Order(rows_per_epoch(), options_.shuffle, options_.seed,
                 static_cast<uint64_t>(epoch) + 1);
  order_epoch_ = epoch;
}

void PackedDataset::AppendRow(int64_t row, Batch* batch) const {
  for (int32_t number : rows_[row]) {
    const Sample& sample = samples_[number];
    batch->ids.insert(batch->ids.end(), sample.ids.begin(), sample.ids.end());
    batch->targets.insert(batch->targets.end(), sample.targets.begin(),
                          sample.targets.end());
    batch->cu_seqlens.push_back(static_cast<int32_t>(batch->ids.size()));
  }
}

TrainStep PackedDataset::Next() {
  const int64_t rows_per_rank = options_.global_batch_size / options_.num_ranks;
  const int64_t first = rows_per_rank * options_.rank;
  TrainStep step;
  step.epoch = cursor_.epoch;
  for (int64_t i = 0; i < options_.global_batch_size; ++i) {
    PrepareEpoch(cursor_.epoch);
    const int64_t row = order_[cursor_.next_row];
    if (++cursor_.next_row == rows_per_epoch()) {
      cursor_ = {.epoch = cursor_.epoch + 1, .next_row = 0};
    }
    for (int32_t number : rows_[row]) {
      step.global_targets += samples_[number].num_targets;
      step.global_tokens += static_cast<int64_t>(samples_[number].ids.size());
    }
    if (i < first || i >= first + rows_per_rank) continue;
    if ((i - first) % options_.micro_batch_size == 0) {
      step.micro_batches.emplace_back().cu_seqlens = {0};
    }
    AppendRow(row, &step.micro_batches.back());
  }
  return step;
}

absl::Status PackedDataset::Seek(const DataCursor& cursor) {
  if (cursor.epoch < 0 || cursor.next_row < 0 ||
      cursor.next_row >= rows_per_epoch()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "data cursor ", cursor.Serialize(), " lies outside of a data set of ",
        rows_per_epoch(),
        " rows an epoch; the data or its options are not those of the "
        "checkpoint"));
  }
  cursor_ = cursor;
  return absl::OkStatus();
}

int64_t PackedDataset::StepsForEpochs(double epochs) const {
  const double rows = epochs * static_cast<double>(rows_per_epoch());
  // Rounding in the product must not add a step to a whole number of them.
  const double steps =
      rows / static_cast<double>(options_.global_batch_size) - 1e-9;
  return std::max<int64_t>(1, static_cast<int64_t>(std::ceil(steps)));
}

std::vector<Batch> PackedDataset::EvalBatches() const {
  const int64_t rows = rows_per_epoch();
  const int64_t group = options_.num_ranks * options_.micro_batch_size;
  const int64_t per_rank = (rows + group - 1) / group;
  std::vector<Batch> batches(per_rank);
  for (int64_t i = 0; i < per_rank; ++i) {
    batches[i].cu_seqlens = {0};
    const int64_t begin =
        (options_.rank * per_rank + i) * options_.micro_batch_size;
    const int64_t end = std::min(rows, begin + options_.micro_batch_size);
    for (int64_t row = begin; row < end; ++row) AppendRow(row, &batches[i]);
  }
  return batches;
}

}  // namespace cadre
