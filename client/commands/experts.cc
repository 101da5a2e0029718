// Commands about where the experts of a job lie and what load they have.

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/commands/commands.h"
#include "client/exit_codes.h"
#include "client/render/table.h"

namespace cadre::client {
namespace {

// Between two looks at whether a placement is in force.
constexpr absl::Duration kPoll = absl::Milliseconds(200);

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

void PrintTable(const Context& context, const Table& table) {
  context.Print(
      table.Render(context.terminal.is_tty ? context.terminal.width : 0));
}

std::string Balance(double balancedness) {
  return balancedness > 0 ? absl::StrFormat("%.3f", balancedness) : "-";
}

// Experts of each rank's slots, "-" for an empty one.
void PrintSlots(const Context& context,
                const v1::GetExpertLoadsResponse& loads) {
  const int per_rank = loads.slots_per_rank();
  if (per_rank < 1) return;
  Table table({"LAYER", "RANK", "TOKENS", "EXPERTS"});
  for (const auto& layer : loads.layers()) {
    for (int rank = 0; rank < layer.slot_to_expert_size() / per_rank; ++rank) {
      std::vector<std::string> experts;
      for (int slot = rank * per_rank; slot < (rank + 1) * per_rank; ++slot) {
        const int expert = layer.slot_to_expert(slot);
        experts.push_back(expert < 0 ? "-" : absl::StrCat(expert));
      }
      table.Add({absl::StrCat(layer.index()), absl::StrCat(rank),
                 rank < layer.rank_tokens_size()
                     ? absl::StrCat(layer.rank_tokens(rank))
                     : "-",
                 absl::StrJoin(experts, " ")});
    }
  }
  PrintTable(context, table);
}

// One line on the placement; empty where the experts are not spread over ranks.
std::string PlacementLine(const v1::GetExpertLoadsResponse& loads) {
  if (loads.slots_per_rank() == 0) return "";
  std::string line = absl::StrFormat(
      "placement %d in force (%d moved so far), %d slots per rank, ranks "
      "balanced %s",
      loads.plan_epoch(), loads.replacements(), loads.slots_per_rank(),
      Balance(loads.rank_balancedness()));
  if (loads.next_plan_epoch() > 0) {
    absl::StrAppend(&line, "; placement ", loads.next_plan_epoch(),
                    " is on its way");
  }
  if (!loads.decision().empty()) {
    absl::StrAppend(&line, "\nlast decision: ", loads.decision());
  }
  return line + "\n";
}

}  // namespace

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
  context.Print(PlacementLine(*loads));
  const int width = std::max(16, context.terminal.width - 68);
  Table table({"LAYER", "BALANCE", "RANKS", "HOTTEST", "DROPPED", "REMAPPED",
               "PADDING", "EXPERTS"});
  for (const auto& layer : loads->layers()) {
    const auto hottest =
        std::max_element(layer.tokens().begin(), layer.tokens().end());
    table.Add({absl::StrCat(layer.index()),
               absl::StrFormat("%.3f", layer.balancedness()),
               Balance(layer.rank_balancedness()),
               layer.tokens().empty()
                   ? "-"
                   : absl::StrCat("#", hottest - layer.tokens().begin()),
               absl::StrCat(layer.dropped()), absl::StrCat(layer.remapped()),
               absl::StrCat(layer.padding_rows()),
               absl::StrCat("|", HeatRow(layer, width), "|")});
  }
  PrintTable(context, table);
  if (args.slots) PrintSlots(context, *loads);
  return kOk;
}

int Rebalance(const Context& context, const RebalanceArgs& args) {
  auto client = JobClient::Connect(context.client_options());
  if (!client.ok()) return context.Fail(client.status());
  const auto ordered = (*client)->RebalanceExperts(args.job);
  if (!ordered.ok()) return context.Fail(ordered.status());
  if (context.json) {
    context.PrintJson(*ordered);
  } else if (ordered->ordered()) {
    context.Print(absl::StrFormat("placement %d ordered, %d moves: %s\n",
                                  ordered->plan_epoch(), ordered->moves(),
                                  ordered->decision()));
  } else {
    context.Print(absl::StrFormat("placement %d stays in force: %s\n",
                                  ordered->plan_epoch(), ordered->decision()));
  }
  if (!args.wait || !ordered->ordered()) return kOk;
  v1::GetExpertLoadsRequest request;
  request.set_job(args.job);
  for (;;) {
    const auto loads = (*client)->GetExpertLoads(request);
    if (!loads.ok()) return context.Fail(loads.status());
    if (loads->plan_epoch() >= ordered->plan_epoch()) {
      context.Note(
          absl::StrFormat("placement %d is in force\n", loads->plan_epoch()));
      return kOk;
    }
    if (loads->next_plan_epoch() == 0) {
      return context.Fail(absl::AbortedError(absl::StrCat(
          "placement ", ordered->plan_epoch(), " of ", args.job,
          " came to nothing: the attempt that it was for has ended; order it "
          "again")));
    }
    absl::SleepFor(kPoll);
  }
}

}  // namespace cadre::client
