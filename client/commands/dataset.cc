#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/text/dataset_check.h"
#include "cadre/v1/diagnostics.pb.h"
#include "cadre/v1/job.pb.h"
#include "client/commands/commands.h"
#include "client/exit_codes.h"
#include "client/render/diagnostics.h"
#include "client/render/progress.h"
#include "plan/dataset_proto.h"

namespace cadre::client {
namespace {

void AddFindings(const std::vector<DataError>& findings,
                 v1::Diagnostic::Severity severity, v1::Diagnostics* out) {
  for (const DataError& e : findings) {
    v1::Diagnostic* item = out->add_items();
    *item = ToProto(e, severity);
    item->set_message(absl::StrCat(item->code(), ": ", e.message));
  }
}

std::string StatsText(const TokenStats& s, int64_t max_seq_len) {
  std::string out = absl::StrFormat(
      "  records  %d\n"
      "  tokens   %d, of which %d count in the loss\n"
      "  length   min %d, p5 %d, p50 %d, p95 %d, p99 %d, max %d\n"
      "  rows     %d of %d tokens, %.1f %% filled\n",
      s.records, s.total_tokens, s.loss_tokens, s.min, s.p5, s.p50, s.p95,
      s.p99, s.max, s.rows, max_seq_len, 100 * s.packing_fill);
  if (s.truncated > 0) {
    absl::StrAppend(&out, "  cut      ", s.truncated, " records, first at ",
                    s.truncated_lines[0].file, ":", s.truncated_lines[0].line,
                    "\n");
  }
  if (s.dropped > 0) {
    absl::StrAppend(&out, "  dropped  ", s.dropped, " records, first at ",
                    s.dropped_lines[0].file, ":", s.dropped_lines[0].line,
                    "\n");
  }
  return out;
}

absl::StatusOr<DatasetReport> Check(const DatasetCheckArgs& args) {
  DatasetCheckOptions options;
  auto format = ParseDataFormat(args.format);
  if (!format.ok()) return format.status();
  auto loss_on = ParseLossOn(args.loss_on);
  if (!loss_on.ok()) return loss_on.status();
  auto too_long = ParseTooLong(args.too_long);
  if (!too_long.ok()) return too_long.status();
  options.format = *format;
  options.encode = {.loss_on = *loss_on,
                    .too_long = *too_long,
                    .max_seq_len = args.max_seq_len};
  return CheckDataset(args.files, args.model, options);
}

}  // namespace

int DatasetCheck(const Context& context, const DatasetCheckArgs& args) {
  auto report = Check(args);
  if (!report.ok()) return context.Fail(report.status());
  v1::Diagnostics findings;
  AddFindings(report->errors, v1::Diagnostic::SEVERITY_ERROR, &findings);
  AddFindings(report->warnings, v1::Diagnostic::SEVERITY_WARNING, &findings);
  findings.set_total(report->num_errors + report->num_warnings);
  if (context.json) {
    context.Print(absl::StrCat(
        "{\"ok\":", report->ok() ? "true" : "false",
        ",\"findings\":", ToJson(findings), ",\"token_stats\":",
        report->token_stats ? ToJson(ToProto(*report->token_stats)) : "null",
        "}\n"));
    return report->ok() ? kOk : kInvalid;
  }
  context.Note(RenderDiagnostics(findings, "", "", context.terminal));
  if (!report->ok()) {
    context.Print(absl::StrCat(report->num_errors,
                               report->num_errors == 1 ? " error" : " errors",
                               "; nothing of it would be trained on\n"));
    return kInvalid;
  }
  std::string out = absl::StrCat("data is valid, format ",
                                 DataFormatName(report->format), "\n");
  if (report->token_stats) {
    absl::StrAppend(&out, StatsText(*report->token_stats, args.max_seq_len));
  } else {
    absl::StrAppend(&out, "  --model DIR counts tokens too\n");
  }
  context.Print(out);
  return kOk;
}

}  // namespace cadre::client
