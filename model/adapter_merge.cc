#include "model/adapter_merge.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "model/lora_targets.h"

namespace cadre {
namespace {

// One adapted module inside a logical tensor. Rows of a dense tensor are those
// of the matrix; of the routed experts' tensor, those of one expert.
struct Update {
  size_t index = 0;  // into the plan
  int64_t first_row = 0;
};

// The logical tensor that holds the module's matrix, and from which row on.
std::pair<std::string, int64_t> Place(const LoraModule& module) {
  if (!IsExpertKind(module.kind)) return {module.path + ".weight", 0};
  const std::string experts = module.path.substr(0, module.path.rfind('.') + 1);
  switch (module.kind) {
    case LoraModuleKind::kExpertDown:
      return {experts + "down_proj", 0};
    case LoraModuleKind::kExpertUp:
      return {experts + "gate_up_proj", module.out};
    default:
      return {experts + "gate_up_proj", 0};
  }
}

// rows[o] += scale sum_r b[o, r] a[r] for `num_rows` rows.
void AddProduct(const LoraModule& module, const float* a, const float* b,
                int64_t num_rows, float* rows) {
  const int64_t in = module.in;
  std::vector<double> sum(static_cast<size_t>(in));
  for (int64_t o = 0; o < num_rows; ++o) {
    float* row = rows + o * in;
    std::fill(sum.begin(), sum.end(), 0.0);
    for (int64_t r = 0; r < module.rank; ++r) {
      const double factor = b[o * module.rank + r];
      const float* a_row = a + r * in;
      for (int64_t i = 0; i < in; ++i) sum[i] += factor * a_row[i];
    }
    for (int64_t i = 0; i < in; ++i) {
      row[i] = static_cast<float>(row[i] + module.scale * sum[i]);
    }
  }
}

}  // namespace

struct AdapterMerge::Impl {
  explicit Impl(ModelDir dir) : base(std::move(dir)) {}

  // Adds what falls into rows [begin, end) of the tensor's leading dim.
  void Apply(const LogicalTensor& tensor, const Update& update, int64_t begin,
             int64_t end, float* out) const;

  ModelDir base;
  PeftAdapter adapter;
  std::map<std::string, std::vector<Update>> by_tensor;
};

void AdapterMerge::Impl::Apply(const LogicalTensor& tensor,
                               const Update& update, int64_t begin, int64_t end,
                               float* out) const {
  const LoraModule& module = adapter.plan.modules[update.index];
  const AdapterWeights& weights = adapter.weights[update.index];
  if (tensor.role != LogicalTensor::Role::kExperts) {
    AddProduct(module, weights.a.data(), weights.b.data() + begin * module.rank,
               end - begin, out);
    return;
  }
  const int64_t expert_elements = tensor.shape[1] * tensor.shape[2];
  for (int64_t e = begin; e < end; ++e) {
    AddProduct(module, weights.a.data() + e * module.rank * module.in,
               weights.b.data() + e * module.out * module.rank, module.out,
               out + (e - begin) * expert_elements +
                   update.first_row * tensor.shape[2]);
  }
}

absl::StatusOr<AdapterMerge> AdapterMerge::Create(ModelDir base,
                                                  PeftAdapter adapter) {
  auto impl = std::make_shared<Impl>(std::move(base));
  for (size_t i = 0; i < adapter.plan.modules.size(); ++i) {
    const LoraModule& module = adapter.plan.modules[i];
    const auto [name, first_row] = Place(module);
    const LogicalTensor* tensor = impl->base.Find(name);
    const bool experts = IsExpertKind(module.kind);
    const size_t rows_dim = experts ? 1 : 0;
    if (tensor == nullptr || tensor->shape.size() != rows_dim + 2 ||
        first_row + module.out > tensor->shape[rows_dim] ||
        module.in != tensor->shape[rows_dim + 1] ||
        (experts && module.num_experts != tensor->shape[0])) {
      return absl::InvalidArgumentError(absl::StrCat(
          "adapter module ", module.path, " with ", module.out, " x ",
          module.in, " does not fit ",
          tensor == nullptr
              ? absl::StrCat("the base: it has no ", name)
              : absl::StrCat(name, " ", ShapeString(tensor->shape))));
    }
    impl->by_tensor[name].push_back({i, first_row});
  }
  impl->adapter = std::move(adapter);
  return AdapterMerge(std::move(impl));
}

AdapterMerge::AdapterMerge(std::shared_ptr<const Impl> impl)
    : impl_(std::move(impl)) {}

TensorSource AdapterMerge::Source() const {
  return [impl = impl_](const LogicalTensor& tensor, int64_t begin, int64_t end,
                        absl::Span<float> out) -> absl::Status {
    CADRE_RETURN_IF_ERROR(impl->base.ReadRows(
        tensor.name, begin, end,
        Tensor(out.data(), DType::kF32, {static_cast<int64_t>(out.size())})));
    const auto updates = impl->by_tensor.find(tensor.name);
    if (updates == impl->by_tensor.end()) return absl::OkStatus();
    for (const Update& update : updates->second) {
      impl->Apply(tensor, update, begin, end, out.data());
    }
    return absl::OkStatus();
  };
}

int64_t AdapterMerge::num_adapted_tensors() const {
  return static_cast<int64_t>(impl_->by_tensor.size());
}

}  // namespace cadre
