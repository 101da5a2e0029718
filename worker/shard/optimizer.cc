#include "worker/shard/optimizer.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/adamw/adamw.h"
#include "kernels/cast/cast.h"
#include "worker/device/buffer.h"
#include "worker/device/transfer.h"

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

  absl::Status Init() {
    CADRE_ASSIGN_OR_RETURN(
        squares_, Buffer::Create(exec_, sizeof(double), "gradient norm"));
    return absl::OkStatus();
  }

  absl::Status Add(const OwnedSlice& slice) {
    const DType value = slice.value().dtype();
    const bool narrow = value != DType::kF32 && value != DType::kF64;
    const DType dtype = narrow ? DType::kF32 : value;
    Slot slot{.slice = slice};
    std::vector<Tensor*> states = {&slot.m, &slot.v};
    if (narrow) states.push_back(&slot.master);
    for (Tensor* state : states) {
      CADRE_ASSIGN_OR_RETURN(Buffer buffer,
                             Buffer::Create(exec_, slice.size() * SizeOf(dtype),
                                            "optimizer state"));
      *state = buffer.View(dtype, {slice.size()});
      state_bytes_ += buffer.num_bytes();
      buffers_.push_back(std::move(buffer));
    }
    slots_.push_back(std::move(slot));
    return absl::OkStatus();
  }

  absl::StatusOr<double> GradientSquares() override {
    const Tensor sum = squares_.View(DType::kF64, {1});
    CADRE_RETURN_IF_ERROR(SetZero(exec_, sum));
    for (const Slot& slot : slots_) {
      if (!slot.slice.counted) continue;
      const Tensor grad = slot.slice.grad();
      for (const Stretch& home : HomeStretches(slot.slice)) {
        CADRE_RETURN_IF_ERROR(SumOfSquares(
            exec_, {.x = FlatPart(grad, home.begin, home.begin + home.size),
                    .sum = sum}));
      }
    }
    double squares = 0;
    CADRE_RETURN_IF_ERROR(CopyToHost(exec_, sum, &squares));
    return squares;
  }

  absl::StatusOr<bool> Step(double learning_rate, double norm) override {
    if (!std::isfinite(norm)) return false;
    const double clip =
        options_.max_grad_norm > 0
            ? std::min(1.0, options_.max_grad_norm / (norm + 1e-6))
            : 1.0;
    ++num_updates_;
    updates_.clear();
    for (const Slot& slot : slots_) {
      updates_.push_back({.p = slot.weight(),
                          .m = slot.m,
                          .v = slot.v,
                          .g = slot.slice.grad(),
                          .learning_rate = learning_rate,
                          .beta1 = options_.beta1,
                          .beta2 = options_.beta2,
                          .epsilon = options_.epsilon,
                          .weight_decay = options_.weight_decay,
                          .step = num_updates_,
                          .grad_scale = clip});
      // A GPU rounds the narrow value in the same pass.
      if (exec_.backend == Backend::kCuda && slot.master.present()) {
        updates_.back().value = slot.slice.value();
      }
    }
    CADRE_RETURN_IF_ERROR(AdamW(exec_, updates_));
    if (exec_.backend == Backend::kCpu) CADRE_RETURN_IF_ERROR(RoundValues());
    return true;
  }

  const std::vector<Slot>& slots() const override { return slots_; }
  absl::Status RoundValues() override {
    for (const Slot& slot : slots_) {
      if (!slot.master.present()) continue;
      CADRE_RETURN_IF_ERROR(Cast(exec_, slot.master, slot.slice.value()));
    }
    return absl::OkStatus();
  }
  absl::Status TakeValues() override {
    for (const Slot& slot : slots_) {
      if (!slot.master.present()) continue;
      CADRE_RETURN_IF_ERROR(Cast(exec_, slot.slice.value(), slot.master));
    }
    return absl::OkStatus();
  }
  int64_t num_updates() const override { return num_updates_; }
  void set_num_updates(int64_t n) override { num_updates_ = n; }
  int64_t state_bytes() const override { return state_bytes_; }

 private:
  const Exec exec_;
  const OptimizerOptions options_;
  std::vector<Slot> slots_;
  std::deque<Buffer> buffers_;
  Buffer squares_;                  // f64 [1]
  std::vector<AdamWArgs> updates_;  // kept: a step allocates nothing
  int64_t num_updates_ = 0;
  int64_t state_bytes_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Optimizer>> Optimizer::Create(
    const Exec& exec, std::vector<OwnedSlice> owned,
    const OptimizerOptions& options, bool may_be_empty) {
  CADRE_RETURN_IF_ERROR(CheckOptions(options));
  if (owned.empty() && !may_be_empty) {
    return absl::InvalidArgumentError(
        "optimizer: the model has no trainable parameter");
  }
  auto optimizer = std::make_unique<AdamWOptimizer>(exec, options);
  CADRE_RETURN_IF_ERROR(optimizer->Init());
  for (const OwnedSlice& slice : owned) {
    CADRE_RETURN_IF_ERROR(optimizer->Add(slice));
  }
  CADRE_RETURN_IF_ERROR(optimizer->TakeValues());
  return optimizer;
}

absl::StatusOr<std::unique_ptr<Optimizer>> Optimizer::Create(
    const Exec& exec, ParameterRegistry* registry,
    const OptimizerOptions& options) {
  std::vector<OwnedSlice> owned;
  for (Parameter* parameter : registry->Trainable()) {
    owned.push_back(
        {.parameter = parameter, .end = parameter->value.num_elements()});
  }
  return Create(exec, std::move(owned), options);
}

}  // namespace cadre
