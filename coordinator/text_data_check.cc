#include "coordinator/text_data_check.h"

#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/text/dataset_check.h"
#include "model/sha256.h"
#include "plan/dataset_proto.h"
#include "plan/facts_cache.h"
#include "plan/model_facts.h"

namespace cadre::coordinator {
namespace {

absl::StatusOr<DatasetCheckOptions> OptionsOf(const v1::JobSpec& spec) {
  const v1::DataSpec& data = spec.data();
  DatasetCheckOptions options;
  CADRE_ASSIGN_OR_RETURN(options.format, ParseDataFormat(data.format()));
  CADRE_ASSIGN_OR_RETURN(options.encode.loss_on, ParseLossOn(data.loss_on()));
  CADRE_ASSIGN_OR_RETURN(options.encode.too_long,
                         ParseTooLong(data.too_long()));
  options.encode.max_seq_len = data.max_seq_len();
  options.packing = data.packing();
  return options;
}

std::vector<std::string> Patterns(
    const google::protobuf::RepeatedPtrField<std::string>& patterns) {
  return {patterns.begin(), patterns.end()};
}

void AddFindings(const std::vector<DataError>& errors, int64_t total,
                 v1::Diagnostic::Severity severity, DataVerdict* verdict) {
  for (const DataError& error : errors) {
    *verdict->diagnostics.add_items() = ToProto(error, severity);
  }
  verdict->diagnostics.set_total(verdict->diagnostics.total() + total);
}

// The check itself could not run: a missing file, a broken tokenizer.
void AddFailure(const absl::Status& status, const char* field,
                DataVerdict* verdict) {
  v1::Diagnostic* item = verdict->diagnostics.add_items();
  item->set_severity(v1::Diagnostic::SEVERITY_ERROR);
  item->set_field(field);
  item->set_message(std::string(status.message()));
  verdict->diagnostics.set_total(verdict->diagnostics.total() + 1);
}

void TakeReport(const absl::StatusOr<DatasetReport>& report, const char* field,
                int64_t* errors, DataVerdict* verdict) {
  if (!report.ok()) {
    if (absl::IsCancelled(report.status())) {
      verdict->status = report.status();
    } else {
      AddFailure(report.status(), field, verdict);
      ++*errors;
    }
    return;
  }
  *errors += report->num_errors;
  AddFindings(report->errors, report->num_errors,
              v1::Diagnostic::SEVERITY_ERROR, verdict);
  AddFindings(report->warnings, report->num_warnings,
              v1::Diagnostic::SEVERITY_WARNING, verdict);
  for (const DatasetFile& file : report->files) {
    auto& pinned = verdict->files.emplace_back();
    pinned.set_path(file.path);
    pinned.set_bytes(file.size_bytes);
    struct stat info;
    if (stat(file.path.c_str(), &info) == 0) {
      pinned.set_modified_ns(info.st_mtim.tv_sec * 1'000'000'000 +
                             info.st_mtim.tv_nsec);
    }
  }
}

// A second pass over the files: what is trained on later must be what was
// checked. CANCELLED when the flag is set meanwhile.
absl::Status AddDigests(const std::atomic<bool>* cancelled,
                        std::vector<state::v1::PinnedFile>* files) {
  std::vector<char> buffer(1 << 20);
  for (state::v1::PinnedFile& file : *files) {
    std::ifstream in(file.path(), std::ios::binary);
    if (!in.is_open()) {
      return absl::NotFoundError(absl::StrCat(
          file.path(), " went away while the data set was checked"));
    }
    Sha256 sha;
    while (in.read(buffer.data(), static_cast<int64_t>(buffer.size())) ||
           in.gcount() > 0) {
      if (cancelled != nullptr && *cancelled) {
        return absl::CancelledError("the check was stopped");
      }
      sha.Update(absl::string_view(buffer.data(), in.gcount()));
    }
    file.set_sha256(sha.HexDigest());
  }
  return absl::OkStatus();
}

// Ids that the embedding lacks would end the job only once it trains, and as
// nobody's fault. Returns the number of errors added.
int CheckVocabulary(const v1::JobSpec& spec, const ModelFacts& facts,
                    const std::string& tokenizer_dir, int32_t max_id,
                    DataVerdict* verdict) {
  // Without a specification loading the model will say what is wrong with it.
  if (!facts.spec.has_value() || max_id < facts.spec->vocab_size) return 0;
  AddFailure(
      absl::InvalidArgumentError(absl::StrCat(
          "token id ", max_id, " of the data is outside of the model's ",
          facts.spec->vocab_size, " tokens: the tokenizer in ", tokenizer_dir,
          " belongs to another model; name the right one with ",
          "model.tokenizer")),
      spec.model().tokenizer().empty() ? "model.path" : "model.tokenizer",
      verdict);
  return 1;
}

void Conclude(int64_t errors, DataVerdict* verdict) {
  if (errors == 0 || !verdict->status.ok()) return;
  const v1::Diagnostic& first = verdict->diagnostics.items(0);
  std::string where = first.file();
  if (first.line() > 0) absl::StrAppend(&where, ":", first.line());
  if (first.column() > 0) absl::StrAppend(&where, ":", first.column());
  verdict->status = absl::InvalidArgumentError(absl::StrCat(
      "the data set has ", errors,
      errors == 1 ? " error: " : " errors; the first is ", where,
      where.empty() ? "" : ": ",
      first.code().empty() ? "" : first.code() + ": ", first.message()));
}

v1::TokenStats StatsWithLongRecords(const TokenStats& stats) {
  v1::TokenStats proto = ToProto(stats);
  for (const auto* lines : {&stats.truncated_lines, &stats.dropped_lines}) {
    for (const LineRef& line : *lines) {
      if (proto.long_records_size() == 100) break;
      proto.add_long_records(absl::StrCat(line.file, ":", line.line));
    }
  }
  return proto;
}

class TextDataChecker final : public DataChecker {
 public:
  DataVerdict CheckHead(const v1::JobSpec& spec) override;
  DataVerdict CheckWhole(const v1::JobSpec& spec,
                         const std::atomic<bool>* cancelled) override;

 private:
  ModelFactsCache facts_;
};

DataVerdict TextDataChecker::CheckHead(const v1::JobSpec& spec) {
  DataVerdict verdict;
  int64_t errors = 0;
  auto options = OptionsOf(spec);
  if (!options.ok()) {
    AddFailure(options.status(), "data", &verdict);
    Conclude(1, &verdict);
    return verdict;
  }
  options->head_only = true;
  TakeReport(CheckDataset(Patterns(spec.data().train()), nullptr, *options),
             "data.train", &errors, &verdict);
  if (spec.data().eval_size() > 0) {
    TakeReport(CheckDataset(Patterns(spec.data().eval()), nullptr, *options),
               "data.eval", &errors, &verdict);
  }
  Conclude(errors, &verdict);
  return verdict;
}

DataVerdict TextDataChecker::CheckWhole(const v1::JobSpec& spec,
                                        const std::atomic<bool>* cancelled) {
  DataVerdict verdict;
  int64_t errors = 0;
  auto options = OptionsOf(spec);
  const std::string& tokenizer_dir = spec.model().tokenizer().empty()
                                         ? spec.model().path()
                                         : spec.model().tokenizer();
  auto encoder = TextEncoder::Load(tokenizer_dir);
  if (!options.ok() || !encoder.ok()) {
    if (!options.ok()) AddFailure(options.status(), "data", &verdict);
    if (!encoder.ok()) AddFailure(encoder.status(), "model.path", &verdict);
    Conclude(verdict.diagnostics.total(), &verdict);
    return verdict;
  }
  options->cancelled = cancelled;
  const auto train =
      CheckDataset(Patterns(spec.data().train()), encoder->get(), *options);
  TakeReport(train, "data.train", &errors, &verdict);
  if (spec.data().eval_size() > 0) {
    TakeReport(
        CheckDataset(Patterns(spec.data().eval()), encoder->get(), *options),
        "data.eval", &errors, &verdict);
  }
  if (errors == 0 && train.ok() && train->token_stats.has_value()) {
    errors += CheckVocabulary(spec, *facts_.Load(spec.model()), tokenizer_dir,
                              train->token_stats->max_id, &verdict);
  }
  if (train.ok() && train->token_stats.has_value()) {
    verdict.stats = StatsWithLongRecords(*train->token_stats);
    verdict.rows = train->token_stats->rows;
    verdict.stats.set_steps_per_epoch(StepsPerEpoch(spec, verdict.rows));
    if (errors == 0 && verdict.rows == 0) {
      AddFailure(
          absl::InvalidArgumentError(absl::StrCat(
              "no record is left to train on: ", train->token_stats->dropped,
              " of ", train->token_stats->records,
              " were dropped as longer "
              "than data.max_seq_len ",
              spec.data().max_seq_len())),
          "data.train", &verdict);
      ++errors;
    }
  }
  if (errors == 0 && verdict.status.ok()) {
    const absl::Status read = AddDigests(cancelled, &verdict.files);
    if (absl::IsCancelled(read)) {
      verdict.status = read;
    } else if (!read.ok()) {
      AddFailure(read, "data", &verdict);
      ++errors;
    }
  }
  Conclude(errors, &verdict);
  return verdict;
}

}  // namespace

std::unique_ptr<DataChecker> MakeTextDataChecker() {
  return std::make_unique<TextDataChecker>();
}

}  // namespace cadre::coordinator
