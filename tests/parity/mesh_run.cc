#include "tests/parity/mesh_run.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "kernels/common/thread_pool.h"
#include "model/peft_adapter.h"
#include "worker/comm/gloo_communicator.h"
#include "worker/comm/local_communicator.h"
#include "worker/comm/rendezvous_store.h"
#include "worker/model/model.h"
#include "worker/model/parameter_values.h"
#include "worker/shard/mesh_communicators.h"
#include "worker/shard/model_layout.h"
#include "worker/shard/optimizer.h"
#include "worker/train/train_step.h"

namespace cadre::parity {
namespace {

// models.md section 7, and what layouts may differ by (parallelism.md).
constexpr double kGradient = 1e-4, kTrajectoryLoss = 2e-4,
                 kTrajectoryNorm = 1e-3, kFinalAdapter = 1e-3, kLayout = 1e-5;

using Values = std::map<std::string, std::vector<float>>;

struct Task {
  const Golden* golden = nullptr;
  const ModelDir* dir = nullptr;
  const RunOptions* options = nullptr;
  const PeftAdapter* adapter = nullptr;  // null: full fine-tuning
  const Trajectory* trajectory = nullptr;
  double learning_rate = 0, weight_decay = 0;
};

// What all ranks of one run came to.
struct Outcome {
  Trajectory steps;  // total loss and gradient norm
  Values gradients;  // of step 0, whole tensors
  Values weights;    // after the last step
};

// Puts the parts that ranks own together. Thread-safe.
class Assembler {
 public:
  void Add(const Parameter& parameter, const Stretch& at, const Tensor& part) {
    int64_t n = 1;
    for (int64_t dim : parameter.global_shape) n *= dim;
    std::lock_guard<std::mutex> lock(mutex_);
    std::vector<float>& whole = values_[parameter.name];
    whole.resize(n, std::nanf(""));  // what nobody adds stays seen
    std::copy_n(part.data<float>() + at.begin, at.size,
                whole.begin() + at.global_begin);
  }
  Values Take() { return std::move(values_); }

 private:
  std::mutex mutex_;
  Values values_;
};

// The sequences [begin, end) of the fixture's batch.
Batch Sequences(const Batch& all, int64_t begin, int64_t end) {
  Batch out{.cu_seqlens = {0}};
  const int64_t from = all.cu_seqlens[begin], to = all.cu_seqlens[end];
  out.ids.assign(all.ids.begin() + from, all.ids.begin() + to);
  out.targets.assign(all.targets.begin() + from, all.targets.begin() + to);
  for (int64_t d = begin; d < end; ++d) {
    out.cu_seqlens.push_back(all.cu_seqlens[d + 1] -
                             static_cast<int32_t>(from));
  }
  return out;
}

double AuxCoefficient(const ModelSpec& spec) {
  for (const BlockSpec& block : spec.blocks) {
    if (const auto* moe = std::get_if<MoeSpec>(&block.ffn)) {
      return moe->router.aux_loss_coef;
    }
  }
  return 0;
}

absl::StatusOr<std::unique_ptr<Model>> MakeModel(const Task& task,
                                                 const Exec& exec,
                                                 const Mesh& mesh, int rank) {
  ModelOptions options{.exec = exec,
                       .replayed_blocks = task.options->replayed_blocks};
  if (task.adapter != nullptr) options.lora = task.adapter->plan;
  CADRE_RETURN_IF_ERROR(PlaceModel(task.dir->spec(), mesh, rank, &options));
  CADRE_ASSIGN_OR_RETURN(std::unique_ptr<Model> model,
                         Model::Create(task.dir->spec(), options));
  CADRE_RETURN_IF_ERROR(model->LoadWeights(*task.dir));
  if (task.adapter == nullptr) return model;
  for (size_t i = 0; i < task.adapter->plan.modules.size(); ++i) {
    const LoraModule& module = task.adapter->plan.modules[i];
    const AdapterWeights& weights = task.adapter->weights[i];
    ParameterRegistry& parameters = model->parameters();
    CADRE_RETURN_IF_ERROR(
        WriteHeldPart(exec, weights.a, parameters.Find(module.a_name())));
    CADRE_RETURN_IF_ERROR(
        WriteHeldPart(exec, weights.b, parameters.Find(module.b_name())));
  }
  return model;
}

absl::Status RunRank(const Task& task, const Mesh& mesh, int rank,
                     std::unique_ptr<Communicator> world, Assembler* gradients,
                     Assembler* weights, Trajectory* steps) {
  ThreadPool pool(task.options->cpu_threads);
  const Exec exec{.pool = &pool};
  CADRE_ASSIGN_OR_RETURN(const auto communicators,
                         MeshCommunicators::Create(mesh, std::move(world)));
  CADRE_ASSIGN_OR_RETURN(const std::unique_ptr<Model> model,
                         MakeModel(task, exec, mesh, rank));
  const Golden& golden = *task.golden;
  int64_t step = 0;
  TrainStepOptions options{
      .exec = exec,
      .optimizer = {.beta1 = golden.beta1,
                    .beta2 = golden.beta2,
                    .epsilon = golden.epsilon,
                    .weight_decay = task.weight_decay,
                    .max_grad_norm = golden.max_grad_norm}};
  options.before_update = [&](const Optimizer& optimizer) {
    for (const Optimizer::Slot& slot : optimizer.slots()) {
      if (step > 0 || !slot.slice.counted) continue;
      for (const Stretch& part : HomeStretches(slot.slice)) {
        gradients->Add(*slot.slice.parameter, part, slot.slice.grad());
      }
    }
  };
  CADRE_ASSIGN_OR_RETURN(
      const auto runner,
      TrainStepRunner::Create(options, model.get(), communicators.get(),
                              Clock::Real()));
  const int64_t docs = golden.batch.num_docs(), ranks = mesh.world_size();
  TrainStep data;
  data.micro_batches.push_back(
      Sequences(golden.batch, rank * docs / ranks, (rank + 1) * docs / ranks));
  const int64_t count =
      std::max<int64_t>(1, static_cast<int64_t>(task.trajectory->size()));
  for (; step < count; ++step) {
    CADRE_ASSIGN_OR_RETURN(const StepMetrics metrics,
                           runner->Run(data, step, task.learning_rate));
    if (rank == 0) {
      steps->emplace_back(
          metrics.loss + AuxCoefficient(model->spec()) * metrics.aux_loss,
          metrics.grad_norm);
    }
  }
  for (const Optimizer::Slot& slot : runner->optimizer().slots()) {
    if (!slot.slice.counted) continue;
    for (const Stretch& part : HomeStretches(slot.slice)) {
      weights->Add(*slot.slice.parameter, part, slot.weight());
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Outcome> RunMesh(const Task& task, const MeshSpec& spec) {
  CADRE_ASSIGN_OR_RETURN(const Mesh mesh, Mesh::Create(spec));
  const int ranks = mesh.world_size();
  InMemoryStore store;
  Assembler gradients, weights;
  Outcome outcome;
  std::vector<absl::Status> statuses(ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      absl::StatusOr<std::unique_ptr<Communicator>> world =
          ranks == 1
              ? std::move(CreateLocalCommunicators(1).front())
              : CreateGlooCommunicator(
                    {.rank = rank, .size = ranks, .bind_address = "127.0.0.1"},
                    &store);
      statuses[rank] = world.status();
      if (!world.ok()) return;
      statuses[rank] = RunRank(task, mesh, rank, *std::move(world), &gradients,
                               &weights, &outcome.steps);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int rank = 0; rank < ranks; ++rank) {
    CADRE_RETURN_IF_ERROR(
        Annotate(statuses[rank], absl::StrCat("rank ", rank)));
  }
  outcome.gradients = gradients.Take();
  outcome.weights = weights.Take();
  return outcome;
}

void CompareValues(const std::string& quantity, const Values& ours,
                   const Values& theirs, double tolerance, Report* report) {
  for (const auto& [name, values] : theirs) {
    const auto it = ours.find(name);
    if (it == ours.end() || it->second.size() != values.size()) {
      report->Fail(quantity, absl::StrCat(name, " is missing or incomplete"));
    } else {
      report->Add(quantity, NormError(it->second, values), tolerance, name);
    }
  }
  if (ours.size() != theirs.size()) {
    report->Fail(quantity, absl::StrCat(ours.size(), " tensors, expected ",
                                        theirs.size()));
  }
}

double RelativeError(double a, double b) {
  return std::abs(a - b) / std::max(std::abs(b), 1e-30);
}

// Against one rank, and along the fixture's trajectory.
void CompareRuns(const std::string& name, const Task& task, const Outcome& one,
                 const Outcome& many, Report* report) {
  CompareValues(name + " gradients, 1 rank", many.gradients, one.gradients,
                kLayout, report);
  report->Add(name + " norm, 1 rank",
              RelativeError(many.steps[0].second, one.steps[0].second), kLayout,
              "step 0");
  for (size_t step = 0; step < task.trajectory->size(); ++step) {
    const auto& [loss, norm] = (*task.trajectory)[step];
    const std::string where = absl::StrCat("step ", step);
    report->Add(name + " trajectory loss",
                std::abs(many.steps[step].first - loss), kTrajectoryLoss,
                where);
    report->Add(name + " trajectory norm",
                RelativeError(many.steps[step].second, norm), kTrajectoryNorm,
                where);
  }
}

// The adapter with these values, in the names of its file.
absl::StatusOr<NamedTensors> AsFile(PeftAdapter adapter, const Values& values,
                                    const ModelSpec& spec,
                                    const std::string& dir) {
  for (size_t i = 0; i < adapter.plan.modules.size(); ++i) {
    const LoraModule& module = adapter.plan.modules[i];
    adapter.weights[i].a = values.at(module.a_name());
    adapter.weights[i].b = values.at(module.b_name());
  }
  CADRE_RETURN_IF_ERROR(WritePeftAdapter(adapter, spec, dir));
  return ReadTensors(dir + "/adapter_model.safetensors");
}

Values ByName(const NamedTensors& tensors) {
  Values out;
  for (const auto& [name, tensor] : tensors) {
    // Gradients carry PEFT's adapter name in their keys.
    out[absl::StrReplaceAll(name, {{".default.weight", ".weight"}})] =
        tensor.values;
  }
  return out;
}

}  // namespace

absl::Status CompareFullOnMesh(const Golden& golden, const ModelDir& dir,
                               const MeshSpec& mesh, const RunOptions& options,
                               Report* report) {
  if (mesh.world_size == 1) return absl::OkStatus();
  const Task task{.golden = &golden,
                  .dir = &dir,
                  .options = &options,
                  .trajectory = &golden.full,
                  .learning_rate = golden.lr_full,
                  .weight_decay = golden.weight_decay_full};
  CADRE_ASSIGN_OR_RETURN(const Outcome one, RunMesh(task, {}));
  CADRE_ASSIGN_OR_RETURN(const Outcome many, RunMesh(task, mesh));
  const std::string name = "mesh full";
  CompareRuns(name, task, one, many, report);
  for (const auto& [tensor, expected] : golden.grads) {
    const auto it = many.gradients.find(tensor);
    if (it == many.gradients.end() ||
        it->second.size() != expected.values.size()) {
      report->Fail(name + " gradients",
                   absl::StrCat(tensor, " is missing or incomplete"));
    } else {
      report->Add(name + " gradients", NormError(it->second, expected.values),
                  kGradient, tensor);
    }
  }
  return absl::OkStatus();
}

absl::Status CompareLoraOnMesh(const Golden& golden, const ModelDir& dir,
                               const std::string& run, const MeshSpec& mesh,
                               const RunOptions& options, Report* report) {
  if (mesh.world_size == 1) return absl::OkStatus();
  const std::string at = absl::StrCat(golden.dir, "/lora_", run);
  const std::string name = absl::StrCat("mesh lora.", run);
  const std::string scratch = absl::StrCat(options.scratch_dir, "/mesh_", run);
  std::error_code error;
  std::filesystem::create_directories(options.scratch_dir, error);
  CADRE_ASSIGN_OR_RETURN(const PeftAdapter adapter,
                         ReadPeftAdapter(at + "_init", dir.spec()));
  const Trajectory none;
  const auto trajectory = golden.lora.find(run);
  const Task task{.golden = &golden,
                  .dir = &dir,
                  .options = &options,
                  .adapter = &adapter,
                  .trajectory = trajectory == golden.lora.end()
                                    ? &none
                                    : &trajectory->second,
                  .learning_rate = golden.lr_lora};
  CADRE_ASSIGN_OR_RETURN(const Outcome one, RunMesh(task, {}));
  CADRE_ASSIGN_OR_RETURN(const Outcome many, RunMesh(task, mesh));
  CompareRuns(name, task, one, many, report);
  if (std::filesystem::exists(at + "_grads.safetensors", error)) {
    CADRE_ASSIGN_OR_RETURN(const NamedTensors theirs,
                           ReadTensors(at + "_grads.safetensors"));
    CADRE_ASSIGN_OR_RETURN(
        const NamedTensors ours,
        AsFile(adapter, many.gradients, dir.spec(), scratch + "_grads"));
    const Values written = ByName(ours);
    for (const auto& [key, values] : ByName(theirs)) {
      const auto it = written.find(key);
      if (it == written.end() || it->second.size() != values.size()) {
        report->Fail(name + " gradients", key + " is missing or incomplete");
      } else {
        report->Add(name + " gradients", NormError(it->second, values),
                    kGradient, key);
      }
    }
  }
  const std::string final_path = at + "_final/adapter_model.safetensors";
  if (trajectory == golden.lora.end() ||
      !std::filesystem::exists(final_path, error)) {
    return absl::OkStatus();
  }
  CADRE_ASSIGN_OR_RETURN(const NamedTensors theirs, ReadTensors(final_path));
  CADRE_ASSIGN_OR_RETURN(
      const NamedTensors ours,
      AsFile(adapter, many.weights, dir.spec(), scratch + "_final"));
  CompareValues(name + " final adapter", ByName(ours), ByName(theirs),
                kFinalAdapter, report);
  return absl::OkStatus();
}

}  // namespace cadre::parity
