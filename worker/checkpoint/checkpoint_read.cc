#include <cstring>
#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "model/safetensors.h"
#include "model/sha256.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/checkpoint/file_digest.h"

namespace cadre {
namespace {

// Tensors of one kind, from however many files.
class TensorIndex {
 public:
  absl::Status Add(const std::string& path) {
    CADRE_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open(path));
    files_.push_back(std::make_unique<SafetensorsFile>(std::move(file)));
    for (const SafetensorInfo& info : files_.back()->tensors()) {
      if (!by_name_.emplace(info.name, std::pair(files_.back().get(), &info))
               .second) {
        return absl::DataLossError(absl::StrCat(path, ": tensor ", info.name,
                                                " is in another file too"));
      }
    }
    return absl::OkStatus();
  }

  absl::Status Read(absl::string_view name, const Tensor& out,
                    const std::string& dir) const {
    const auto it = by_name_.find(std::string(name));
    if (it == by_name_.end()) {
      return absl::NotFoundError(
          absl::StrCat("checkpoint ", dir, " has no tensor ", name));
    }
    const auto& [file, info] = it->second;
    const absl::Span<const int64_t> dims = out.dims();
    if (info->dtype != out.dtype() ||
        !std::equal(dims.begin(), dims.end(), info->shape.begin(),
                    info->shape.end())) {
      return absl::FailedPreconditionError(absl::StrCat(
          "checkpoint ", dir, ": tensor ", name, " is ", info->DebugString(),
          ", the job has ", out.DebugString()));
    }
    if (out.num_bytes() > 0) {
      std::memcpy(out.raw(), file->Bytes(*info).data(), out.num_bytes());
    }
    return absl::OkStatus();
  }

  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& [name, unused] : by_name_) names.push_back(name);
    return names;
  }

 private:
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string,
           std::pair<const SafetensorsFile*, const SafetensorInfo*>>
      by_name_;
};

class Reader final : public CheckpointReader {
 public:
  static absl::StatusOr<std::unique_ptr<CheckpointReader>> Open(
      const std::string& dir, absl::string_view manifest_sha256) {
    auto reader = std::make_unique<Reader>();
    reader->dir_ = dir;
    CADRE_ASSIGN_OR_RETURN(reader->manifest_,
                           VerifyCheckpoint(dir, manifest_sha256));
    bool has_state = false;
    for (const CheckpointFile& file : reader->manifest_.files) {
      const std::string path = absl::StrCat(dir, "/", file.path);
      if (absl::StartsWith(file.path, "optimizer-")) {
        CADRE_RETURN_IF_ERROR(reader->optimizer_.Add(path));
      } else if (absl::EndsWith(file.path, ".safetensors")) {
        CADRE_RETURN_IF_ERROR(reader->weights_.Add(path));
      } else if (file.path == "rank-state-00000.json") {
        CADRE_ASSIGN_OR_RETURN(const std::string json, ReadFile(path));
        CADRE_ASSIGN_OR_RETURN(reader->state_, RankState::Parse(json));
        has_state = true;
      }
    }
    if (!has_state) {
      return absl::DataLossError(
          absl::StrCat(dir, ": no rank-state-00000.json in the manifest"));
    }
    return reader;
  }

  const CheckpointManifest& manifest() const override { return manifest_; }
  absl::Status ReadWeight(absl::string_view name, Tensor out) override {
    return weights_.Read(name, out, dir_);
  }
  absl::Status ReadOptimizer(absl::string_view name, Tensor out) override {
    return optimizer_.Read(name, out, dir_);
  }
  std::vector<std::string> WeightNames() const override {
    return weights_.Names();
  }
  const RankState& shared_state() const override { return state_; }

 private:
  std::string dir_;
  CheckpointManifest manifest_;
  TensorIndex weights_, optimizer_;
  RankState state_;
};

}  // namespace

absl::StatusOr<CheckpointManifest> VerifyCheckpoint(
    const std::string& dir, absl::string_view manifest_sha256) {
  const std::string path =
      absl::StrCat(dir, "/", CheckpointManifest::kFileName);
  std::error_code error;
  if (!std::filesystem::exists(path, error)) {
    return absl::NotFoundError(
        absl::StrCat(dir, " is no checkpoint: it has no manifest.json"));
  }
  CADRE_ASSIGN_OR_RETURN(const std::string json, ReadFile(path));
  Sha256 sha;
  sha.Update(json);
  const std::string digest = sha.HexDigest();
  if (!manifest_sha256.empty() && manifest_sha256 != digest) {
    return absl::DataLossError(absl::StrCat(path, " has SHA-256 ", digest, ", ",
                                            manifest_sha256, " was committed"));
  }
  auto manifest = CheckpointManifest::Parse(json);
  if (!manifest.ok()) return Annotate(manifest.status(), dir);
  for (const CheckpointFile& file : manifest->files) {
    if (!std::filesystem::exists(absl::StrCat(dir, "/", file.path), error)) {
      return absl::DataLossError(
          absl::StrCat("checkpoint ", dir, ": ", file.path, " is missing"));
    }
    CADRE_ASSIGN_OR_RETURN(const CheckpointFile found,
                           DigestFile(dir, file.path));
    if (found != file) {
      return absl::DataLossError(absl::StrCat(
          "checkpoint ", dir, ": ", file.path, " has ", found.bytes,
          " bytes and SHA-256 ", found.sha256, "; the manifest says ",
          file.bytes, " and ", file.sha256));
    }
  }
  return manifest;
}

absl::StatusOr<std::unique_ptr<CheckpointReader>> CheckpointReader::Open(
    const std::string& dir, absl::string_view manifest_sha256) {
  return Reader::Open(dir, manifest_sha256);
}

}  // namespace cadre
