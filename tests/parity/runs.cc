#include "tests/parity/runs.h"

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/status_macros.h"
#include "kernels/common/thread_pool.h"
#include "model/peft_adapter.h"
#include "tests/parity/guided_model.h"
#include "worker/device/transfer.h"
#include "worker/model/model.h"
#include "worker/shard/optimizer.h"

namespace cadre::parity {
namespace {

Exec ExecOf(const RunOptions& options, ThreadPool* pool) {
  if (options.exec.backend == Backend::kCuda) return options.exec;
  return {.pool = pool};
}

double AuxCoefficient(const ModelSpec& spec) {
  for (const BlockSpec& block : spec.blocks) {
    if (const auto* moe = std::get_if<MoeSpec>(&block.ffn)) {
      return moe->router.aux_loss_coef;
    }
  }
  return 0;
}

double TotalLoss(const ForwardResult& r, const Golden& golden,
                 const ModelSpec& spec) {
  return r.loss_sum / static_cast<double>(golden.batch.num_targets()) +
         AuxCoefficient(spec) * r.aux_loss;
}

void Compare(const std::string& quantity, const std::string& name,
             absl::Span<const float> ours, absl::Span<const float> theirs,
             double tolerance, bool by_norm, Report* report) {
  if (ours.size() != theirs.size()) {
    report->Fail(quantity,
                 absl::StrCat(name, ": ", ours.size(), " values, the fixture ",
                              "has ", theirs.size()));
    return;
  }
  report->Add(quantity,
              by_norm ? NormError(ours, theirs) : MaxError(ours, theirs),
              tolerance, name);
}

void CompareScalar(const std::string& quantity, const std::string& where,
                   double ours, double theirs, double tolerance, bool relative,
                   Report* report) {
  double error = std::abs(ours - theirs);
  if (relative) error /= std::max(std::abs(theirs), 1e-30);
  report->Add(quantity, error, tolerance, where);
}

absl::Status ZeroGradients(const Exec& exec, Model* model) {
  for (Parameter* p : model->parameters().Trainable()) {
    CADRE_RETURN_IF_ERROR(SetZero(exec, p->grad));
  }
  return absl::OkStatus();
}

struct TrainOptions {
  std::string name;  // "full", "lora.attn"
  const Trajectory* trajectory = nullptr;
  Tolerances tolerances = kF32Tolerances;
  double learning_rate = 0, weight_decay = 0;
};

absl::StatusOr<std::unique_ptr<Optimizer>> MakeOptimizer(
    const Golden& golden, const Exec& exec, const TrainOptions& options,
    Model* model) {
  return Optimizer::Create(exec, &model->parameters(),
                           {.beta1 = golden.beta1,
                            .beta2 = golden.beta2,
                            .epsilon = golden.epsilon,
                            .weight_decay = options.weight_decay,
                            .max_grad_norm = golden.max_grad_norm});
}

// Steps along a trajectory; `at_first` sees the gradients of step 0.
template <typename AtFirst>
absl::Status Train(const Golden& golden, GuidedModel* trained,
                   const TrainOptions& options, AtFirst at_first,
                   Report* report) {
  const Exec& exec = trained->exec;
  Model* const model = trained->model.get();
  Model* const guide = trained->guide.get();
  CADRE_ASSIGN_OR_RETURN(const std::unique_ptr<Optimizer> optimizer,
                         MakeOptimizer(golden, exec, options, model));
  std::unique_ptr<Optimizer> guide_optimizer;
  if (guide != nullptr) {
    CADRE_ASSIGN_OR_RETURN(guide_optimizer,
                           MakeOptimizer(golden, Exec(), options, guide));
  }
  const LossScale scale{
      .inv_num_targets = 1.0 / static_cast<double>(golden.batch.num_targets())};
  const size_t steps = std::max<size_t>(1, options.trajectory->size());
  for (size_t step = 0; step < steps; ++step) {
    if (guide != nullptr) {
      CADRE_RETURN_IF_ERROR(ZeroGradients(Exec(), guide));
      CADRE_RETURN_IF_ERROR(
          guide->ForwardBackward(golden.batch, scale).status());
      CADRE_ASSIGN_OR_RETURN(const double squares,
                             guide_optimizer->GradientSquares());
      CADRE_RETURN_IF_ERROR(
          guide_optimizer->Step(options.learning_rate, std::sqrt(squares))
              .status());
      trained->TakeChoices();
    }
    CADRE_RETURN_IF_ERROR(ZeroGradients(exec, model));
    CADRE_ASSIGN_OR_RETURN(const ForwardResult result,
                           model->ForwardBackward(golden.batch, scale));
    if (step == 0) CADRE_RETURN_IF_ERROR(at_first());
    CADRE_ASSIGN_OR_RETURN(const double squares, optimizer->GradientSquares());
    const double norm = std::sqrt(squares);
    if (step < options.trajectory->size()) {
      const auto& [loss, their_norm] = (*options.trajectory)[step];
      const std::string where = absl::StrCat("step ", step);
      CompareScalar(options.name + " trajectory loss", where,
                    TotalLoss(result, golden, model->spec()), loss,
                    options.tolerances.trajectory_loss, /*relative=*/false,
                    report);
      CompareScalar(options.name + " trajectory norm", where, norm, their_norm,
                    options.tolerances.trajectory_norm, /*relative=*/true,
                    report);
    }
    CADRE_ASSIGN_OR_RETURN(const bool stepped,
                           optimizer->Step(options.learning_rate, norm));
    if (!stepped) {
      report->Fail(options.name + " trajectory norm",
                   absl::StrCat("step ", step, " is not finite"));
      return absl::OkStatus();
    }
  }
  return absl::OkStatus();
}

std::string ReadBytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

// Copies between the adapter's arrays and the model's parameters (or their
// gradients).
absl::Status MoveAdapter(const Exec& exec, PeftAdapter* adapter,
                         ParameterRegistry* registry, bool in, bool gradients) {
  for (size_t i = 0; i < adapter->plan.modules.size(); ++i) {
    const LoraModule& module = adapter->plan.modules[i];
    for (const bool is_a : {true, false}) {
      Parameter* p = registry->Find(is_a ? module.a_name() : module.b_name());
      std::vector<float>& values =
          is_a ? adapter->weights[i].a : adapter->weights[i].b;
      const Tensor& t = gradients ? p->grad : p->value;
      if (in) {
        CADRE_RETURN_IF_ERROR(WriteFloats(exec, values, t));
      } else {
        CADRE_ASSIGN_OR_RETURN(values, ReadFloats(exec, t));
      }
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<NamedTensors> AsWritten(const PeftAdapter& adapter,
                                       const ModelSpec& spec,
                                       const std::string& dir) {
  CADRE_RETURN_IF_ERROR(WritePeftAdapter(adapter, spec, dir));
  return ReadTensors(dir + "/adapter_model.safetensors");
}

void CompareTensors(const std::string& quantity, const NamedTensors& ours,
                    const NamedTensors& theirs, double tolerance,
                    bool allow_extra, Report* report) {
  for (const auto& [name, tensor] : theirs) {
    // Gradients carry PEFT's adapter name in their keys.
    const std::string key =
        absl::StrReplaceAll(name, {{".default.weight", ".weight"}});
    const auto it = ours.find(key);
    if (it == ours.end()) {
      report->Fail(quantity, absl::StrCat(key, " is missing"));
    } else if (it->second.shape != tensor.shape) {
      report->Fail(quantity, absl::StrCat(key, " has another shape"));
    } else {
      Compare(quantity, key, it->second.values, tensor.values, tolerance,
              /*by_norm=*/true, report);
    }
  }
  if (!allow_extra && ours.size() > theirs.size()) {
    report->Fail(
        quantity,
        absl::StrCat(ours.size(), " tensors, the fixture has ", theirs.size()));
  }
}

}  // namespace

absl::Status CompareForward(const Golden& golden, const ModelDir& dir,
                            const RunOptions& options, Report* report) {
  ThreadPool pool(options.cpu_threads);
  CADRE_ASSIGN_OR_RETURN(
      GuidedModel guided,
      LoadModel(dir, ExecOf(options, &pool), options, nullptr));
  Model* const model = guided.model.get();
  if (guided.guide != nullptr) {
    CADRE_RETURN_IF_ERROR(guided.guide->Forward(golden.batch, {}).status());
    CADRE_RETURN_IF_ERROR(model->Forward(golden.batch, {}).status());
    CompareChoices(*guided.selections, *guided.guide_selections,
                   options.tolerances, report);
    guided.TakeChoices();
  }
  std::vector<float> logits;
  std::vector<std::vector<float>> hidden, router_logits;
  CADRE_ASSIGN_OR_RETURN(
      const ForwardResult result,
      model->Forward(golden.batch, {.logits = &logits,
                                    .hidden = &hidden,
                                    .router_logits = &router_logits}));
  for (const auto& [name, tensor] : golden.forward) {
    int index = -1;
    if (name == "logits") {
      Compare("logits", name, logits, tensor.values, options.tolerances.forward,
              options.tolerances.forward_by_norm, report);
    } else if (name == "loss") {
      CompareScalar("loss", name, TotalLoss(result, golden, dir.spec()),
                    tensor.values[0], options.tolerances.loss, true, report);
    } else if (name == "aux_loss") {
      CompareScalar("aux loss", name, result.aux_loss, tensor.values[0],
                    options.tolerances.loss, true, report);
    } else if (std::sscanf(name.c_str(), "hidden.%d", &index) == 1 &&
               index < static_cast<int>(hidden.size())) {
      // The fixture holds the first sequence only.
      const size_t n = std::min(tensor.values.size(), hidden[index].size());
      Compare("hidden", name, absl::MakeSpan(hidden[index]).first(n),
              tensor.values, options.tolerances.forward,
              options.tolerances.forward_by_norm, report);
    } else if (std::sscanf(name.c_str(), "router_logits.%d", &index) == 1 &&
               index < static_cast<int>(router_logits.size())) {
      Compare("router logits", name, router_logits[index], tensor.values,
              options.tolerances.forward, options.tolerances.forward_by_norm,
              report);
    } else {
      report->Fail("forward", absl::StrCat("nothing to compare ", name, " to"));
    }
  }
  return absl::OkStatus();
}

absl::Status CompareFull(const Golden& golden, const ModelDir& dir,
                         const RunOptions& options, Report* report) {
  if (golden.grads.empty() && golden.full.empty()) return absl::OkStatus();
  ThreadPool pool(options.cpu_threads);
  const Exec exec = ExecOf(options, &pool);
  CADRE_ASSIGN_OR_RETURN(GuidedModel guided,
                         LoadModel(dir, exec, options, nullptr));
  Model* const model = guided.model.get();
  const auto compare_gradients = [&]() -> absl::Status {
    for (const auto& [name, tensor] : golden.grads) {
      Parameter* p = model->parameters().Find(name);
      if (p == nullptr || !p->grad.present()) {
        report->Fail("full gradients", absl::StrCat(name, " has no gradient"));
      } else {
        CADRE_ASSIGN_OR_RETURN(const std::vector<float> grad,
                               ReadFloats(exec, p->grad));
        Compare("full gradients", name, grad, tensor.values,
                options.tolerances.gradient, true, report);
      }
    }
    return absl::OkStatus();
  };
  return Train(golden, &guided,
               {.name = "full",
                .trajectory = &golden.full,
                .tolerances = options.tolerances,
                .learning_rate = golden.lr_full,
                .weight_decay = golden.weight_decay_full},
               compare_gradients, report);
}

absl::Status CompareLora(const Golden& golden, const ModelDir& dir,
                         const std::string& run, const RunOptions& options,
                         Report* report) {
  const std::string name = absl::StrCat("lora.", run);
  const std::string at = absl::StrCat(golden.dir, "/lora_", run);
  const std::string scratch = absl::StrCat(options.scratch_dir, "/", run);
  std::error_code created;
  std::filesystem::create_directories(options.scratch_dir, created);
  CADRE_ASSIGN_OR_RETURN(PeftAdapter adapter,
                         ReadPeftAdapter(at + "_init", dir.spec()));
  CADRE_RETURN_IF_ERROR(
      WritePeftAdapter(adapter, dir.spec(), scratch + "_init"));
  if (ReadBytes(at + "_init/adapter_model.safetensors") !=
      ReadBytes(scratch + "_init/adapter_model.safetensors")) {
    report->Fail(name + " written back", "bytes differ from lora_" + run +
                                             "_init/adapter_model.safetensors");
  } else {
    CADRE_ASSIGN_OR_RETURN(
        const NamedTensors init,
        ReadTensors(scratch + "_init/adapter_model.safetensors"));
    CADRE_ASSIGN_OR_RETURN(NamedTensors theirs,
                           ReadTensors(at + "_init/adapter_model.safetensors"));
    CompareTensors(name + " written back", init, theirs, 0,
                   /*allow_extra=*/false, report);
  }

  ThreadPool pool(options.cpu_threads);
  const Exec exec = ExecOf(options, &pool);
  CADRE_ASSIGN_OR_RETURN(GuidedModel guided,
                         LoadModel(dir, exec, options, &adapter.plan));
  Model* const model = guided.model.get();
  CADRE_RETURN_IF_ERROR(MoveAdapter(exec, &adapter, &model->parameters(),
                                    /*in=*/true,
                                    /*gradients=*/false));
  if (guided.guide != nullptr) {
    CADRE_RETURN_IF_ERROR(MoveAdapter(Exec(), &adapter,
                                      &guided.guide->parameters(),
                                      /*in=*/true,
                                      /*gradients=*/false));
  }
  const auto compare_gradients = [&]() -> absl::Status {
    const std::string path = at + "_grads.safetensors";
    std::error_code error;
    if (!std::filesystem::exists(path, error)) return absl::OkStatus();
    CADRE_ASSIGN_OR_RETURN(const NamedTensors theirs, ReadTensors(path));
    PeftAdapter gradients = adapter;
    CADRE_RETURN_IF_ERROR(MoveAdapter(exec, &gradients, &model->parameters(),
                                      /*in=*/false,
                                      /*gradients=*/true));
    CADRE_ASSIGN_OR_RETURN(
        const NamedTensors ours,
        AsWritten(gradients, dir.spec(), scratch + "_grads"));
    CompareTensors(name + " gradients", ours, theirs,
                   options.tolerances.gradient,
                   /*allow_extra=*/true, report);
    return absl::OkStatus();
  };
  const auto trajectory = golden.lora.find(run);
  const Trajectory none;
  CADRE_RETURN_IF_ERROR(
      Train(golden, &guided,
            {.name = name,
             .trajectory =
                 trajectory == golden.lora.end() ? &none : &trajectory->second,
             .tolerances = options.tolerances,
             .learning_rate = golden.lr_lora,
             .weight_decay = 0},
            compare_gradients, report));

  const std::string final_path = at + "_final/adapter_model.safetensors";
  std::error_code error;
  if (trajectory == golden.lora.end() ||
      !std::filesystem::exists(final_path, error)) {
    return absl::OkStatus();
  }
  CADRE_RETURN_IF_ERROR(MoveAdapter(exec, &adapter, &model->parameters(),
                                    /*in=*/false,
                                    /*gradients=*/false));
  CADRE_ASSIGN_OR_RETURN(const NamedTensors ours,
                         AsWritten(adapter, dir.spec(), scratch + "_final"));
  CADRE_ASSIGN_OR_RETURN(const NamedTensors theirs, ReadTensors(final_path));
  CompareTensors(name + " final adapter", ours, theirs,
                 options.tolerances.final_adapter,
                 /*allow_extra=*/false, report);
  return absl::OkStatus();
}

}  // namespace cadre::parity
