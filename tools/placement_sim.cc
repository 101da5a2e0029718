// Expert placement on simulated routing: how even the load of the ranks is when
// experts lie in order, are packed by load, or are packed with copies in spare
// slots (EPLB). Loads are lognormal. One table per skew, the same numbers for
// the same flags on every machine.
//
//   placement_sim --experts=896 --layers=92 --ranks=64,128 --spare=1 --seed=1
//
// `fitted` scores the placement on the loads that it was made for, `drifted` on
// loads that moved on since (--drift is the sigma of a lognormal factor).

#include <cstdint>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "plan/placement_simulation.h"

namespace cadre {
namespace {

absl::StatusOr<std::vector<double>> Numbers(absl::string_view text) {
  std::vector<double> out;
  for (absl::string_view part : absl::StrSplit(text, ',')) {
    double value = 0.0;
    if (!absl::SimpleAtod(part, &value)) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", part, "' is not a number"));
    }
    out.push_back(value);
  }
  return out;
}

struct Flags {
  std::vector<double> experts = {896}, layers = {16}, ranks = {64, 128};
  std::vector<double> spare = {1}, sigma = {0.5, 1.0, 1.5}, seed = {1};
  std::vector<double> drift = {0.1};
};

absl::StatusOr<Flags> ParseFlags(int argc, char** argv) {
  Flags flags;
  const struct {
    absl::string_view name;
    std::vector<double>* value;
  } kNames[] = {{"--experts=", &flags.experts}, {"--layers=", &flags.layers},
                {"--ranks=", &flags.ranks},     {"--spare=", &flags.spare},
                {"--sigma=", &flags.sigma},     {"--seed=", &flags.seed},
                {"--drift=", &flags.drift}};
  for (int i = 1; i < argc; ++i) {
    absl::string_view argument = argv[i];
    bool known = false;
    for (const auto& flag : kNames) {
      if (!absl::ConsumePrefix(&argument, flag.name)) continue;
      auto numbers = Numbers(argument);
      if (!numbers.ok()) return numbers.status();
      *flag.value = *std::move(numbers);
      known = true;
    }
    if (!known) {
      return absl::InvalidArgumentError(
          absl::StrCat("unknown flag ", argv[i],
                       "; there are --experts, --layers, --ranks, --spare, "
                       "--sigma, --seed and --drift"));
    }
  }
  return flags;
}

absl::Status Run(const Flags& flags) {
  std::cout << absl::StrFormat(
      "%5s %5s %5s  %8s  %10s %8s %8s  %8s  %8s\n", "sigma", "ranks", "spare",
      "max_vio", "contiguous", "greedy", "eplb", "drifted", "speed-up");
  for (const double sigma : flags.sigma) {
    for (const double ranks : flags.ranks) {
      for (const double spare : flags.spare) {
        const auto result = SimulatePlacement(
            {.num_experts = static_cast<int64_t>(flags.experts[0]),
             .num_layers = static_cast<int64_t>(flags.layers[0]),
             .num_ranks = static_cast<int64_t>(ranks),
             .spare_slots_per_rank = static_cast<int64_t>(spare),
             .sigma = sigma,
             .drift = flags.drift[0],
             .seed = static_cast<uint64_t>(flags.seed[0])});
        if (!result.ok()) return result.status();
        std::cout << absl::StrFormat(
            "%5.2f %5d %5d  %8.2f  %10.4f %8.4f %8.4f  %8.4f  %7.2fx\n", sigma,
            static_cast<int64_t>(ranks), static_cast<int64_t>(spare),
            result->load.max_vio, result->contiguous, result->greedy,
            result->eplb, result->eplb_drifted,
            result->eplb_drifted / result->contiguous_drifted);
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace cadre

int main(int argc, char** argv) {
  const auto flags = cadre::ParseFlags(argc, argv);
  const absl::Status status = flags.ok() ? cadre::Run(*flags) : flags.status();
  if (status.ok()) return 0;
  std::cerr << "placement_sim: " << std::string(status.message()) << "\n";
  return 1;
}
