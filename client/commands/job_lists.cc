// Commands that show what belongs to a job.

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "client/commands/commands.h"
#include "client/exit_codes.h"
#include "client/render/progress.h"
#include "client/render/table.h"

namespace cadre::client {
namespace {

std::string TimeText(const google::protobuf::Timestamp& time) {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%SZ",
                          absl::FromUnixSeconds(time.seconds()),
                          absl::UTCTimeZone());
}

std::string Megabytes(int64_t bytes) {
  return absl::StrFormat("%.1f MB", static_cast<double>(bytes) / 1e6);
}

void PrintTable(const Context& context, const Table& table) {
  context.Print(
      table.Render(context.terminal.is_tty ? context.terminal.width : 0));
}

}  // namespace

int Plan(const Context& context, const std::string& name) {
  auto client = JobClient::Connect(context.client_options());
  if (!client.ok()) return context.Fail(client.status());
  auto plan = (*client)->GetPlan(name);
  if (!plan.ok()) return context.Fail(plan.status());
  if (context.json) {
    context.PrintJson(*plan);
    return kOk;
  }
  context.Print(absl::StrFormat(
      "ranks    %d\ndense    %d replicas x %d shards\nexperts  %d replicas x "
      "%d shards\nbatch    %d rows x %d passes, %d tokens a step\nsteps    "
      "%d\ntrained  %s of %s parameters\n",
      plan->world_size(), plan->dense_replicas(), plan->fsdp_shard_group_size(),
      plan->expert_data_parallel_size(), plan->expert_parallel_size(),
      plan->micro_batch_size(), plan->accumulation_steps(),
      plan->tokens_per_step(), plan->total_steps(),
      FormatCount(static_cast<double>(plan->trainable_parameters())),
      FormatCount(static_cast<double>(plan->total_parameters()))));
  if (plan->expert_slots_per_rank() > 0) {
    context.Print(absl::StrFormat("slots    %d per rank and layer\n",
                                  plan->expert_slots_per_rank()));
  }
  for (const std::string& reason : plan->reasons()) {
    context.Print(absl::StrCat("chosen   ", reason, "\n"));
  }
  for (const auto& term : plan->memory()) {
    context.Print(absl::StrFormat("memory   %-24s %s\n", term.name(),
                                  Megabytes(term.bytes())));
  }
  for (const std::string& warning : plan->warnings()) {
    context.Note(absl::StrCat("warning: ", warning, "\n"));
  }
  return kOk;
}

int Checkpoints(const Context& context, const std::string& name) {
  auto client = JobClient::Connect(context.client_options());
  if (!client.ok()) return context.Fail(client.status());
  auto checkpoints = (*client)->ListCheckpoints(name);
  if (!checkpoints.ok()) return context.Fail(checkpoints.status());
  Table table({"STEP", "ATTEMPT", "LOSS", "SIZE", "CREATED", "FOLDER"});
  for (const v1::Checkpoint& checkpoint : *checkpoints) {
    if (context.json) {
      context.PrintJson(checkpoint);
      continue;
    }
    table.Add({absl::StrCat(checkpoint.step()),
               absl::StrCat(checkpoint.attempt_epoch()),
               absl::StrFormat("%.4f", checkpoint.loss()),
               Megabytes(checkpoint.bytes()),
               TimeText(checkpoint.create_time()), checkpoint.storage_path()});
  }
  if (!context.json) PrintTable(context, table);
  return kOk;
}

int Artifacts(const Context& context, const std::string& name) {
  auto client = JobClient::Connect(context.client_options());
  if (!client.ok()) return context.Fail(client.status());
  auto artifacts = (*client)->ListArtifacts(name);
  if (!artifacts.ok()) return context.Fail(artifacts.status());
  Table table({"ARTIFACT", "SIZE", "FOLDER"});
  for (const v1::Artifact& artifact : *artifacts) {
    if (context.json) {
      context.PrintJson(artifact);
    } else {
      table.Add({artifact.name(), Megabytes(artifact.bytes()),
                 artifact.storage_path()});
    }
  }
  if (!context.json) PrintTable(context, table);
  return kOk;
}

int Series(const Context& context, const SeriesArgs& args) {
  auto client = JobClient::Connect(context.client_options());
  if (!client.ok()) return context.Fail(client.status());
  v1::GetMetricsRequest request;
  request.set_name(args.job);
  for (const std::string& series : args.names) request.add_series(series);
  request.set_start_step(args.from);
  request.set_end_step(args.to);
  request.set_max_points(args.max_points);
  auto metrics = (*client)->GetMetrics(request);
  if (!metrics.ok()) return context.Fail(metrics.status());
  if (context.json) {
    for (const auto& series : metrics->series()) context.PrintJson(series);
    return kOk;
  }
  // Tab-separated: a spreadsheet and cut(1) read it.
  context.Print("series\tstep\tvalue\n");
  for (const auto& series : metrics->series()) {
    for (const auto& point : series.points()) {
      context.Print(absl::StrFormat("%s\t%d\t%.9g\n", series.name(),
                                    point.step(), point.value()));
    }
  }
  if (metrics->downsampled()) {
    context.Note("not all points are shown; --max-points shows up to 5000\n");
  }
  return kOk;
}

}  // namespace cadre::client
