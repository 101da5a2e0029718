#include <algorithm>
#include <filesystem>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/file.h"
#include "base/rpc/error.h"
#include "client/commands/commands.h"
#include "client/commands/job_file.h"
#include "client/commands/watch_job.h"
#include "client/exit_codes.h"
#include "client/render/diagnostics.h"
#include "client/render/progress.h"
#include "plan/memory_budget.h"
#include "plan/model_facts.h"
#include "plan/validate.h"

namespace cadre::client {
namespace {

v1::CreateJobRequest RequestFor(const JobFile& file, bool has_overrides) {
  v1::CreateJobRequest request;
  request.set_base_dir(file.base_dir);
  if (has_overrides) {
    *request.mutable_spec() = file.spec;
  } else {
    request.set_job_yaml(file.text);
  }
  return request;
}

// Sends the file; prints warnings.
absl::StatusOr<v1::CreateJobResponse> Send(const Context& context,
                                           const JobFile& file,
                                           v1::CreateJobRequest request) {
  auto client = JobClient::Connect(context.client_options());
  if (!client.ok()) return client.status();
  auto response = (*client)->Create(std::move(request));
  if (!response.ok()) return PlaceInFile(response.status(), file);
  v1::Diagnostics warnings = response->diagnostics();
  PlaceDiagnostics(file.marks, 50, &warnings);
  context.Note(
      RenderDiagnostics(warnings, file.path, file.text, context.terminal));
  return response;
}

// An error of the file itself, with its lines where it can be read.
int FailFile(const Context& context, const absl::Status& status,
             const std::string& path) {
  return context.Fail(status, path, ReadFile(path).value_or(""));
}

// What the coordinator would answer, but for the data files and the folders
// that its configuration allows.
absl::StatusOr<v1::CreateJobResponse> CheckLocally(const Context& context,
                                                   const JobFile& file) {
  const ModelFacts facts =
      LoadModelFacts(ResolveJob(file.spec, file.base_dir).model());
  Validated checked =
      ValidateJob(file.spec, {.base_dir = file.base_dir}, &facts);
  PlaceDiagnostics(file.marks, 50, &checked.diagnostics);
  if (!checked.ok()) {
    absl::Status status =
        Error(absl::StatusCode::kInvalidArgument, "JOB_FILE_INVALID",
              absl::StrCat(file.path, " is not a valid job file"));
    AddDetail(checked.diagnostics, &status);
    return status;
  }
  context.Note(RenderDiagnostics(checked.diagnostics, file.path, file.text,
                                 context.terminal));
  v1::CreateJobResponse response;
  *response.mutable_job()->mutable_spec() = file.spec;
  *response.mutable_job()->mutable_config_snapshot() = checked.spec;
  *response.mutable_plan() = checked.plan;
  *response.mutable_diagnostics() = checked.diagnostics;
  return response;
}

// What the most loaded worker needs, largest first; "" when that is not known.
std::string MemoryText(const v1::Plan& plan) {
  if (plan.memory().empty()) return "";
  std::vector<v1::MemoryTerm> terms(plan.memory().begin(), plan.memory().end());
  std::stable_sort(terms.begin(), terms.end(),
                   [](const v1::MemoryTerm& a, const v1::MemoryTerm& b) {
                     return a.bytes() > b.bytes();
                   });
  int64_t total = 0;
  for (const v1::MemoryTerm& term : terms) total += term.bytes();
  const bool assumed = plan.worker_memory_bytes() == 0;
  std::string out =
      absl::StrFormat("  memory  %s of %s%s per worker\n", HumanBytes(total),
                      HumanBytes(assumed ? plan.assumed_memory_bytes()
                                         : plan.worker_memory_bytes()),
                      assumed ? " (assumed)" : "");
  for (const v1::MemoryTerm& term : terms) {
    absl::StrAppendFormat(&out, "          %9s  %s\n", HumanBytes(term.bytes()),
                          term.name());
  }
  return out;
}

std::string PlanText(const v1::Plan& plan) {
  std::string out = absl::StrFormat(
      "  plan    %d ranks: dense %d x %d, experts %d x %d, micro batch %d x %d "
      "accumulation%s\n",
      plan.world_size(), plan.dense_replicas(), plan.fsdp_shard_group_size(),
      plan.expert_data_parallel_size(), plan.expert_parallel_size(),
      plan.micro_batch_size(), plan.accumulation_steps(),
      plan.replayed_blocks() > 0
          ? absl::StrCat(", ", plan.replayed_blocks(),
                         plan.replayed_blocks() == 1 ? " block replayed"
                                                     : " blocks replayed")
          : "");
  absl::StrAppend(&out, "  trained ",
                  FormatCount(static_cast<double>(plan.trainable_parameters())),
                  " of ",
                  FormatCount(static_cast<double>(plan.total_parameters())),
                  " parameters\n");
  for (const auto& match : plan.lora_matches()) {
    absl::StrAppendFormat(&out, "  lora    %s: %d in %s layers\n",
                          match.target(), match.modules(), match.layer_kind());
  }
  absl::StrAppend(&out, MemoryText(plan));
  for (const std::string& reason : plan.reasons()) {
    absl::StrAppend(&out, "  chosen  ", reason, "\n");
  }
  return out;
}

std::string Megabytes(int64_t bytes) {
  return absl::StrFormat("%.1f MB", static_cast<double>(bytes) / 1e6);
}

// What PlanJob says beside the plan itself.
std::string AnswerText(const v1::PlanJobResponse& answer) {
  std::string out =
      answer.fits()
          ? "fits"
          : absl::StrCat("does not fit: ",
                         answer.limiting_term() == "workers"
                             ? "the number of workers"
                             : absl::StrCat(answer.limiting_term(),
                                            " needs the most memory"));
  absl::StrAppend(&out, "\n  workers ", answer.eligible_workers(),
                  " eligible, ", answer.free_workers(), " free\n");
  if (answer.workers_size() > 0) {
    absl::StrAppend(&out, "  now     would start on",
                    answer.workers_size() > 8 ? " (the first 8)" : "");
    for (int i = 0; i < std::min(answer.workers_size(), 8); ++i) {
      absl::StrAppend(&out, " ",
                      answer.workers(i).substr(sizeof("workers/") - 1));
    }
    absl::StrAppend(&out, "\n");
  } else if (answer.has_queue_reason()) {
    absl::StrAppend(
        &out, "  now     would wait: ", answer.queue_reason().message(), "\n");
  }
  for (const auto& candidate : answer.candidates()) {
    absl::StrAppendFormat(
        &out, "  layout  shards %d, experts %d, recompute %s: %s%s\n",
        candidate.fsdp_shard_group_size(), candidate.expert_parallel_size(),
        candidate.recompute(), Megabytes(candidate.memory_bytes()),
        candidate.fits() ? "" : ", does not fit");
  }
  return out;
}

}  // namespace

int PlanFile(const Context& context, const PlanArgs& args) {
  auto file = ReadJobFile(args.file, args.set);
  if (!file.ok()) return FailFile(context, file.status(), args.file);
  v1::PlanJobRequest request;
  request.set_base_dir(file->base_dir);
  if (args.set.empty()) {
    request.set_job_yaml(file->text);
  } else {
    *request.mutable_spec() = file->spec;
  }
  if (args.workers > 0) {
    auto* wish = request.mutable_hypothetical();
    wish->set_workers(args.workers);
    wish->set_device_memory_bytes(static_cast<int64_t>(args.device_memory));
    wish->set_link_domain_size(args.link_domain);
  }
  request.set_max_candidates(args.candidates);
  request.set_sample_dataset(args.sample);
  auto client = JobClient::Connect(context.client_options());
  if (!client.ok()) return context.Fail(client.status());
  auto answer = (*client)->PlanJob(request);
  if (!answer.ok()) {
    return context.Fail(PlaceInFile(answer.status(), *file), file->path,
                        file->text);
  }
  v1::Diagnostics findings = answer->diagnostics();
  PlaceDiagnostics(file->marks, 50, &findings);
  context.Note(
      RenderDiagnostics(findings, file->path, file->text, context.terminal));
  if (context.json) {
    context.PrintJson(*answer);
  } else {
    context.Print(absl::StrCat(args.file, " ", AnswerText(*answer),
                               PlanText(answer->plan())));
  }
  return kOk;
}

int Submit(const Context& context, const SubmitArgs& args) {
  auto file = ReadJobFile(args.file, args.set);
  if (!file.ok()) return FailFile(context, file.status(), args.file);
  v1::CreateJobRequest request = RequestFor(*file, !args.set.empty());
  request.set_request_id(args.request_id);
  auto response = Send(context, *file, std::move(request));
  if (!response.ok()) {
    return context.Fail(response.status(), file->path, file->text);
  }
  v1::Job job = response->job();
  const std::string id = JobId(job.name());
  if (!args.wait) {
    if (context.json) {
      context.PrintJson(job);
    } else {
      context.Print(absl::StrCat(
          response->replayed() ? "already submitted: " : "submitted ", id,
          "\n"));
      context.Note(absl::StrCat("follow it with: cadre watch ", id, "\n"));
    }
    return kOk;
  }
  context.Note(absl::StrCat("submitted ", id, "\n"));
  const int code = WatchJob(context, {.job = id}, &job);
  if (code == kInterrupted || !IsTerminal(job.state())) return code;
  if (context.json) {
    context.PrintJson(job);
  } else {
    context.Print(Summary(job, context.terminal));
  }
  return code;
}

int Validate(const Context& context, const ValidateArgs& args) {
  auto file = ReadJobFile(args.file, args.set);
  if (!file.ok()) return FailFile(context, file.status(), args.file);
  v1::CreateJobRequest request = RequestFor(*file, !args.set.empty());
  request.set_validate_only(true);
  auto response = args.local ? CheckLocally(context, *file)
                             : Send(context, *file, std::move(request));
  if (!response.ok()) {
    return context.Fail(response.status(), file->path, file->text);
  }
  if (context.json) {
    context.PrintJson(*response);
  } else {
    context.Print(
        absl::StrCat(args.file, " is valid\n", PlanText(response->plan())));
  }
  return kOk;
}

}  // namespace cadre::client
