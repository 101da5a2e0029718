// Writing of PEFT directories.

#include <errno.h>
#include <sys/stat.h>

#include <algorithm>
#include <functional>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "model/lora_modules.h"
#include "model/peft_adapter.h"
#include "model/peft_new_config.h"
#include "model/safetensors.h"

namespace cadre {
namespace {

// One tensor of the file and how to make it.
struct Output {
  SafetensorInfo info;
  std::function<std::vector<float>()> values;
  const std::string* raw = nullptr;  // set: these bytes instead
};

void AddPair(const std::string& path, int64_t rank, int64_t in, int64_t out,
             DType dtype, std::function<std::vector<float>()> a,
             std::function<std::vector<float>()> b,
             std::map<std::string, Output>& outputs) {
  const std::string base = absl::StrCat("base_model.model.", path, ".lora_");
  outputs[base + "A.weight"] = {
      {base + "A.weight", dtype, {rank, in}, 0, 0}, std::move(a), nullptr};
  outputs[base + "B.weight"] = {
      {base + "B.weight", dtype, {out, rank}, 0, 0}, std::move(b), nullptr};
}

void AddModule(const PeftAdapter& adapter, size_t index,
               const AdaptableModule& entry, bool down_is_adapted,
               std::map<std::string, Output>& outputs) {
  const LoraModule& module = adapter.plan.modules[index];
  const AdapterWeights& weights = adapter.weights[index];
  const int64_t rank = module.rank, in = module.in, out = module.out;
  const int64_t experts = module.num_experts;
  if (!IsExpertKind(module.kind)) {
    AddPair(
        entry.peft_path, rank, in, out, adapter.dtype,
        [&weights] { return weights.a; }, [&weights] { return weights.b; },
        outputs);
    return;
  }
  if (IsFused(adapter)) {
    const bool inner =
        module.kind == LoraModuleKind::kExpertGateUp && down_is_adapted;
    AddPair(
        inner ? entry.peft_path + ".base_layer" : entry.peft_path,
        experts * rank, in, out, adapter.dtype,
        [&weights] { return weights.a; },
        [&weights, experts, rank, out] {
          std::vector<float> b(weights.b.size());
          for (int64_t e = 0; e < experts; ++e) {
            for (int64_t o = 0; o < out; ++o) {
              for (int64_t r = 0; r < rank; ++r) {
                b[o * rank * experts + r * experts + e] =
                    weights.b[(e * out + o) * rank + r];
              }
            }
          }
          return b;
        },
        outputs);
    return;
  }
  for (int64_t e = 0; e < experts; ++e) {
    const auto slice = [e](const std::vector<float>& all, int64_t n) {
      return std::vector<float>(all.begin() + e * n, all.begin() + (e + 1) * n);
    };
    AddPair(
        absl::StrCat(entry.peft_path, ".", e, ".", entry.name), rank, in, out,
        adapter.dtype,
        [&weights, slice, rank, in] { return slice(weights.a, rank * in); },
        [&weights, slice, rank, out] { return slice(weights.b, rank * out); },
        outputs);
  }
}

absl::Status WriteTensors(const std::map<std::string, Output>& outputs,
                          const std::string& path) {
  std::vector<SafetensorInfo> infos;
  for (const auto& [name, output] : outputs) infos.push_back(output.info);
  SortForSafetensors(infos);
  CADRE_ASSIGN_OR_RETURN(auto writer, SafetensorsWriter::Create(path, infos));
  std::string bytes;
  for (const SafetensorInfo& info : infos) {
    const std::string& name = info.name;
    const Output& output = outputs.at(name);
    if (output.raw != nullptr) {
      CADRE_RETURN_IF_ERROR(writer->Append(name, *output.raw));
      continue;
    }
    const std::vector<float> values = output.values();
    bytes.resize(static_cast<size_t>(output.info.num_bytes()));
    CADRE_RETURN_IF_ERROR(ConvertElements(DType::kF32, values.data(),
                                          output.info.num_elements(),
                                          output.info.dtype, bytes.data()));
    CADRE_RETURN_IF_ERROR(writer->Append(name, bytes));
  }
  return writer->Commit();
}

bool FitsLayout(const PeftAdapter& adapter) {
  return std::none_of(
      adapter.plan.modules.begin(), adapter.plan.modules.end(),
      [&](const LoraModule& module) {
        return IsFused(adapter) ? module.kind == LoraModuleKind::kExpertGate ||
                                      module.kind == LoraModuleKind::kExpertUp
                                : module.kind == LoraModuleKind::kExpertGateUp;
      });
}

absl::Status CheckWeights(const PeftAdapter& adapter, const PeftNames& names) {
  const std::vector<LoraModule>& modules = adapter.plan.modules;
  if (adapter.weights.size() != modules.size() || modules.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("adapter has ", modules.size(),
                     " modules and weights for ", adapter.weights.size()));
  }
  for (size_t i = 0; i < modules.size(); ++i) {
    const LoraModule& module = modules[i];
    if (names.Find(module.path) == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("the model has no module ", module.path));
    }
    const int64_t count = std::max<int64_t>(module.num_experts, 1);
    const AdapterWeights& weights = adapter.weights[i];
    if (static_cast<int64_t>(weights.a.size()) !=
            count * module.rank * module.in ||
        static_cast<int64_t>(weights.b.size()) !=
            count * module.rank * module.out) {
      return absl::InvalidArgumentError(
          absl::StrCat("module ", module.path, ": A has ", weights.a.size(),
                       " and B ", weights.b.size(), " elements, shapes are ",
                       ShapeString(module.a_shape()), " and ",
                       ShapeString(module.b_shape())));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status WritePeftAdapter(const PeftAdapter& adapter, const ModelSpec& spec,
                              const std::string& dir) {
  if (!FitsLayout(adapter)) {
    CADRE_ASSIGN_OR_RETURN(const PeftAdapter converted,
                           ConvertExpertLayout(adapter, adapter.layout));
    return WritePeftAdapter(converted, spec, dir);
  }
  const PeftNames names(adapter, spec);
  CADRE_RETURN_IF_ERROR(Annotate(CheckWeights(adapter, names),
                                 absl::StrCat("cannot write adapter ", dir)));
  if (::mkdir(dir.c_str(), 0777) != 0 && errno != EEXIST) {
    return FileError("create folder", dir, errno);
  }
  std::set<int> layers_with_down;
  for (const LoraModule& module : adapter.plan.modules) {
    if (module.kind == LoraModuleKind::kExpertDown) {
      layers_with_down.insert(module.layer);
    }
  }
  std::map<std::string, Output> outputs;
  for (size_t i = 0; i < adapter.plan.modules.size(); ++i) {
    const LoraModule& module = adapter.plan.modules[i];
    AddModule(adapter, i, *names.Find(module.path),
              layers_with_down.count(module.layer) != 0, outputs);
  }
  for (const SkippedAdapterTensor& tensor : adapter.skipped) {
    outputs[tensor.name] = {
        {tensor.name, tensor.dtype, tensor.shape, 0, 0}, {}, &tensor.bytes};
  }
  CADRE_RETURN_IF_ERROR(
      WriteTensors(outputs, dir + "/adapter_model.safetensors"));
  return WriteFileAtomic(dir + "/adapter_config.json",
                         adapter.config_json.empty()
                             ? NewPeftConfig(adapter, names)
                             : adapter.config_json);
}

}  // namespace cadre
