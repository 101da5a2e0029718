#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/commands/commands.h"
#include "client/commands/watch_job.h"
#include "client/exit_codes.h"
#include "client/render/progress.h"
#include "client/render/table.h"
#include "plan/memory_budget.h"

namespace cadre::client {
namespace {

std::string Age(const google::protobuf::Timestamp& time) {
  if (time.seconds() == 0) return "-";
  return FormatSeconds(
      static_cast<double>(absl::ToUnixSeconds(absl::Now()) - time.seconds()));
}

std::string StepText(const v1::Progress& progress) {
  if (progress.total_steps() == 0) return "-";
  return absl::StrCat(progress.step(), "/", progress.total_steps());
}

std::string LossText(const v1::Progress& progress) {
  return progress.step() == 0 ? "-" : absl::StrFormat("%.4f", progress.loss());
}

std::string Remark(const v1::Job& job) {
  if (job.state() == v1::JOB_STATE_QUEUED) {
    return absl::StrCat(job.queue_reason().code(), ": ",
                        job.queue_reason().message());
  }
  return job.state() == v1::JOB_STATE_FAILED ? job.failure().status().message()
                                             : "";
}

// "812 MB of planned 820 MB (99.0 %), 1.02 GB at worst".
std::string PeakText(const v1::MemoryPeak& peak) {
  std::string text = HumanBytes(peak.peak_bytes());
  const bool routed = peak.expected_bytes() > 0;
  const int64_t planned = routed ? peak.expected_bytes() : peak.planned_bytes();
  if (planned == 0) return text;
  absl::StrAppendFormat(&text, " of planned %s (%.1f %%)", HumanBytes(planned),
                        100 * static_cast<double>(peak.peak_bytes()) /
                            static_cast<double>(planned));
  if (routed && peak.planned_bytes() != planned) {
    absl::StrAppend(&text, ", ", HumanBytes(peak.planned_bytes()), " at worst");
  }
  return text;
}

}  // namespace

int List(const Context& context, const ListArgs& args) {
  auto client = JobClient::Connect(context.client_options());
  if (!client.ok()) return context.Fail(client.status());
  auto jobs = (*client)->List(args.filter, args.limit, args.order_by);
  if (!jobs.ok()) return context.Fail(jobs.status());
  Table table({"JOB", "STATE", "STEP", "LOSS", "AGE", "REMARK"});
  int hidden = 0;
  for (const v1::Job& job : *jobs) {
    if (!args.all && args.filter.empty() && IsTerminal(job.state())) {
      ++hidden;
    } else if (context.json) {
      context.PrintJson(job);
    } else {
      table.Add({JobId(job.name()), StateName(job.state()),
                 StepText(job.progress()), LossText(job.progress()),
                 Age(job.create_time()), Remark(job)});
    }
  }
  if (!context.json) {
    context.Print(
        table.Render(context.terminal.is_tty ? context.terminal.width : 0));
    if (hidden > 0) {
      context.Note(absl::StrCat(hidden, " ended; --all shows them\n"));
    }
  }
  return kOk;
}

int Get(const Context& context, const std::string& name) {
  auto client = JobClient::Connect(context.client_options());
  if (!client.ok()) return context.Fail(client.status());
  auto job = (*client)->Get(name, v1::JOB_VIEW_FULL);
  if (!job.ok()) return context.Fail(job.status());
  if (context.json) {
    context.PrintJson(*job);
    return kOk;
  }
  std::string out = Summary(*job, context.terminal);
  if (job->state() == v1::JOB_STATE_QUEUED) {
    absl::StrAppend(&out, "  waits   ", Remark(*job), "\n");
  }
  if (job->has_plan()) {
    absl::StrAppendFormat(
        &out, "  trained %s of %s parameters on %d ranks\n",
        FormatCount(static_cast<double>(job->plan().trainable_parameters())),
        FormatCount(static_cast<double>(job->plan().total_parameters())),
        job->plan().world_size());
  }
  if (job->has_token_stats()) {
    const v1::TokenStats& s = job->token_stats();
    absl::StrAppendFormat(
        &out, "  data    %d records, %s tokens (%s trained), p50 %d, max %d\n",
        s.records(), FormatCount(static_cast<double>(s.total_tokens())),
        FormatCount(static_cast<double>(s.loss_tokens())), s.p50_tokens(),
        s.max_tokens());
  }
  if (job->has_latest_checkpoint()) {
    absl::StrAppend(&out, "  saved   step ", job->latest_checkpoint().step(),
                    " in ", job->latest_checkpoint().storage_path(), "\n");
  }
  for (const auto& attempt : job->attempts()) {
    absl::StrAppend(&out, "  attempt ", attempt.epoch(), " from step ",
                    attempt.from_step(), " on ",
                    absl::StrJoin(attempt.workers(), ", "));
    if (attempt.cause() != v1::FAILURE_CAUSE_UNSPECIFIED) {
      absl::StrAppend(&out, ": ",
                      v1::FailureCause_Name(attempt.cause()).substr(14), " ",
                      attempt.detail());
    }
    out += "\n";
    for (const v1::MemoryPeak& peak : attempt.memory_peaks()) {
      absl::StrAppend(&out, "    rank ", peak.rank(), " memory ",
                      PeakText(peak), "\n");
    }
  }
  context.Print(out);
  return kOk;
}

int Watch(const Context& context, const std::string& name) {
  v1::Job job;
  const int code =
      WatchJob(context, {.job = name, .json_items = context.json}, &job);
  if (!context.json && IsTerminal(job.state())) {
    context.Print(Summary(job, context.terminal));
  }
  return code;
}

int Events(const Context& context, const std::string& name) {
  auto client = JobClient::Connect(context.client_options());
  if (!client.ok()) return context.Fail(client.status());
  const absl::Status status = (*client)->Watch({
      .job = name,
      .history_only = true,
      .on_item =
          [&](const v1::WatchJobResponse& item) {
            if (!item.has_event()) return;
            if (context.json) {
              context.PrintJson(item.event());
            } else {
              context.Print(absl::StrCat(
                  item.event().sequence(), "  ",
                  EventLine(item.event(), context.terminal), "\n"));
            }
          },
  });
  return status.ok() ? kOk : context.Fail(status);
}

}  // namespace cadre::client
