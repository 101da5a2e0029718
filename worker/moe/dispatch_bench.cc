// Step time and bytes of expert parallelism on threads of one process: the
// same four ranks with their experts on 1, 2 and 4 ranks, dispatch in one chunk
// or two, overlapped or not. Prints a Markdown table for docs/benchmarks.md.
//
//   bazel run -c opt //worker/moe:dispatch_bench

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <memory>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "base/logging.h"
#include "plan/capacity.h"
#include "worker/comm/local_communicator.h"
#include "worker/model/model.h"

namespace cadre {
namespace {

constexpr int kRanks = 4;
constexpr int kSteps = 5;  // timed, after one that warms up
constexpr int64_t kTokens = 512, kExperts = 32, kTopK = 4;
constexpr int64_t kLayers = 2, kHidden = 256;

ModelSpec Spec() {
  ModelSpec spec;
  spec.model_type = "qwen3_moe";
  spec.hidden_size = kHidden;
  spec.vocab_size = 512;
  spec.norm_eps = 1e-6;
  spec.tensor_prefix = "model.";
  GqaSpec attention;
  attention.num_heads = 4;
  attention.num_kv_heads = 2;
  attention.head_dim = 64;
  attention.softmax_scale = 0.125;
  MoeSpec moe;
  moe.num_experts = kExperts;
  moe.top_k = kTopK;
  moe.expert_width = 256;
  moe.shared_width = 256;
  moe.shared_gate = true;
  moe.router.score = RouterSpec::Score::kSoftmax;
  spec.blocks.assign(kLayers, {attention, moe});
  return spec;
}

Batch TokensOf(int rank) {
  Batch batch;
  for (int64_t t = 0; t < kTokens; ++t) {
    batch.ids.push_back(static_cast<int32_t>((t * 131 + rank * 17) % 512));
    batch.targets.push_back(static_cast<int32_t>((t * 37 + 5) % 512));
  }
  batch.cu_seqlens = {0, kTokens / 2, kTokens};
  return batch;
}

struct Outcome {
  double seconds = 0.0;   // median step of the slowest rank
  double exposed = 0.0;   // of it, mean over ranks and steps
  ExpertTraffic traffic;  // of one step, all ranks
};

Outcome Measure(int ep, int chunks, bool overlap) {
  const ModelSpec spec = Spec();
  const ExpertPlacement placement =
      PlaceContiguous({.num_layers = kLayers,
                       .num_experts = kExperts,
                       .num_ranks = ep,
                       .slots_per_rank = kExperts / ep})
          .value();
  auto world = CreateLocalCommunicators(kRanks, {.timeout = absl::Minutes(5)});
  std::vector<std::vector<double>> seconds(kRanks);
  std::vector<ExpertTraffic> traffic(kRanks);
  std::vector<double> exposed(kRanks, 0.0);
  const auto run = [&](int rank) {
    auto group = world[rank]->Split(rank / ep, rank % ep);
    CADRE_CHECK(group.ok());
    ModelOptions options;
    options.expert_parallel = {.rank = rank % ep, .placement = placement};
    options.dispatch_chunks = chunks;
    options.overlap_dispatch = overlap;
    auto model = Model::Create(spec, options);
    CADRE_CHECK(model.ok()) << model.status().ToString();
    CADRE_CHECK((*model)->InitWeights(1).ok());
    CADRE_CHECK(
        (*model)
            ->Connect({.expert_dispatch = ep > 1 ? group->get() : nullptr,
                       .world = world[rank].get()})
            .ok());
    const Batch batch = TokensOf(rank);
    for (int step = 0; step <= kSteps; ++step) {
      CADRE_CHECK(world[rank]->Barrier().ok());
      const auto begin = std::chrono::steady_clock::now();
      auto pass = (*model)->ForwardBackward(
          batch, {.inv_num_targets = 1.0 / (kRanks * kTokens)});
      CADRE_CHECK(pass.ok()) << pass.status().ToString();
      CADRE_CHECK(world[rank]->Barrier().ok());
      const std::chrono::duration<double> took =
          std::chrono::steady_clock::now() - begin;
      if (step == 0) continue;
      seconds[rank].push_back(took.count());
      exposed[rank] += pass->traffic.exposed_seconds / kSteps;
      traffic[rank] = pass->traffic;
    }
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) threads.emplace_back(run, rank);
  for (std::thread& thread : threads) thread.join();
  Outcome out;
  for (int rank = 0; rank < kRanks; ++rank) {
    std::sort(seconds[rank].begin(), seconds[rank].end());
    out.seconds = std::max(out.seconds, seconds[rank][kSteps / 2]);
    out.exposed += exposed[rank] / kRanks;
    out.traffic.rows += traffic[rank].rows;
    out.traffic.dispatch_bytes += traffic[rank].dispatch_bytes;
    out.traffic.combine_bytes += traffic[rank].combine_bytes;
    out.traffic.backward_dispatch_bytes +=
        traffic[rank].backward_dispatch_bytes;
    out.traffic.backward_combine_bytes += traffic[rank].backward_combine_bytes;
  }
  return out;
}

int Main() {
  std::printf(
      "%d ranks (threads), %lld tokens each, %lld MoE layers of %lld experts, "
      "top %lld, width %lld, f32, full fine-tuning\n\n",
      kRanks, static_cast<long long>(kTokens), static_cast<long long>(kLayers),
      static_cast<long long>(kExperts), static_cast<long long>(kTopK),
      static_cast<long long>(kHidden));
  std::printf(
      "| EP | chunks | overlap | step, ms | exposed, ms | rows sent | formula "
      "| MB both ways, forward and backward | formula |\n"
      "|---|---|---|---|---|---|---|---|---|\n");
  for (const int ep : {1, 2, 4}) {
    for (const auto& [chunks, overlap] :
         {std::pair{1, false}, {2, false}, {2, true}}) {
      const Outcome o = Measure(ep, chunks, overlap);
      const ExpertTraffic& t = o.traffic;
      const double bytes = static_cast<double>(
          t.dispatch_bytes + t.combine_bytes + t.backward_dispatch_bytes +
          t.backward_combine_bytes);
      // A uniform router: rows after one row per (token, rank), and pairs, of
      // which the part for other ranks travels.
      const double away = 1.0 - 1.0 / ep;
      const double tokens = 1.0 * kRanks * kLayers * kTokens;
      const double rows =
          tokens * DedupRowsPerTokenExact(ep, kTopK, kExperts) * away;
      const double pairs = tokens * kTopK * away;
      const double expected = 4 * rows * 4 * kHidden + pairs * (8 + 4);
      std::printf(
          "| %d | %d | %s | %.1f | %.1f | %lld | %.0f | %.3f | %.3f |\n", ep,
          chunks, overlap ? "yes" : "no", o.seconds * 1e3, o.exposed * 1e3,
          static_cast<long long>(t.rows), rows, bytes / 1e6, expected / 1e6);
      std::fflush(stdout);
    }
  }
  return 0;
}

}  // namespace
}  // namespace cadre

int main() { return cadre::Main(); }
