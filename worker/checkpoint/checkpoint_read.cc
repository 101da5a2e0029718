#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "model/sha256.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/checkpoint/file_digest.h"
#include "worker/checkpoint/piece_index.h"

namespace cadre {
namespace {

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
    CADRE_RETURN_IF_ERROR(Annotate(reader->weights_.CheckCoverage(), dir));
    CADRE_RETURN_IF_ERROR(Annotate(reader->optimizer_.CheckCoverage(), dir));
    if (!has_state) {
      return absl::DataLossError(
          absl::StrCat(dir, ": no rank-state-00000.json in the manifest"));
    }
    return reader;
  }

  const CheckpointManifest& manifest() const override { return manifest_; }
  absl::Status ReadWeight(absl::string_view name,
                          absl::Span<const int64_t> global_shape, int64_t begin,
                          const Tensor& out) override {
    return weights_.Read(name, global_shape, begin, out, dir_);
  }
  absl::Status ReadOptimizer(absl::string_view name,
                             absl::Span<const int64_t> global_shape,
                             int64_t begin, const Tensor& out) override {
    return optimizer_.Read(name, global_shape, begin, out, dir_);
  }
  std::vector<std::string> WeightNames() const override {
    return weights_.Names();
  }
  const RankState& shared_state() const override { return state_; }

 private:
  std::string dir_;
  CheckpointManifest manifest_;
  PieceIndex weights_, optimizer_;
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
