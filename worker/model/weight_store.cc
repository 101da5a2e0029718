#include "worker/model/weight_store.h"

#include <cmath>
#include <random>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/common/check.h"
#include "kernels/random_fill/random_fill.h"
#include "worker/device/transfer.h"

namespace cadre {
namespace {

constexpr double kDeviation = 0.02;  // of random weight matrices

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

// As GeneratorFor, for fills on a GPU.
uint64_t SeedFor(uint64_t seed, const std::string& name, int64_t expert) {
  return GeneratorFor(seed, name, expert)();
}

// How a base tensor is kept beside activations of `dtype`: weight matrices and
// what is added to activations narrow, everything small and sensitive wide.
DType KeptAs(const LogicalTensor& t, DType dtype, DType param) {
  if (absl::EndsWith(t.name, "kpool_compress_ape")) return dtype;
  const bool wide = t.keep_f32 || !t.is_matrix ||
                    absl::StrContains(t.name, "_hc.") ||
                    absl::EndsWith(t.name, "_res_proj.weight");
  return wide ? param : dtype;
}

}  // namespace

std::vector<HeldRow> HeldExperts(const ExpertParallel& experts, int layer) {
  const ExpertPlacement& placement = experts.placement;
  std::vector<HeldRow> rows;
  for (int64_t local = 0; local < experts.slots_per_rank(); ++local) {
    const int64_t slot = experts.first_slot() + local;
    const int32_t expert = placement.layers[layer].slot_to_expert[slot];
    rows.push_back(
        {.index = expert,
         .home = expert >= 0 && placement.HomeSlot(layer, expert) == slot});
  }
  return rows;
}

WeightStore::WeightStore(const Exec& exec, const ModelSpec& spec,
                         const LoraPlan* lora, DType dtype,
                         const ExpertParallel* experts,
                         const DenseSharding& sharding)
    : exec_(exec),
      spec_(spec),
      base_(LogicalTensors(spec)),
      units_(exec, sharding) {
  const std::vector<int> moe = MoeIndices(spec);
  const DType param = ParamDType(exec, dtype);
  const auto add = [&](Parameter parameter, std::vector<int64_t> dims,
                       int layer, DType kept_as) {
    parameter.global_shape = dims;
    if (parameter.domain == ParamDomain::kExpert && experts != nullptr) {
      parameter.rows = HeldExperts(*experts, moe[layer]);
      dims[0] = static_cast<int64_t>(parameter.rows.size());
    }
    parameter.value = Tensor(nullptr, kept_as, dims);
    if (parameter.trainable) {
      parameter.grad = Tensor(nullptr, param, dims);
    }
    Parameter* const added = registry_.Add(std::move(parameter));
    if (!added->rows.empty()) experts_.push_back({added, moe[layer]});
  };
  for (const LogicalTensor& t : base_) {
    const bool experts = t.role == LogicalTensor::Role::kExperts;
    add({.name = t.name,
         .domain = experts ? ParamDomain::kExpert : ParamDomain::kDense,
         .trainable = lora == nullptr && t.can_have_gradient &&
                      t.role != LogicalTensor::Role::kBuffer},
        t.shape, t.layer, KeptAs(t, dtype, param));
  }
  if (lora == nullptr) return;
  for (const LoraModule& m : lora->modules) {
    const ParamDomain domain =
        IsExpertKind(m.kind) ? ParamDomain::kExpert : ParamDomain::kDense;
    add({.name = m.a_name(),
         .domain = domain,
         .is_adapter = true,
         .trainable = true},
        m.a_shape(), m.layer, dtype);
    add({.name = m.b_name(),
         .domain = domain,
         .is_adapter = true,
         .trainable = true},
        m.b_shape(), m.layer, dtype);
  }
}

absl::Status WeightStore::Allocate() {
  if (units_.sharding().num_shards > 1) CADRE_RETURN_IF_ERROR(MakeUnits());
  for (Parameter* parameter : registry_.all()) {
    if (parameter->unit >= 0) continue;
    CADRE_RETURN_IF_ERROR(AllocateOne(parameter));
  }
  return absl::OkStatus();
}

absl::Status WeightStore::MakeUnits() {
  // Model order: embedding, layers, what comes behind them.
  const std::string embedding = spec_.tensor_prefix + "embed_tokens.weight";
  std::vector<std::vector<Parameter*>> layers(spec_.blocks.size());
  std::vector<Parameter*> first, last;
  for (const LogicalTensor& t : base_) {
    if (t.role == LogicalTensor::Role::kExperts) continue;
    const bool in_first = t.name == embedding || spec_.tie_word_embeddings;
    std::vector<Parameter*>& unit = t.layer >= 0 ? layers[t.layer]
                                    : in_first   ? first
                                                 : last;
    unit.push_back(registry_.Find(t.name));
  }
  CADRE_RETURN_IF_ERROR(units_.Add("the embedding", first));
  for (size_t i = 0; i < layers.size(); ++i) {
    CADRE_RETURN_IF_ERROR(units_.Add(absl::StrCat("layer ", i), layers[i]));
  }
  if (last.empty()) return absl::OkStatus();
  return units_.Add("the head", last);
}

absl::StatusOr<Tensor> WeightStore::Whole(const Parameter& parameter) {
  const Tensor& value = parameter.value;
  if (parameter.unit < 0) return value;
  if (whole_.num_bytes() < value.num_bytes()) {
    whole_ = Buffer();
    CADRE_ASSIGN_OR_RETURN(
        whole_, Buffer::Create(exec_, value.num_bytes(),
                               absl::StrCat("loading ", parameter.name)));
  }
  return whole_.View(value.dtype(), value.dims());
}

absl::Status WeightStore::Keep(const Parameter& parameter,
                               const Tensor& whole) {
  if (parameter.unit < 0) return absl::OkStatus();
  return units_.Store(parameter, whole);
}

absl::Status WeightStore::AllocateOne(Parameter* parameter) {
  for (auto [tensor, what] : {std::pair{&parameter->value, "weight"},
                              std::pair{&parameter->grad, "gradient"}}) {
    if (!tensor->present()) continue;
    CADRE_ASSIGN_OR_RETURN(
        Buffer buffer,
        Buffer::Create(exec_, tensor->num_bytes(),
                       absl::StrCat(what, " of ", parameter->name)));
    *tensor = buffer.View(tensor->dtype(), tensor->dims());
    buffers_.push_back(std::move(buffer));
  }
  return absl::OkStatus();
}

absl::Status WeightStore::Load(const ModelDir& dir) {
  // On a GPU tensors pass through pinned memory; experts one by one.
  PinnedBuffer staging;
  const auto load = [&](const Tensor& to, auto read) -> absl::Status {
    if (exec_.backend == Backend::kCpu) return read(to);
    if (staging.num_bytes() < to.num_bytes()) {
      staging = PinnedBuffer();
      CADRE_ASSIGN_OR_RETURN(
          staging,
          PinnedBuffer::Create(exec_, to.num_bytes(), "staging of weights"));
    }
    const Tensor host(staging.data(), to.dtype(), to.dims());
    CADRE_RETURN_IF_ERROR(read(host));
    return CopyToDevice(exec_, host.raw(), to);
  };
  for (const LogicalTensor& t : base_) {
    const Parameter& parameter = *registry_.Find(t.name);
    CADRE_ASSIGN_OR_RETURN(const Tensor to, Whole(parameter));
    if (t.role != LogicalTensor::Role::kExperts) {
      CADRE_RETURN_IF_ERROR(
          load(to, [&](const Tensor& out) { return dir.Read(t.name, out); }));
    }
    for (int64_t row = 0;
         t.role == LogicalTensor::Role::kExperts && row < to.dim(0); ++row) {
      const int64_t expert = GlobalRow(parameter, row);
      if (expert < 0) continue;
      CADRE_RETURN_IF_ERROR(load(to.Rows(row, row + 1), [&](const Tensor& out) {
        return dir.ReadExperts(t.name, expert, expert + 1, out);
      }));
    }
    CADRE_RETURN_IF_ERROR(Keep(parameter, to));
  }
  whole_ = Buffer();
  return absl::OkStatus();
}

absl::Status WeightStore::Fill(const Tensor& part,
                               const std::function<double()>& value) {
  if (part.dtype() == DType::kF64) {
    for (double& v : part.span<double>()) v = value();
    return absl::OkStatus();
  }
  if (exec_.backend == Backend::kCpu) {
    for (float& v : part.span<float>()) v = static_cast<float>(value());
    return absl::OkStatus();
  }
  std::vector<float> host(part.num_elements());
  for (float& v : host) v = static_cast<float>(value());
  return WriteFloats(exec_, host, part);
}

absl::Status WeightStore::FillNormal(const Tensor& part,
                                     const std::string& name, uint64_t seed,
                                     int64_t expert) {
  if (exec_.backend == Backend::kCuda) {
    return RandomFill(exec_, {.x = part,
                              .deviation = kDeviation,
                              .seed = SeedFor(seed, name, expert)});
  }
  std::mt19937_64 random = GeneratorFor(seed, name, expert);
  std::normal_distribution<double> normal(0, kDeviation);
  return Fill(part, [&] { return normal(random); });
}

absl::Status WeightStore::InitBase(const ModelSpec& spec, uint64_t seed) {
  for (const LogicalTensor& t : base_) {
    std::mt19937_64 random = GeneratorFor(seed, t.name);
    std::uniform_real_distribution<double> uniform(0, 1);
    const Parameter& parameter = *registry_.Find(t.name);
    CADRE_ASSIGN_OR_RETURN(const Tensor value, Whole(parameter));
    if (t.role == LogicalTensor::Role::kExperts) {
      for (int64_t row = 0; row < value.dim(0); ++row) {
        const int64_t expert = GlobalRow(parameter, row);
        if (expert < 0) continue;
        CADRE_RETURN_IF_ERROR(
            FillNormal(value.Rows(row, row + 1), t.name, seed, expert));
      }
      continue;
    }
    std::function<double()> next;  // none: the default
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
    CADRE_RETURN_IF_ERROR(next ? Fill(value, next)
                               : FillNormal(value, t.name, seed, -1));
    CADRE_RETURN_IF_ERROR(Keep(parameter, value));
  }
  whole_ = Buffer();
  return absl::OkStatus();
}

absl::Status WeightStore::InitAdapter(uint64_t seed) {
  for (Parameter* p : registry_.all()) {
    if (!p->is_adapter) continue;
    const Tensor& value = p->value;
    const double bound =
        absl::EndsWith(p->name, ".lora_B")
            ? 0.0
            : 1 / std::sqrt(static_cast<double>(value.dim(value.rank() - 1)));
    std::uniform_real_distribution<double> uniform(-bound, bound);
    const auto fill = [&](const Tensor& part, int64_t expert) {
      std::mt19937_64 random = GeneratorFor(seed, p->name, expert);
      return Fill(part, [&] { return bound == 0 ? 0.0 : uniform(random); });
    };
    if (p->domain != ParamDomain::kExpert) {
      CADRE_RETURN_IF_ERROR(fill(value, -1));
    } else {
      for (int64_t row = 0; row < value.dim(0); ++row) {
        const int64_t expert = GlobalRow(*p, row);
        if (expert < 0) continue;
        CADRE_RETURN_IF_ERROR(fill(value.Rows(row, row + 1), expert));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace cadre
