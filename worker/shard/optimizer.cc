#include "worker/shard/optimizer.h"

#include <algorithm>
#include <cmath>
#include <deque>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/adamw/adamw.h"
#include "worker/device/host_buffer.h"

namespace cadre {
namespace {

absl::Status CheckOptions(const OptimizerOptions& o) {
  const auto check = [](bool good, absl::string_view name, double value,
                        absl::string_view range) {
    return good ? absl::OkStatus()
                : absl::InvalidArgumentError(absl::StrCat(
                      "optimizer: ", name, " is ", value, ", must be ", range));
  };
  CADRE_RETURN_IF_ERROR(
      check(o.beta1 >= 0 && o.beta1 < 1, "beta1", o.beta1, "in [0, 1)"));
  CADRE_RETURN_IF_ERROR(
      check(o.beta2 >= 0 && o.beta2 < 1, "beta2", o.beta2, "in [0, 1)"));
  CADRE_RETURN_IF_ERROR(check(o.epsilon > 0, "epsilon", o.epsilon, "> 0"));
  CADRE_RETURN_IF_ERROR(
      check(o.weight_decay >= 0, "weight_decay", o.weight_decay, ">= 0"));
  return check(o.max_grad_norm >= 0, "max_grad_norm", o.max_grad_norm, ">= 0");
}

class AdamWOptimizer final : public Optimizer {
 public:
  AdamWOptimizer(const Exec& exec, const OptimizerOptions& options)
      : exec_(exec), options_(options) {}

  void Add(Parameter* parameter) {
    const auto state = [&] {
      buffers_.emplace_back(parameter->value.num_bytes());
      return buffers_.back().View(parameter->value.dtype(),
                                  parameter->value.dims());
    };
    slots_.push_back({.parameter = parameter, .m = state(), .v = state()});
  }

  absl::StatusOr<double> GradientSquares() override {
    double sum = 0;
    for (const Slot& slot : slots_) {
      CADRE_RETURN_IF_ERROR(SumOfSquares(
          exec_,
          {.x = slot.parameter->grad, .sum = Tensor(&sum, DType::kF64, {1})}));
    }
    return sum;
  }

  absl::StatusOr<bool> Step(double learning_rate, double norm) override {
    if (!std::isfinite(norm)) return false;
    const double clip =
        options_.max_grad_norm > 0
            ? std::min(1.0, options_.max_grad_norm / (norm + 1e-6))
            : 1.0;
    ++num_updates_;
    for (const Slot& slot : slots_) {
      CADRE_RETURN_IF_ERROR(AdamW(exec_, {.p = slot.parameter->value,
                                          .m = slot.m,
                                          .v = slot.v,
                                          .g = slot.parameter->grad,
                                          .learning_rate = learning_rate,
                                          .beta1 = options_.beta1,
                                          .beta2 = options_.beta2,
                                          .epsilon = options_.epsilon,
                                          .weight_decay = options_.weight_decay,
                                          .step = num_updates_,
                                          .grad_scale = clip}));
    }
    return true;
  }

  const std::vector<Slot>& slots() const override { return slots_; }
  int64_t num_updates() const override { return num_updates_; }
  void set_num_updates(int64_t n) override { num_updates_ = n; }

 private:
  const Exec exec_;
  const OptimizerOptions options_;
  std::vector<Slot> slots_;
  std::deque<HostBuffer> buffers_;
  int64_t num_updates_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Optimizer>> Optimizer::Create(
    const Exec& exec, ParameterRegistry* registry,
    const OptimizerOptions& options) {
  CADRE_RETURN_IF_ERROR(CheckOptions(options));
  auto optimizer = std::make_unique<AdamWOptimizer>(exec, options);
  for (Parameter* parameter : registry->Trainable()) optimizer->Add(parameter);
  if (optimizer->slots().empty()) {
    return absl::InvalidArgumentError(
        "optimizer: the model has no trainable parameter");
  }
  return optimizer;
}

}  // namespace cadre
