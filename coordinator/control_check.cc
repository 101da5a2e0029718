// Control's part that checks the data of jobs before they are queued.

#include <prometheus/histogram.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/rpc/error.h"
#include "base/status_macros.h"
#include "coordinator/api_error.h"
#include "coordinator/control.h"
#include "plan/validate.h"

namespace cadre::coordinator {

void Control::CheckData(const std::string& id) {
  data_pool_->Add([this, id] {
    const RecordPtr record = table_.Find(id);
    if (record == nullptr ||
        record->job().state() != v1::JOB_STATE_VALIDATING) {
      return;
    }
    const absl::Duration begin = options_.clock->Monotonic();
    auto verdict = std::make_shared<DataVerdict>(
        options_.data->CheckWhole(record->job().config_snapshot(), &stopped_));
    options_.metrics->Histogram(metric::kDatasetValidation)
        .Observe(absl::ToDoubleSeconds(options_.clock->Monotonic() - begin));
    // Stopping: the next start checks again.
    if (absl::IsCancelled(verdict->status)) return;
    journal_->Submit({.decide = [this, id, verdict](Store& store) {
      return FinishCheck(store, id, *verdict);
    }});
  });
}

absl::Status Control::FinishCheck(Store& store, const std::string& id,
                                  const DataVerdict& verdict) {
  const RecordPtr record = ledger_.Find(id);
  if (record == nullptr || record->job().state() != v1::JOB_STATE_VALIDATING) {
    return absl::OkStatus();  // cancelled or paused meanwhile
  }
  JobChange change{.record = *record};
  v1::Job& job = change.job();
  if (!verdict.status.ok()) {
    v1::Failure* failure = job.mutable_failure();
    failure->set_cause(v1::FAILURE_CAUSE_USER);
    failure->set_user_error(true);
    *failure->mutable_status() =
        ToRpcStatus(Refusal("DATASET_INVALID", verdict.diagnostics));
    CADRE_RETURN_IF_ERROR(ledger_.Apply(
        Trigger::kDatasetBad, std::string(verdict.status.message()), &change));
    return ledger_.Save(store, std::move(change));
  }
  change.record.set_validated(true);
  for (const auto& file : verdict.files) *change.record.add_data_files() = file;
  *job.mutable_token_stats() = verdict.stats;
  const int64_t total = TotalSteps(job.config_snapshot(), verdict.rows);
  job.mutable_plan()->set_total_steps(total);
  for (v1::Plan& plan : *change.record.mutable_plans()) {
    plan.set_total_steps(total);
  }
  job.mutable_progress()->set_total_steps(total);
  change.AddEvent(
      v1::Event::SEVERITY_INFO, "VALIDATED",
      absl::StrCat(verdict.stats.records(), " records, ",
                   verdict.stats.total_tokens(), " tokens, ", total, " steps"),
      {{"total_steps", absl::StrCat(total)}});
  for (const v1::Diagnostic& item : verdict.diagnostics.items()) {
    change.AddEvent(
        v1::Event::SEVERITY_WARN, "WARNING",
        absl::StrCat(item.file(), ":", item.line(), ": ", item.message()));
    if (change.events.size() > 20) break;
  }
  CADRE_RETURN_IF_ERROR(ledger_.Apply(Trigger::kDatasetGood, "", &change));
  return ledger_.Save(store, std::move(change));
}

}  // namespace cadre::coordinator
