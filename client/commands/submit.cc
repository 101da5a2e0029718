#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/commands/commands.h"
#include "client/commands/job_file.h"
#include "client/commands/watch_job.h"
#include "client/exit_codes.h"
#include "client/render/diagnostics.h"
#include "client/render/progress.h"

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

std::string PlanText(const v1::Plan& plan) {
  std::string out = absl::StrFormat(
      "  plan    %d ranks: dense %d x %d, experts %d x %d, micro batch %d x %d "
      "accumulation%s\n",
      plan.world_size(), plan.dense_replicas(), plan.fsdp_shard_group_size(),
      plan.expert_data_parallel_size(), plan.expert_parallel_size(),
      plan.micro_batch_size(), plan.accumulation_steps(),
      plan.activation_checkpointing() ? ", activation checkpointing" : "");
  absl::StrAppend(&out, "  trained ",
                  FormatCount(static_cast<double>(plan.trainable_parameters())),
                  " of ",
                  FormatCount(static_cast<double>(plan.total_parameters())),
                  " parameters\n");
  for (const auto& match : plan.lora_matches()) {
    absl::StrAppendFormat(&out, "  lora    %s: %d in %s layers\n",
                          match.target(), match.modules(), match.layer_kind());
  }
  return out;
}

}  // namespace

int Submit(const Context& context, const SubmitArgs& args) {
  auto file = ReadJobFile(args.file, args.set);
  if (!file.ok()) return context.Fail(file.status(), args.file);
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
  if (!file.ok()) return context.Fail(file.status(), args.file);
  v1::CreateJobRequest request = RequestFor(*file, !args.set.empty());
  request.set_validate_only(true);
  auto response = Send(context, *file, std::move(request));
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
