// Commands that show what belongs to a job.

#include <algorithm>
#include <cmath>

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

// From no load to twice the mean and more.
std::string HeatRow(const v1::GetExpertLoadsResponse::Layer& layer, int width) {
  static constexpr absl::string_view kRamp = " .:-=+*#%@";
  const int experts = layer.tokens_size();
  double sum = 0;
  for (const int64_t tokens : layer.tokens()) {
    sum += static_cast<double>(tokens);
  }
  if (experts == 0 || sum == 0) return "";
  const int cells = std::min(width, experts);
  std::string row;
  for (int c = 0; c < cells; ++c) {
    const int begin = experts * c / cells, end = experts * (c + 1) / cells;
    double load = 0;
    for (int e = begin; e < end; ++e) {
      load += static_cast<double>(layer.tokens(e));
    }
    const double over_mean = load / (end - begin) / (sum / experts);
    const auto shade = static_cast<size_t>(std::lround(
        std::min(over_mean / 2, 1.0) * static_cast<double>(kRamp.size() - 1)));
    row += kRamp[shade];
  }
  return row;
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

int Experts(const Context& context, const ExpertsArgs& args) {
  auto client = JobClient::Connect(context.client_options());
  if (!client.ok()) return context.Fail(client.status());
  v1::GetExpertLoadsRequest request;
  request.set_job(args.job);
  request.set_window(args.cumulative
                         ? v1::GetExpertLoadsRequest::WINDOW_CUMULATIVE
                         : v1::GetExpertLoadsRequest::WINDOW_RECENT);
  for (const int layer : args.layers) request.add_layers(layer);
  auto loads = (*client)->GetExpertLoads(request);
  if (!loads.ok()) return context.Fail(loads.status());
  if (context.json) {
    context.PrintJson(*loads);
    return kOk;
  }
  context.Print(absl::StrFormat(
      "steps %d to %d, %d experts; a cell is load over mean, from ' ' (none) "
      "over '=' to '@' (twice and more)\n",
      loads->first_step(), loads->last_step(), loads->num_experts()));
  const int width = std::max(16, context.terminal.width - 32);
  Table table({"LAYER", "BALANCE", "HOTTEST", "EXPERTS"});
  for (const auto& layer : loads->layers()) {
    const auto hottest =
        std::max_element(layer.tokens().begin(), layer.tokens().end());
    table.Add({absl::StrCat(layer.index()),
               absl::StrFormat("%.3f", layer.balancedness()),
               layer.tokens().empty()
                   ? "-"
                   : absl::StrCat("#", hottest - layer.tokens().begin()),
               absl::StrCat("|", HeatRow(layer, width), "|")});
  }
  PrintTable(context, table);
  return kOk;
}

}  // namespace cadre::client
