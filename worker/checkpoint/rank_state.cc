#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "worker/checkpoint/checkpoint.h"

namespace cadre {

using nlohmann::ordered_json;

std::string RankState::ToJson() const {
  ordered_json j;
  j["rank"] = rank;
  j["step"] = step;
  j["data_cursor"] = data_cursor;
  j["seed"] = seed;
  j["trained_tokens"] = trained_tokens;
  j["trained_targets"] = trained_targets;
  j["nonfinite_total"] = nonfinite_total;
  j["nonfinite_in_row"] = nonfinite_in_row;
  j["optimizer_updates"] = optimizer_updates;
  j["global_batch_size"] = global_batch_size;
  return j.dump(1) + "\n";
}

absl::StatusOr<RankState> RankState::Parse(absl::string_view json) {
  const ordered_json j = ordered_json::parse(json.begin(), json.end(), nullptr,
                                             /*allow_exceptions=*/false);
  try {
    RankState s;
    s.rank = j.at("rank").get<int>();
    s.step = j.at("step").get<int64_t>();
    s.data_cursor = j.at("data_cursor").get<std::string>();
    s.seed = j.at("seed").get<uint64_t>();
    s.trained_tokens = j.at("trained_tokens").get<int64_t>();
    s.trained_targets = j.at("trained_targets").get<int64_t>();
    s.nonfinite_total = j.at("nonfinite_total").get<int64_t>();
    s.nonfinite_in_row = j.at("nonfinite_in_row").get<int64_t>();
    s.optimizer_updates = j.at("optimizer_updates").get<int64_t>();
    s.global_batch_size = j.at("global_batch_size").get<int64_t>();
    return s;
  } catch (const nlohmann::json::exception& e) {
    return absl::DataLossError(absl::StrCat("rank state: ", e.what()));
  }
}

}  // namespace cadre
