#include "base/text/dataset_check.h"

#include <filesystem>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/text/jsonl_reader.h"

namespace cadre {
namespace {

// What a failed Encode says about the record.
DataErrorCode CodeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOutOfRange:
      return DataErrorCode::kTooLong;
    case absl::StatusCode::kNotFound:
      return DataErrorCode::kNoTarget;
    default:
      return DataErrorCode::kTemplate;
  }
}

class Checker {
 public:
  Checker(const TextEncoder* encoder, const DatasetCheckOptions& options)
      : encoder_(encoder),
        options_(options),
        stats_(options.encode.max_seq_len, options.packing) {
    report_.format = options.format;
  }

  absl::Status CheckFile(const std::string& path) {
    CADRE_ASSIGN_OR_RETURN(std::unique_ptr<JsonlReader> reader,
                           JsonlReader::Open(path));
    DatasetFile& file = report_.files.emplace_back();
    file.path = path;
    std::error_code error;
    file.size_bytes =
        static_cast<int64_t>(std::filesystem::file_size(path, error));
    JsonlLine line;
    while (true) {
      if (options_.head_only && (file.records >= options_.head_records ||
                                 reader->position() >= options_.head_bytes)) {
        if (reader->position() < file.size_bytes) report_.complete = false;
        break;
      }
      if (options_.cancelled != nullptr && options_.cancelled->load()) {
        return absl::CancelledError(absl::StrCat("the check was stopped at ",
                                                 path, " line ", line.number));
      }
      CADRE_ASSIGN_OR_RETURN(const bool more, reader->Next(&line));
      if (!more) break;
      if (CheckLine(path, line)) ++file.records;
    }
    if (file.records == 0) {
      Error({path, 0, 0, DataErrorCode::kEmpty,
             "the file holds no records; remove it or fill it"});
    }
    return absl::OkStatus();
  }

  DatasetReport Finish() {
    if (encoder_ != nullptr) report_.token_stats = stats_.Finish();
    if (!format_known_) report_.format = options_.format;
    return std::move(report_);
  }

 private:
  void Error(DataError error) {
    if (report_.num_errors++ < options_.max_errors) {
      report_.errors.push_back(std::move(error));
    }
  }
  void Warn(DataError warning) {
    if (report_.num_warnings++ < options_.max_warnings) {
      report_.warnings.push_back(std::move(warning));
    }
  }

  // True where the line holds a record, good or bad.
  bool CheckLine(const std::string& path, const JsonlLine& line) {
    const auto bad_line = [&](DataErrorCode code, std::string message) {
      Error({path, line.number, line.problem_column, code, std::move(message)});
      return true;
    };
    switch (line.problem) {
      case JsonlLine::Problem::kTooLong:
        return bad_line(
            DataErrorCode::kTooLong,
            absl::StrCat("the line is longer than ", kMaxJsonlLineBytes,
                         " bytes; split the record"));
      case JsonlLine::Problem::kInvalidUtf8:
        return bad_line(DataErrorCode::kUtf8,
                        "bytes that are not UTF-8; convert the file");
      case JsonlLine::Problem::kByteOrderMark:
        return bad_line(DataErrorCode::kUtf8,
                        "the file begins with a byte order mark; save it as "
                        "UTF-8 without one");
      case JsonlLine::Problem::kNone:
        break;
    }
    if (line.IsBlank()) {
      Warn({path, line.number, 0, DataErrorCode::kEmpty,
            "a blank line is skipped"});
      return false;
    }
    ParsedRecord parsed =
        ParseRecord(line.text, report_.format, path, line.number);
    for (DataError& warning : parsed.warnings) Warn(std::move(warning));
    for (DataError& error : parsed.errors) Error(std::move(error));
    if (!parsed.record.has_value()) return true;
    report_.format = parsed.record->format;
    format_known_ = true;
    if (encoder_ == nullptr) return true;
    const absl::StatusOr<EncodedSample> sample =
        encoder_->Encode(*parsed.record, options_.encode);
    if (!sample.ok()) {
      Error({path, line.number, 0, CodeOf(sample.status()),
             std::string(sample.status().message())});
      return true;
    }
    stats_.Add(*sample, path, line.number);
    return true;
  }

  const TextEncoder* encoder_;
  const DatasetCheckOptions& options_;
  TokenStatsCollector stats_;
  bool format_known_ = false;
  DatasetReport report_;
};

}  // namespace

absl::StatusOr<DatasetReport> CheckDataset(
    const std::vector<std::string>& patterns, const TextEncoder* encoder,
    const DatasetCheckOptions& options) {
  CADRE_ASSIGN_OR_RETURN(const std::vector<std::string> files,
                         ExpandDataFiles(patterns));
  Checker checker(encoder, options);
  for (const std::string& file : files) {
    CADRE_RETURN_IF_ERROR(checker.CheckFile(file));
  }
  return checker.Finish();
}

absl::StatusOr<DatasetReport> CheckDataset(
    const std::vector<std::string>& patterns, const std::string& model_dir,
    const DatasetCheckOptions& options) {
  if (model_dir.empty()) {
    return CheckDataset(patterns, static_cast<const TextEncoder*>(nullptr),
                        options);
  }
  CADRE_ASSIGN_OR_RETURN(const std::unique_ptr<const TextEncoder> encoder,
                         TextEncoder::Load(model_dir));
  return CheckDataset(patterns, encoder.get(), options);
}

}  // namespace cadre
