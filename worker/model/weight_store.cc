#include "worker/model/weight_store.h"

#include <cmath>
#include <functional>
#include <random>
#include <variant>

#include "absl/strings/match.h"
#include "base/status_macros.h"

namespace cadre {
namespace {

// One generator per tensor, so that a tensor's values do not depend on others;
// one per expert, so that they do not depend on which experts are here.
std::mt19937_64 GeneratorFor(uint64_t seed, const std::string& name,
                             int64_t expert = -1) {
  uint64_t h = 0xCBF29CE484222325ULL ^ (seed * 0x9E3779B97F4A7C15ULL);
  for (unsigned char c : name) h = (h ^ c) * 0x100000001B3ULL;
  h += static_cast<uint64_t>(expert + 1) * 0xD1342543DE82EF95ULL;
  return std::mt19937_64(h);
}

// The global row of each row that is held.
int64_t GlobalRow(const Parameter& parameter, int64_t row) {
  return parameter.rows.empty() ? row : parameter.rows[row].index;
}

// MoE layers in model order by layer; -1 for the others.
std::vector<int> MoeIndices(const ModelSpec& spec) {
  std::vector<int> out;
  int next = 0;
  for (const BlockSpec& block : spec.blocks) {
    out.push_back(std::holds_alternative<MoeSpec>(block.ffn) ? next++ : -1);
  }
  return out;
}

void Fill(const Tensor& t, const std::function<double()>& value) {
  if (t.dtype() == DType::kF64) {
    for (double& v : t.span<double>()) v = value();
  } else {
    for (float& v : t.span<float>()) v = static_cast<float>(value());
  }
}

}  // namespace

std::vector<HeldRow> HeldExperts(const ExpertParallel& experts, int layer) {
  const ExpertSlots& slots = experts.layers[layer];
  const int64_t count = experts.slots_per_rank(layer);
  std::vector<HeldRow> rows;
  for (int64_t local = 0; local < count; ++local) {
    const int64_t slot = experts.rank * count + local;
    const int32_t expert = slots.slot_to_expert[slot];
    rows.push_back({.index = expert,
                    .home = slots.expert_to_slots[expert].front() == slot});
  }
  return rows;
}

WeightStore::WeightStore(const ModelSpec& spec, const LoraPlan* lora,
                         DType dtype, const ExpertParallel* experts)
    : dtype_(dtype), base_(LogicalTensors(spec)) {
  const std::vector<int> moe = MoeIndices(spec);
  const auto add = [&](Parameter parameter, std::vector<int64_t> dims,
                       int layer) {
    parameter.global_shape = dims;
    if (parameter.domain == ParamDomain::kExpert && experts != nullptr) {
      parameter.rows = HeldExperts(*experts, moe[layer]);
      dims[0] = static_cast<int64_t>(parameter.rows.size());
    }
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
        t.shape, t.layer);
  }
  if (lora == nullptr) return;
  for (const LoraModule& m : lora->modules) {
    const ParamDomain domain =
        IsExpertKind(m.kind) ? ParamDomain::kExpert : ParamDomain::kDense;
    add({.name = m.a_name(),
         .domain = domain,
         .is_adapter = true,
         .trainable = true},
        m.a_shape(), m.layer);
    add({.name = m.b_name(),
         .domain = domain,
         .is_adapter = true,
         .trainable = true},
        m.b_shape(), m.layer);
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
    const Parameter& parameter = *registry_.Find(t.name);
    if (parameter.rows.empty()) {
      CADRE_RETURN_IF_ERROR(dir.Read(t.name, parameter.value));
      continue;
    }
    for (size_t row = 0; row < parameter.rows.size(); ++row) {
      const int64_t expert = parameter.rows[row].index;
      CADRE_RETURN_IF_ERROR(dir.ReadExperts(
          t.name, expert, expert + 1, parameter.value.Rows(row, row + 1)));
    }
  }
  return absl::OkStatus();
}

void WeightStore::InitBase(const ModelSpec& spec, uint64_t seed) {
  for (const LogicalTensor& t : base_) {
    std::mt19937_64 random = GeneratorFor(seed, t.name);
    std::normal_distribution<double> normal(0, 0.02);
    std::uniform_real_distribution<double> uniform(0, 1);
    const Parameter& parameter = *registry_.Find(t.name);
    const Tensor value = parameter.value;
    if (t.role == LogicalTensor::Role::kExperts) {
      for (int64_t row = 0; row < value.dim(0); ++row) {
        random = GeneratorFor(seed, t.name, GlobalRow(parameter, row));
        normal.reset();
        Fill(value.Rows(row, row + 1), [&] { return normal(random); });
      }
      continue;
    }
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
    const double in = static_cast<double>(p->value.dim(p->value.rank() - 1));
    std::uniform_real_distribution<double> uniform(-1 / std::sqrt(in),
                                                   1 / std::sqrt(in));
    if (p->domain != ParamDomain::kExpert) {
      std::mt19937_64 random = GeneratorFor(seed, p->name);
      Fill(p->value, [&] { return uniform(random); });
      continue;
    }
    for (int64_t row = 0; row < p->value.dim(0); ++row) {
      std::mt19937_64 random = GeneratorFor(seed, p->name, GlobalRow(*p, row));
      Fill(p->value.Rows(row, row + 1), [&] { return uniform(random); });
    }
  }
}

}  // namespace cadre
