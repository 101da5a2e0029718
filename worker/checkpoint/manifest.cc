#include "worker/checkpoint/manifest.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace cadre {
namespace {

using nlohmann::ordered_json;

absl::Status Bad(absl::string_view why) {
  return absl::DataLossError(absl::StrCat("manifest.json: ", why));
}

// A file name inside the folder: nothing that leads out of it.
bool IsPlainName(const std::string& name) {
  return !name.empty() && name.find('/') == std::string::npos && name != ".." &&
         name != ".";
}

// A layer is one string of experts by slot: an array would be a line per slot.
ordered_json Encode(const ExpertPlacement& placement) {
  ordered_json layers = ordered_json::array();
  for (const LayerPlacement& layer : placement.layers) {
    layers.push_back(absl::StrJoin(layer.slot_to_expert, " "));
  }
  return {{"plan_epoch", placement.plan_epoch},
          {"num_experts", placement.shape.num_experts},
          {"num_ranks", placement.shape.num_ranks},
          {"slots_per_rank", placement.shape.slots_per_rank},
          {"slot_to_expert", layers}};
}

absl::StatusOr<ExpertPlacement> Decode(const ordered_json& j) {
  PlacementShape shape{.num_experts = j.at("num_experts").get<int64_t>(),
                       .num_ranks = j.at("num_ranks").get<int64_t>(),
                       .slots_per_rank = j.at("slots_per_rank").get<int64_t>()};
  std::vector<std::vector<int32_t>> slots;
  for (const ordered_json& layer : j.at("slot_to_expert")) {
    std::vector<int32_t>& experts = slots.emplace_back();
    for (const absl::string_view word :
         absl::StrSplit(layer.get<std::string>(), ' ', absl::SkipEmpty())) {
      if (!absl::SimpleAtoi(word, &experts.emplace_back())) {
        return absl::InvalidArgumentError(
            absl::StrCat("'", word, "' is no expert"));
      }
    }
  }
  shape.num_layers = static_cast<int64_t>(slots.size());
  return MakePlacement(shape, slots, j.at("plan_epoch").get<int64_t>());
}

}  // namespace

std::string CheckpointManifest::ToJson() const {
  ordered_json j;
  j["format_version"] = kFormatVersion;
  j["job"] = job;
  j["attempt_epoch"] = attempt_epoch;
  j["step"] = step;
  j["method"] = method;
  j["base_fingerprint"] = base_fingerprint;
  j["config_hash"] = config_hash;
  j["mesh"] = {{"world_size", mesh.world_size},
               {"fsdp_shard_group_size", mesh.fsdp_shard_group_size},
               {"expert_parallel_size", mesh.expert_parallel_size}};
  if (placement.has_value()) j["experts"] = Encode(*placement);
  std::vector<CheckpointFile> sorted = files;
  std::sort(sorted.begin(), sorted.end(),
            [](const auto& a, const auto& b) { return a.path < b.path; });
  j["files"] = ordered_json::array();
  for (const CheckpointFile& file : sorted) {
    j["files"].push_back(
        {{"path", file.path}, {"bytes", file.bytes}, {"sha256", file.sha256}});
  }
  return j.dump(1) + "\n";
}

absl::StatusOr<CheckpointManifest> CheckpointManifest::Parse(
    absl::string_view json) {
  const ordered_json j = ordered_json::parse(json.begin(), json.end(), nullptr,
                                             /*allow_exceptions=*/false);
  if (!j.is_object()) return Bad("not a JSON object");
  CheckpointManifest m;
  try {
    const int version = j.at("format_version").get<int>();
    if (version < 1 || version > kFormatVersion) {
      return absl::FailedPreconditionError(
          absl::StrCat("manifest.json has format version ", version,
                       "; this program reads up to version ", kFormatVersion));
    }
    m.job = j.at("job").get<std::string>();
    m.attempt_epoch = j.at("attempt_epoch").get<int64_t>();
    m.step = j.at("step").get<int64_t>();
    m.method = j.at("method").get<std::string>();
    m.base_fingerprint = j.at("base_fingerprint").get<std::string>();
    m.config_hash = j.at("config_hash").get<std::string>();
    const ordered_json& mesh = j.at("mesh");
    m.mesh = {
        .world_size = mesh.at("world_size").get<int>(),
        .fsdp_shard_group_size = mesh.at("fsdp_shard_group_size").get<int>(),
        .expert_parallel_size = mesh.at("expert_parallel_size").get<int>()};
    if (j.contains("experts")) {
      absl::StatusOr<ExpertPlacement> placement = Decode(j.at("experts"));
      if (!placement.ok()) {
        return Bad(absl::StrCat("experts: ", placement.status().message()));
      }
      m.placement = *std::move(placement);
    }
    for (const ordered_json& f : j.at("files")) {
      m.files.push_back({.path = f.at("path").get<std::string>(),
                         .bytes = f.at("bytes").get<int64_t>(),
                         .sha256 = f.at("sha256").get<std::string>()});
      if (!IsPlainName(m.files.back().path)) {
        return Bad(absl::StrCat("\"", m.files.back().path,
                                "\" is no plain file name"));
      }
      if (!f.at("bytes").is_number_integer() || m.files.back().bytes < 0) {
        return Bad(absl::StrCat("bytes of \"", m.files.back().path, "\" are ",
                                f.at("bytes").dump(), ", not a size"));
      }
    }
  } catch (const nlohmann::json::exception& e) {
    return Bad(e.what());
  }
  return m;
}

std::string CheckpointDirName(int64_t step, int64_t attempt_epoch) {
  return absl::StrFormat("step-%08d.attempt-%d", step, attempt_epoch);
}

}  // namespace cadre
