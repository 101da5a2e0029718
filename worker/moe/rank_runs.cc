#include "worker/moe/rank_runs.h"

#include <cmath>
#include <memory>
#include <numeric>
#include <thread>
#include <utility>
#include <variant>

#include "absl/time/time.h"
#include "base/logging.h"
#include "worker/comm/local_communicator.h"
#include "worker/model/tiny_models.h"
#include "worker/moe/link_tiers.h"

namespace cadre::testing {
namespace {

int64_t MoeLayers(const ModelSpec& spec, int64_t* experts) {
  int64_t layers = 0;
  for (const BlockSpec& block : spec.blocks) {
    const auto* moe = std::get_if<MoeSpec>(&block.ffn);
    if (moe == nullptr) continue;
    *experts = moe->num_experts;
    ++layers;
  }
  return layers;
}

std::unique_ptr<Model> MakeModel(const ModelSpec& spec, const RunOptions& run,
                                 ModelOptions options) {
  if (run.lora) options.lora = PlanLora(spec, AdaptEverything()).value();
  auto model = Model::Create(spec, std::move(options));
  CADRE_CHECK(model.ok()) << model.status().ToString();
  Randomize(model->get(), run.seed);
  if (run.prepare) run.prepare(model->get());
  return std::move(*model);
}

// Adds what this rank holds to the whole gradients.
void Collect(Model* model, RunResult* result) {
  for (Parameter* p : model->parameters().Trainable()) {
    int64_t size = 1;
    for (int64_t d : p->global_shape) size *= d;
    std::vector<double>& whole = result->gradients[p->name];
    whole.resize(size);
    const int64_t rows = p->rows.empty() ? 1 : p->grad.dim(0);
    const int64_t width = p->grad.num_elements() / rows;
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t at = p->rows.empty() ? 0 : p->rows[row].index;
      for (int64_t i = 0; at >= 0 && i < width; ++i) {
        whole[at * width + i] += At(p->grad, row * width + i);
      }
    }
  }
}

void Finish(int64_t targets, RunResult* result) {
  double squares = 0;
  for (const auto& [name, gradient] : result->gradients) {
    for (double g : gradient) squares += g * g;
  }
  result->norm = std::sqrt(squares);
  for (const ForwardResult& rank : result->ranks) {
    result->loss += rank.loss_sum / static_cast<double>(targets);
    result->aux_loss += rank.aux_loss;
  }
}

int64_t Targets(const std::vector<Batch>& batches) {
  int64_t targets = 0;
  for (const Batch& batch : batches) targets += batch.num_targets();
  return targets;
}

}  // namespace

Batch Joined(const std::vector<Batch>& batches) {
  Batch out;
  out.cu_seqlens = {0};
  for (const Batch& batch : batches) {
    const int64_t real = batch.num_real_tokens();
    const auto base = static_cast<int32_t>(out.ids.size());
    out.ids.insert(out.ids.end(), batch.ids.begin(), batch.ids.begin() + real);
    out.targets.insert(out.targets.end(), batch.targets.begin(),
                       batch.targets.begin() + real);
    for (size_t d = 1; d < batch.cu_seqlens.size(); ++d) {
      out.cu_seqlens.push_back(base + batch.cu_seqlens[d]);
    }
  }
  return out;
}

RunResult RunAlone(const ModelSpec& spec, const RunOptions& options,
                   const std::vector<Batch>& batches) {
  const auto model = MakeModel(spec, options, options.model);
  const int64_t targets = Targets(batches);
  RunResult result;
  auto pass = model->ForwardBackward(
      Joined(batches), {.inv_num_targets = 1.0 / static_cast<double>(targets)});
  CADRE_CHECK(pass.ok()) << pass.status().ToString();
  result.ranks.push_back(*std::move(pass));
  Collect(model.get(), &result);
  Finish(targets, &result);
  return result;
}

RunResult RunOnRanks(const ModelSpec& spec, const RunOptions& options,
                     const ExpertPlacement& placement,
                     const std::vector<Batch>& batches) {
  const int world = static_cast<int>(batches.size());
  const int size = static_cast<int>(placement.shape.num_ranks);
  CADRE_CHECK(world % size == 0);
  auto communicators =
      CreateLocalCommunicators(world, {.timeout = absl::Seconds(30)});
  std::vector<std::unique_ptr<Model>> models(world);
  RunResult result;
  result.ranks.resize(world);
  const int64_t targets = Targets(batches);
  const auto run = [&](int rank) {
    auto group = communicators[rank]->Split(rank / size, rank % size);
    CADRE_CHECK(group.ok());
    ModelOptions model = options.model;
    model.expert_parallel = {.rank = rank % size, .placement = placement};
    models[rank] = MakeModel(spec, options, std::move(model));
    std::vector<int> peers(size);
    std::iota(peers.begin(), peers.end(), rank - rank % size);
    const absl::Status connected = models[rank]->Connect(
        {.expert_dispatch = size > 1 ? group->get() : nullptr,
         .expert_tiers = LinkTiers(options.link_domains, peers, rank),
         .world = communicators[rank].get()});
    CADRE_CHECK(connected.ok()) << connected.ToString();
    auto pass = models[rank]->ForwardBackward(
        batches[rank], {.inv_num_targets = 1.0 / static_cast<double>(targets)});
    CADRE_CHECK(pass.ok()) << pass.status().ToString();
    result.ranks[rank] = *std::move(pass);
    // The group must outlive its peers' last call.
    CADRE_CHECK(communicators[rank]->Barrier().ok());
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) threads.emplace_back(run, rank);
  for (std::thread& thread : threads) thread.join();
  for (const auto& model : models) Collect(model.get(), &result);
  Finish(targets, &result);
  return result;
}

ExpertPlacement InOrder(const ModelSpec& spec, int64_t ranks) {
  PlacementShape shape;
  shape.num_layers = MoeLayers(spec, &shape.num_experts);
  shape.num_ranks = ranks;
  shape.slots_per_rank = (shape.num_experts + ranks - 1) / ranks;
  return PlaceContiguous(shape).value();
}

ExpertPlacement WithSpares(const ModelSpec& spec, int64_t ranks,
                           int64_t spare) {
  PlacementShape shape = InOrder(spec, ranks).shape;
  shape.slots_per_rank += spare;
  ExpertLoads loads(shape.num_layers);
  for (int64_t layer = 0; layer < shape.num_layers; ++layer) {
    for (int64_t e = 0; e < shape.num_experts; ++e) {
      loads[layer].push_back(
          static_cast<double>(1 + (7 * e + 3 * layer) % shape.num_experts));
    }
  }
  return Place(loads, {.shape = shape, .plan_epoch = 1}).value();
}

double GradientDistance(const RunResult& a, const RunResult& b) {
  if (a.gradients.size() != b.gradients.size()) return 1;
  double worst = 0;
  for (const auto& [name, expected] : b.gradients) {
    const auto found = a.gradients.find(name);
    if (found == a.gradients.end() || found->second.size() != expected.size()) {
      return 1;
    }
    double difference = 0, norm = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      difference += std::pow(found->second[i] - expected[i], 2);
      norm += expected[i] * expected[i];
    }
    worst = std::max(worst, std::sqrt(difference) /
                                std::max(std::sqrt(norm), 1e-4 * b.norm));
  }
  return worst;
}

}  // namespace cadre::testing
