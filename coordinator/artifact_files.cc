#include "coordinator/artifact_files.h"

#include <algorithm>
#include <filesystem>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "base/rpc/error.h"
#include "base/status_macros.h"
#include "base/text/json.h"
#include "coordinator/api_error.h"

namespace cadre::coordinator {
namespace {

namespace fs = std::filesystem;

// As worker/checkpoint/manifest.h and worker/train/export.cc write them; the
// layers keep the two sides apart (docs/checkpoint_format.md).
constexpr char kCheckpointManifest[] = "manifest.json";
constexpr char kResultManifest[] = "cadre_manifest.json";

absl::Status NotLocal(const ArtifactFolder& folder) {
  return Error(absl::StatusCode::kFailedPrecondition, "ARTIFACT_NOT_LOCAL",
               absl::StrCat(folder.name, " lies in ", folder.storage_path,
                            ", which the coordinator does not see: mount it "
                            "there, or copy the folder from a machine that "
                            "does"),
               {{"path", folder.storage_path}});
}

absl::Status Corrupt(const std::string& path, const std::string& what) {
  return Error(absl::StatusCode::kDataLoss, "CHECKSUM_MISMATCH",
               absl::StrCat(path, " ", what,
                            ": it was changed or damaged after it was "
                            "written; use another checkpoint or a copy"),
               {{"path", path}});
}

bool StaysInside(const std::string& path) {
  if (path.empty() || path[0] == '/') return false;
  const std::vector<std::string> parts = absl::StrSplit(path, '/');
  return std::none_of(parts.begin(), parts.end(), [](const std::string& part) {
    return part.empty() || part == "." || part == "..";
  });
}

}  // namespace

std::string JobOfArtifact(const std::string& name) {
  const std::vector<std::string> parts = absl::StrSplit(name, '/');
  const bool good = parts.size() == 4 && parts[0] == "jobs" &&
                    (parts[2] == "artifacts" || parts[2] == "checkpoints");
  return good ? parts[1] : "";
}

absl::StatusOr<ArtifactFolder> FindArtifact(const state::v1::JobRecord& record,
                                            const std::string& name) {
  for (const v1::Artifact& artifact : record.job().artifacts()) {
    if (artifact.name() != name) continue;
    return ArtifactFolder{.name = name,
                          .storage_path = artifact.storage_path(),
                          .manifest_name = kResultManifest,
                          .manifest_sha256 = artifact.manifest_sha256()};
  }
  for (const v1::Checkpoint& checkpoint : record.checkpoints()) {
    if (checkpoint.name() != name) continue;
    return ArtifactFolder{.name = name,
                          .storage_path = checkpoint.storage_path(),
                          .manifest_name = kCheckpointManifest,
                          .manifest_sha256 = checkpoint.manifest_sha256()};
  }
  if (absl::StrContains(name, "/checkpoints/")) {
    return NotFound("CHECKPOINT_NOT_FOUND", "cadre.v1.Checkpoint", name,
                    absl::StrCat("there is no checkpoint '", name,
                                 "'; 'cadre checkpoints' shows those that are "
                                 "kept"));
  }
  return NotFound("ARTIFACT_NOT_FOUND", "cadre.v1.Artifact", name,
                  absl::StrCat("there is no result '", name,
                               "'; 'cadre artifacts' shows those of a job, "
                               "which has them once it has succeeded"));
}

absl::StatusOr<v1::DownloadArtifactResponse::Listing> ListArtifactFiles(
    const ArtifactFolder& folder) {
  const std::string path =
      absl::StrCat(folder.storage_path, "/", folder.manifest_name);
  const auto text = ReadFile(path);
  if (absl::IsNotFound(text.status())) return NotLocal(folder);
  if (!text.ok()) return text.status();
  Sha256 sha;
  sha.Update(*text);
  const std::string digest = sha.HexDigest();
  if (digest != folder.manifest_sha256) {
    return Corrupt(path, absl::StrCat("has the SHA-256 ", digest, ", not ",
                                      folder.manifest_sha256));
  }
  const auto json = ParseJson(*text);
  const Json* files = json.ok() ? json->Find("files") : nullptr;
  if (files == nullptr || !files->is_array()) {
    return Corrupt(path, "has no list of files");
  }
  v1::DownloadArtifactResponse::Listing listing;
  listing.set_storage_path(folder.storage_path);
  for (const Json& item : files->items()) {
    const Json* name = item.Find("path");
    const Json* bytes = item.Find("bytes");
    const Json* sha256 = item.Find("sha256");
    if (name == nullptr || bytes == nullptr || sha256 == nullptr ||
        !StaysInside(name->string_value()) || bytes->int_value() < 0) {
      return Corrupt(path, "lists a file without path, bytes or sha256");
    }
    v1::SavedFile* file = listing.add_files();
    file->set_path(name->string_value());
    file->set_bytes(bytes->int_value());
    file->set_sha256(sha256->string_value());
  }
  v1::SavedFile* manifest = listing.add_files();
  manifest->set_path(folder.manifest_name);
  manifest->set_bytes(static_cast<int64_t>(text->size()));
  manifest->set_sha256(digest);
  std::sort(listing.mutable_files()->begin(), listing.mutable_files()->end(),
            [](const v1::SavedFile& a, const v1::SavedFile& b) {
              return a.path() < b.path();
            });
  return listing;
}

absl::StatusOr<FileDownload> FileDownload::Open(
    const v1::DownloadArtifactResponse::Listing& listing,
    const std::string& file, int64_t offset) {
  FileDownload out;
  for (const v1::SavedFile& listed : listing.files()) {
    if (listed.path() == file) out.file_ = listed;
  }
  out.path_ = absl::StrCat(listing.storage_path(), "/", file);
  if (out.file_.path().empty()) {
    return NotFound(
        "ARTIFACT_NOT_FOUND", "cadre.v1.Artifact", file,
        absl::StrCat("the manifest of ", listing.storage_path(),
                     " lists no file '", file, "'; ask for the listing"));
  }
  const int64_t bytes = out.file_.bytes();
  if (offset < 0 || offset > bytes) {
    return Error(absl::StatusCode::kOutOfRange, "OFFSET_PAST_END",
                 absl::StrCat("offset ", offset, " is outside of the ", bytes,
                              " bytes of ", file),
                 {{"size", absl::StrCat(bytes)}});
  }
  if (bytes > kMaxFileBytes) {
    return Error(absl::StatusCode::kResourceExhausted, "DOWNLOAD_TOO_LARGE",
                 absl::StrCat(file, " has ", bytes, " bytes, more than the ",
                              kMaxFileBytes, " that are streamed; copy ",
                              out.path_, " instead"),
                 {{"path", out.path_}});
  }
  std::error_code error;
  const auto present = fs::file_size(out.path_, error);
  if (error || static_cast<int64_t>(present) != bytes) {
    return Corrupt(out.path_,
                   error
                       ? absl::StrCat("cannot be read (", error.message(), ")")
                       : absl::StrCat("has ", present, " bytes, not ", bytes));
  }
  out.in_.open(out.path_, std::ios::binary);
  out.in_.seekg(offset);
  if (!out.in_) return Corrupt(out.path_, "cannot be opened");
  out.offset_ = offset;
  out.from_start_ = offset == 0;
  return out;
}

absl::StatusOr<bool> FileDownload::Next(
    v1::DownloadArtifactResponse::Chunk* chunk) {
  const int64_t left = file_.bytes() - offset_;
  if (left == 0) {
    if (from_start_ && sha_.HexDigest() != file_.sha256()) {
      return Corrupt(path_,
                     absl::StrCat("has not the SHA-256 ", file_.sha256()));
    }
    return false;
  }
  const int64_t size = std::min(left, kChunkBytes);
  std::string* data = chunk->mutable_data();
  data->resize(size);
  chunk->set_offset(offset_);
  if (!in_.read(data->data(), size)) {
    return Corrupt(path_,
                   absl::StrCat("ends before its ", file_.bytes(), " bytes"));
  }
  if (from_start_) sha_.Update(*data);
  offset_ += size;
  return true;
}

}  // namespace cadre::coordinator
