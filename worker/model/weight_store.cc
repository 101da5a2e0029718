#include "worker/model/weight_store.h"

#include <cmath>
#include <functional>
#include <random>

#include "absl/strings/match.h"
#include "base/status_macros.h"

namespace cadre {
namespace {

// One generator per tensor, so that a tensor's values do not depend on others.
std::mt19937_64 GeneratorFor(uint64_t seed, const std::string& name) {
  uint64_t h = 0xCBF29CE484222325ULL ^ (seed * 0x9E3779B97F4A7C15ULL);
  for (unsigned char c : name) h = (h ^ c) * 0x100000001B3ULL;
  return std::mt19937_64(h);
}

void Fill(const Tensor& t, const std::function<double()>& value) {
  if (t.dtype() == DType::kF64) {
    for (double& v : t.span<double>()) v = value();
  } else {
    for (float& v : t.span<float>()) v = static_cast<float>(value());
  }
}

}  // namespace

WeightStore::WeightStore(const ModelSpec& spec, const LoraPlan* lora,
                         DType dtype)
    : dtype_(dtype), base_(LogicalTensors(spec)) {
  const auto add = [this](Parameter parameter,
                          const std::vector<int64_t>& dims) {
    parameter.value = NewTensor(dims);
    if (parameter.trainable) parameter.grad = NewTensor(dims);
    registry_.Add(std::move(parameter));
  };
  for (const LogicalTensor& t : base_) {
    const bool experts = t.role == LogicalTensor::Role::kExperts;
    add({.name = t.name,
         .domain = experts ? ParamDomain::kExpert : ParamDomain::kDense,
         .trainable = lora == nullptr && t.can_have_gradient &&
                      t.role != LogicalTensor::Role::kBuffer},
        t.shape);
  }
  if (lora == nullptr) return;
  for (const LoraModule& m : lora->modules) {
    const ParamDomain domain =
        IsExpertKind(m.kind) ? ParamDomain::kExpert : ParamDomain::kDense;
    add({.name = m.a_name(),
         .domain = domain,
         .is_adapter = true,
         .trainable = true},
        m.a_shape());
    add({.name = m.b_name(),
         .domain = domain,
         .is_adapter = true,
         .trainable = true},
        m.b_shape());
  }
}

Tensor WeightStore::NewTensor(absl::Span<const int64_t> dims) {
  int64_t bytes = SizeOf(dtype_);
  for (int64_t d : dims) bytes *= d;
  buffers_.emplace_back(bytes);
  return buffers_.back().View(dtype_, dims);
}

absl::Status WeightStore::Load(const ModelDir& dir) {
  for (const LogicalTensor& t : base_) {
    CADRE_RETURN_IF_ERROR(dir.Read(t.name, registry_.Find(t.name)->value));
  }
  return absl::OkStatus();
}

void WeightStore::InitBase(const ModelSpec& spec, uint64_t seed) {
  for (const LogicalTensor& t : base_) {
    std::mt19937_64 random = GeneratorFor(seed, t.name);
    std::normal_distribution<double> normal(0, 0.02);
    std::uniform_real_distribution<double> uniform(0, 1);
    const Tensor value = registry_.Find(t.name)->value;
    std::function<double()> next = [&] { return normal(random); };
    if (t.role == LogicalTensor::Role::kBuffer) {
      next = [] { return 0.0; };
    } else if (absl::EndsWith(t.name, "A_log")) {
      next = [&] { return std::log(1 + 15 * uniform(random)); };
    } else if (absl::EndsWith(t.name, "dt_bias")) {
      // softplus(dt_bias) spread evenly in logarithm over [0.001, 0.1].
      next = [&] {
        const double dt =
            std::exp(std::log(1e-3) + uniform(random) * std::log(1e2));
        return dt + std::log(-std::expm1(-dt));
      };
    } else if (absl::StrContains(t.name, "conv1d")) {
      const double bound = 1 / std::sqrt(static_cast<double>(t.shape.back()));
      next = [&random, &uniform, bound] {
        return bound * (2 * uniform(random) - 1);
      };
    } else if (absl::StrContains(t.name, "_hc.") && !t.is_matrix) {
      next = [one = absl::EndsWith(t.name, "scale")] {
        return one ? 1.0 : 0.0;
      };
    } else if (absl::StrContains(t.name, "norm") && t.shape.size() == 1) {
      const bool zero = absl::EndsWith(t.name, "bias") ||
                        (spec.norm_one_plus_weight &&
                         !absl::StrContains(t.name, "linear_attn.norm"));
      next = [zero] { return zero ? 0.0 : 1.0; };
    }
    Fill(value, next);
  }
}

void WeightStore::InitAdapter(uint64_t seed) {
  for (Parameter* p : registry_.all()) {
    if (!p->is_adapter) continue;
    if (absl::EndsWith(p->name, ".lora_B")) {
      Fill(p->value, [] { return 0.0; });
      continue;
    }
    std::mt19937_64 random = GeneratorFor(seed, p->name);
    const double in = static_cast<double>(p->value.dim(p->value.rank() - 1));
    std::uniform_real_distribution<double> uniform(-1 / std::sqrt(in),
                                                   1 / std::sqrt(in));
    Fill(p->value, [&] { return uniform(random); });
  }
}

}  // namespace cadre
