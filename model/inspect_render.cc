#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/text/json.h"
#include "model/inspect.h"

namespace cadre {
namespace {

// 48.12B, 2.780T, 160. Four digits, so that publishers' figures can be compared
// within 1 %.
std::string Short(int64_t n) {
  const double value = static_cast<double>(n);
  if (value >= 1e12) return absl::StrFormat("%.4gT", value / 1e12);
  if (value >= 1e9) return absl::StrFormat("%.4gB", value / 1e9);
  if (value >= 1e6) return absl::StrFormat("%.3gM", value / 1e6);
  if (value >= 1e4) return absl::StrFormat("%.3gk", value / 1e3);
  return absl::StrCat(n);
}

std::string Gigabytes(int64_t bytes) {
  return bytes < 100'000'000
             ? absl::StrFormat("%.2f MB", static_cast<double>(bytes) / 1e6)
             : absl::StrFormat("%.2f GB", static_cast<double>(bytes) / 1e9);
}

bool SameKind(const LayerReport& a, const LayerReport& b) {
  return a.mixer == b.mixer && a.ffn == b.ffn && a.mixer_dims == b.mixer_dims &&
         a.ffn_dims == b.ffn_dims;
}

// "0-2, 4-6, 8"
std::string Ranges(const std::vector<int>& layers) {
  std::vector<std::string> parts;
  for (size_t i = 0; i < layers.size();) {
    size_t j = i;
    while (j + 1 < layers.size() && layers[j + 1] == layers[j] + 1) ++j;
    parts.push_back(i == j ? absl::StrCat(layers[i])
                           : absl::StrCat(layers[i], "-", layers[j]));
    i = j + 1;
  }
  return absl::StrJoin(parts, ", ");
}

Json Strings(const std::vector<std::string>& values) {
  std::vector<Json> items;
  for (const std::string& value : values) items.push_back(Json::String(value));
  return Json::Array(std::move(items));
}

Json Counts(const ParameterCounts& counts) {
  return Json::Object(
      {{"total", Json::Int(counts.total), 0},
       {"active", Json::Int(counts.active), 0},
       {"routed_experts", Json::Int(counts.routed_experts), 0}});
}

Json WholeCounts(const ParameterCounts& counts,
                 const PublishedCounts& published) {
  std::vector<Json::Member> members = Counts(counts).members();
  members.push_back(
      {"total_in_layers", Json::Int(counts.total_in_layers()), 0});
  members.push_back(
      {"active_in_layers", Json::Int(counts.active_in_layers()), 0});
  members.push_back({"mtp_layers", Json::Int(published.mtp_layers), 0});
  members.push_back({"total_with_mtp", Json::Int(published.total), 0});
  members.push_back(
      {"active_with_mtp_and_embedding", Json::Int(published.active), 0});
  return Json::Object(std::move(members));
}

std::string Published(const InspectReport& report) {
  const PublishedCounts& counts = report.published;
  if (counts.mtp_layers == 0) {
    return absl::StrCat("               ", Short(counts.active),
                        " active with the embedding\n");
  }
  return absl::StrCat("               with ",
                      counts.mtp_layers == 1
                          ? "the MTP layer"
                          : absl::StrCat(counts.mtp_layers, " MTP layers"),
                      " (not trained): ", Short(counts.total), " total, ",
                      Short(counts.active), " active with the embedding\n");
}

void RenderLayers(const InspectReport& report, std::string& out) {
  absl::StrAppend(&out, "\nlayers\n");
  std::vector<bool> done(report.layers.size());
  for (size_t i = 0; i < report.layers.size(); ++i) {
    if (done[i]) continue;
    const LayerReport& layer = report.layers[i];
    std::vector<int> same;
    for (size_t j = i; j < report.layers.size(); ++j) {
      if (!SameKind(layer, report.layers[j])) continue;
      done[j] = true;
      same.push_back(report.layers[j].layer);
    }
    absl::StrAppend(&out, "  ", Ranges(same), "\n    ", layer.mixer, ": ",
                    layer.mixer_dims, "\n    ", layer.ffn, ": ", layer.ffn_dims,
                    "\n    ", Short(layer.parameters.total),
                    " parameters each, ", Short(layer.parameters.active),
                    " active\n");
  }
}

void RenderLora(const InspectReport& report, std::string& out) {
  absl::StrAppend(&out, "\nLoRA targets\n  ",
                  absl::StrJoin(report.lora_target_names, " "), "\n");
  for (const LoraTargetMatch& match : report.lora_matches) {
    absl::StrAppend(&out, "  ", match.target, ": ", match.num_modules,
                    match.num_modules == 1 ? " module" : " modules", " in ",
                    match.layer_kind, " layers ", Ranges(match.layers), "\n");
  }
  if (report.lora_parameters > 0) {
    absl::StrAppend(&out, "  ", Short(report.lora_parameters),
                    " adapter parameters\n");
  }
}

}  // namespace

std::string RenderInspectText(const InspectReport& report) {
  const ModelSpec& spec = report.spec;
  std::string out = absl::StrCat(
      report.path, "\n  model type   ", spec.model_type, "\n  parameters   ",
      Short(report.parameters.total), " total, ",
      Short(report.parameters.active), " active per token, ",
      Short(report.parameters.routed_experts), " in routed experts\n",
      "               ", Short(report.parameters.total_in_layers()), " total, ",
      Short(report.parameters.active_in_layers()),
      " active without embedding and head\n", Published(report),
      "  sizes        ", spec.blocks.size(), " layers, hidden ",
      spec.hidden_size, ", vocabulary ", spec.vocab_size);
  if (spec.max_positions > 0) {
    absl::StrAppend(&out, ", ", spec.max_positions, " positions");
  }
  absl::StrAppend(&out, "\n");
  if (report.has_weights) {
    std::vector<std::string> bytes;
    for (const auto& [dtype, n] : report.bytes_by_dtype) {
      bytes.push_back(absl::StrCat(dtype, " ", Gigabytes(n)));
    }
    absl::StrAppend(&out, "  weights      ", report.weight_files.size(),
                    report.weight_files.size() == 1 ? " file, " : " files, ",
                    absl::StrJoin(bytes, ", "), "\n  fingerprint  ",
                    report.fingerprint.substr(0, 16), "\n");
    if (!report.skipped_tensors.empty()) {
      absl::StrAppend(&out, "  skipped      ", report.skipped_tensors.size(),
                      " tensors, ", Gigabytes(report.skipped_bytes), " (",
                      report.skipped_tensors.front(), ", ...)\n");
    }
  }
  absl::StrAppend(&out, "  tokenizer    ",
                  report.has_tokenizer ? "tokenizer.json" : "none", "\n");
  RenderLayers(report, out);
  RenderLora(report, out);
  for (const std::string& warning : report.warnings) {
    absl::StrAppend(&out, "warning: ", warning, "\n");
  }
  return out;
}

std::string RenderInspectJson(const InspectReport& report) {
  const ModelSpec& spec = report.spec;
  std::vector<Json> layers, matches;
  for (const LayerReport& layer : report.layers) {
    layers.push_back(
        Json::Object({{"layer", Json::Int(layer.layer), 0},
                      {"mixer", Json::String(layer.mixer), 0},
                      {"mixer_dims", Json::String(layer.mixer_dims), 0},
                      {"ffn", Json::String(layer.ffn), 0},
                      {"ffn_dims", Json::String(layer.ffn_dims), 0},
                      {"parameters", Counts(layer.parameters), 0}}));
  }
  for (const LoraTargetMatch& match : report.lora_matches) {
    std::vector<Json> numbers;
    for (int layer : match.layers) numbers.push_back(Json::Int(layer));
    matches.push_back(
        Json::Object({{"target", Json::String(match.target), 0},
                      {"layer_kind", Json::String(match.layer_kind), 0},
                      {"modules", Json::Int(match.num_modules), 0},
                      {"layers", Json::Array(std::move(numbers)), 0}}));
  }
  std::vector<Json::Member> bytes;
  for (const auto& [dtype, n] : report.bytes_by_dtype) {
    bytes.push_back({dtype, Json::Int(n), 0});
  }
  return WriteJson(Json::Object(
      {{"path", Json::String(report.path), 0},
       {"model_type", Json::String(spec.model_type), 0},
       {"hidden_size", Json::Int(spec.hidden_size), 0},
       {"vocab_size", Json::Int(spec.vocab_size), 0},
       {"num_layers", Json::Int(static_cast<int64_t>(spec.blocks.size())), 0},
       {"max_positions", Json::Int(spec.max_positions), 0},
       {"parameters", WholeCounts(report.parameters, report.published), 0},
       {"layers", Json::Array(std::move(layers)), 0},
       {"lora_target_names", Strings(report.lora_target_names), 0},
       {"lora_matches", Json::Array(std::move(matches)), 0},
       {"lora_parameters", Json::Int(report.lora_parameters), 0},
       {"has_weights", Json::Bool(report.has_weights), 0},
       {"has_tokenizer", Json::Bool(report.has_tokenizer), 0},
       {"fingerprint", Json::String(report.fingerprint), 0},
       {"bytes_by_dtype", Json::Object(std::move(bytes)), 0},
       {"weight_files", Strings(report.weight_files), 0},
       {"skipped_tensors", Strings(report.skipped_tensors), 0},
       {"skipped_bytes", Json::Int(report.skipped_bytes), 0},
       {"warnings", Strings(report.warnings), 0}}));
}

}  // namespace cadre
