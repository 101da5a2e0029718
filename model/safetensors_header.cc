#include "model/safetensors_header.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "base/text/json.h"

namespace cadre {
namespace {

struct DTypeRow {
  DType dtype;
  const char* name;
};
constexpr DTypeRow kDTypes[] = {
    {DType::kF32, "F32"}, {DType::kF64, "F64"},   {DType::kBF16, "BF16"},
    {DType::kF16, "F16"}, {DType::kU8, "U8"},     {DType::kI32, "I32"},
    {DType::kI64, "I64"}, {DType::kBool, "BOOL"}, {DType::kF8E4M3, "F8_E4M3"},
};

absl::Status TensorError(absl::string_view name, absl::string_view what) {
  return absl::DataLossError(absl::StrCat("tensor ", name, ": ", what));
}

// Non-negative integers, or nothing.
std::optional<std::vector<int64_t>> IntArray(const Json* json) {
  if (json == nullptr || !json->is_array()) return std::nullopt;
  std::vector<int64_t> values;
  values.reserve(json->items().size());
  for (const Json& item : json->items()) {
    if (!item.is_int() || item.int_value() < 0) return std::nullopt;
    values.push_back(item.int_value());
  }
  return values;
}

// Bytes of a tensor, or nothing if the product overflows.
std::optional<int64_t> CheckedBytes(const SafetensorInfo& info) {
  int64_t bytes = SizeOf(info.dtype);
  for (int64_t dim : info.shape) {
    if (dim != 0 && bytes > std::numeric_limits<int64_t>::max() / dim) {
      return std::nullopt;
    }
    bytes *= dim;
  }
  return bytes;
}

absl::StatusOr<SafetensorInfo> ParseTensor(const std::string& name,
                                           const Json& json,
                                           int64_t data_bytes) {
  if (!json.is_object()) {
    return TensorError(name, "its header entry is not an object");
  }
  SafetensorInfo info;
  info.name = name;
  for (const Json::Member& member : json.members()) {
    if (member.key != "dtype" && member.key != "shape" &&
        member.key != "data_offsets") {
      return TensorError(name, absl::StrCat("unknown field ", member.key));
    }
  }
  const Json* dtype = json.Find("dtype");
  if (dtype == nullptr || !dtype->is_string()) {
    return TensorError(name, "no dtype");
  }
  const auto* row = std::find_if(
      std::begin(kDTypes), std::end(kDTypes),
      [&](const DTypeRow& r) { return dtype->string_value() == r.name; });
  if (row == std::end(kDTypes)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor ", name, ": dtype ", dtype->string_value(),
        " is not supported; supported are ",
        absl::StrJoin(kDTypes, ", ", [](std::string* out, const DTypeRow& r) {
          absl::StrAppend(out, r.name);
        })));
  }
  info.dtype = row->dtype;
  std::optional<std::vector<int64_t>> shape = IntArray(json.Find("shape"));
  if (!shape) return TensorError(name, "shape is not a list of sizes");
  info.shape = *std::move(shape);
  const std::optional<std::vector<int64_t>> offsets =
      IntArray(json.Find("data_offsets"));
  if (!offsets || offsets->size() != 2) {
    return TensorError(name, "data_offsets is not a pair of offsets");
  }
  info.begin = (*offsets)[0];
  info.end = (*offsets)[1];
  const std::optional<int64_t> bytes = CheckedBytes(info);
  if (!bytes) {
    return TensorError(
        name, absl::StrCat("shape ", ShapeString(info.shape), " overflows"));
  }
  if (info.end < info.begin || info.end > data_bytes) {
    return TensorError(
        name,
        absl::StrCat("bytes ", info.begin, " to ", info.end,
                     " lie outside of the ", data_bytes,
                     " bytes of data; the file is truncated or damaged; copy "
                     "or download it again"));
  }
  if (info.end - info.begin != *bytes) {
    return TensorError(
        name, absl::StrCat(info.DebugString(), " needs ", *bytes,
                           " bytes, its offsets span ", info.end - info.begin));
  }
  return info;
}

}  // namespace

const char* SafetensorsDTypeName(DType dtype) {
  for (const DTypeRow& row : kDTypes) {
    if (row.dtype == dtype) return row.name;
  }
  return "?";
}

absl::StatusOr<int64_t> SafetensorsHeaderBytes(absl::Span<const char> prefix,
                                               int64_t file_bytes) {
  uint64_t length = 0;
  for (int i = 7; i >= 0; --i) {
    length = length << 8 | static_cast<unsigned char>(prefix[i]);
  }
  if (length > static_cast<uint64_t>(kMaxSafetensorsHeaderBytes)) {
    return absl::DataLossError(absl::StrCat(
        "header length ", length, " exceeds the limit of ",
        kMaxSafetensorsHeaderBytes, " bytes; this is not a safetensors file"));
  }
  const int64_t bytes = static_cast<int64_t>(length);
  if (bytes > file_bytes - 8) {
    return absl::DataLossError(
        absl::StrCat("header of ", bytes, " bytes in a file of ", file_bytes,
                     " bytes; the file is truncated or no safetensors file: "
                     "copy or download it again"));
  }
  return bytes;
}

absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::string_view json,
                                                         int64_t data_bytes) {
  absl::StatusOr<Json> root = ParseJson(json);
  if (!root.ok()) {
    return absl::DataLossError(
        absl::StrCat("damaged header: ", root.status().message()));
  }
  if (!root->is_object()) {
    return absl::DataLossError("damaged header: not a JSON object");
  }
  SafetensorsHeader header;
  for (const Json::Member& member : root->members()) {
    if (member.key == "__metadata__") {
      for (const Json::Member& entry : member.value.members()) {
        if (!entry.value.is_string()) {
          return absl::DataLossError(absl::StrCat(
              "damaged header: metadata ", entry.key, " is not a string"));
        }
        header.metadata.emplace(entry.key, entry.value.string_value());
      }
      continue;
    }
    CADRE_ASSIGN_OR_RETURN(SafetensorInfo info,
                           ParseTensor(member.key, member.value, data_bytes));
    header.tensors.push_back(std::move(info));
  }
  std::stable_sort(header.tensors.begin(), header.tensors.end(),
                   [](const SafetensorInfo& a, const SafetensorInfo& b) {
                     return std::pair(a.begin, a.end) <
                            std::pair(b.begin, b.end);
                   });
  int64_t offset = 0;
  for (const SafetensorInfo& info : header.tensors) {
    if (info.begin != offset) {
      return TensorError(
          info.name,
          absl::StrCat("data starts at ", info.begin, ", ",
                       info.begin < offset ? "inside of" : "with a gap behind",
                       " the tensor before it, which ends at ", offset));
    }
    offset = info.end;
  }
  if (offset != data_bytes) {
    return absl::DataLossError(
        absl::StrCat("tensors end at ", offset, " of ", data_bytes,
                     " bytes of data; the file is damaged"));
  }
  return header;
}

std::string WriteSafetensorsHeader(
    const std::vector<SafetensorInfo>& tensors,
    const std::map<std::string, std::string>& metadata) {
  std::string out = "{\"__metadata__\":{";
  const char* separator = "";
  for (const auto& [key, value] : metadata) {
    absl::StrAppend(&out, separator, WriteJsonString(key), ":",
                    WriteJsonString(value));
    separator = ",";
  }
  out += "}";
  for (const SafetensorInfo& tensor : tensors) {
    absl::StrAppend(&out, ",", WriteJsonString(tensor.name), ":{\"dtype\":\"",
                    SafetensorsDTypeName(tensor.dtype), "\",\"shape\":[",
                    absl::StrJoin(tensor.shape, ","), "],\"data_offsets\":[",
                    tensor.begin, ",", tensor.end, "]}");
  }
  out += "}";
  out.append((8 - out.size() % 8) % 8, ' ');
  return out;
}

}  // namespace cadre
