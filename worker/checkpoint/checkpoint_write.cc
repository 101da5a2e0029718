#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/failpoint.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "model/safetensors.h"
#include "model/sha256.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/checkpoint/file_digest.h"
#include "worker/checkpoint/piece_index.h"

namespace cadre {
namespace {

namespace fs = std::filesystem;

absl::Status SyncDirectory(const std::string& dir) {
  const int fd = open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return FileError("open", dir, errno);
  const int result = fsync(fd);
  const int error = errno;
  close(fd);
  return result == 0 ? absl::OkStatus() : FileError("fsync", dir, error);
}

absl::Status WriteTensors(const std::string& path,
                          absl::Span<const TensorPiece> pieces) {
  std::vector<SafetensorInfo> infos;
  std::map<std::string, std::string> metadata;
  for (const TensorPiece& piece : pieces) {
    infos.push_back(PieceInfo(piece));
    AddPieceMetadata(piece, &metadata);
  }
  CADRE_ASSIGN_OR_RETURN(
      const std::unique_ptr<SafetensorsWriter> writer,
      SafetensorsWriter::Create(path, infos, std::move(metadata)));
  for (size_t i = 0; i < infos.size(); ++i) {
    Failpoint("checkpoint.mid_shard");
    const Tensor& value = pieces[i].value;
    CADRE_RETURN_IF_ERROR(writer->Append(
        infos[i].name, {static_cast<const char*>(value.raw()),
                        static_cast<size_t>(value.num_bytes())}));
  }
  return writer->Commit();
}

// Every element of every tensor is there once.
absl::Status CheckPieces(const std::string& dir,
                         const CheckpointManifest& manifest) {
  PieceIndex weights, optimizer;
  for (const CheckpointFile& file : manifest.files) {
    const std::string path = absl::StrCat(dir, "/", file.path);
    if (absl::StartsWith(file.path, "optimizer-")) {
      CADRE_RETURN_IF_ERROR(optimizer.Add(path));
    } else if (absl::EndsWith(file.path, ".safetensors")) {
      CADRE_RETURN_IF_ERROR(weights.Add(path));
    }
  }
  CADRE_RETURN_IF_ERROR(weights.CheckCoverage());
  CADRE_RETURN_IF_ERROR(optimizer.CheckCoverage());
  const std::vector<std::string> moments = optimizer.Names();
  for (const std::string& name : weights.Names()) {
    for (const char* suffix : {".m", ".v"}) {
      if (moments.empty() ||
          std::binary_search(moments.begin(), moments.end(), name + suffix)) {
        continue;
      }
      return absl::DataLossError(
          absl::StrCat("no optimizer state ", name, suffix));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<CheckpointFile> DigestFile(const std::string& dir,
                                          const std::string& name) {
  const std::string path = absl::StrCat(dir, "/", name);
  std::ifstream in(path, std::ios::binary);
  if (!in) return FileError("open", path, errno);
  Sha256 sha;
  CheckpointFile file{.path = name};
  std::vector<char> buffer(1 << 20);
  while (in) {
    in.read(buffer.data(), static_cast<std::streamsize>(buffer.size()));
    sha.Update({buffer.data(), static_cast<size_t>(in.gcount())});
    file.bytes += in.gcount();
  }
  if (in.bad()) return FileError("read", path, errno);
  file.sha256 = sha.HexDigest();
  return file;
}

absl::StatusOr<std::vector<CheckpointFile>> WriteRankFiles(
    const std::string& dir, const RankFiles& files) {
  std::error_code error;
  fs::create_directories(dir, error);
  if (error) return FileError("create", dir, error.value());
  const std::string suffix = absl::StrFormat("-%05d", files.state.rank);
  std::vector<std::string> names;
  const auto write = [&](const std::string& stem,
                         absl::Span<const TensorPiece> tensors) {
    if (tensors.empty()) return absl::OkStatus();
    names.push_back(absl::StrCat(stem, suffix, ".safetensors"));
    return WriteTensors(absl::StrCat(dir, "/", names.back()), tensors);
  };
  CADRE_RETURN_IF_ERROR(write(files.weights_stem, files.weights));
  CADRE_RETURN_IF_ERROR(write("optimizer", files.optimizer));
  names.push_back(absl::StrCat("rank-state", suffix, ".json"));
  CADRE_RETURN_IF_ERROR(WriteFileAtomic(absl::StrCat(dir, "/", names.back()),
                                        files.state.ToJson()));
  CADRE_RETURN_IF_ERROR(SyncDirectory(dir));
  std::vector<CheckpointFile> written;
  for (const std::string& name : names) {
    CADRE_ASSIGN_OR_RETURN(CheckpointFile file, DigestFile(dir, name));
    written.push_back(std::move(file));
  }
  return written;
}

absl::StatusOr<SealedCheckpoint> SealCheckpoint(
    const std::string& dir, const CheckpointManifest& manifest) {
  SealedCheckpoint sealed;
  for (const CheckpointFile& file : manifest.files) {
    std::error_code error;
    const std::string path = absl::StrCat(dir, "/", file.path);
    const auto size = fs::file_size(path, error);
    if (error) {
      return absl::FailedPreconditionError(absl::StrCat(
          "cannot seal ", dir, ": ", file.path, ": ", error.message(),
          error == std::errc::no_such_file_or_directory
              ? " (all workers must share the storage of checkpoints_dir)"
              : ""));
    }
    if (static_cast<int64_t>(size) != file.bytes) {
      return absl::FailedPreconditionError(
          absl::StrCat("cannot seal ", dir, ": ", file.path, " has ", size,
                       " bytes, ", file.bytes, " were reported"));
    }
    sealed.bytes += file.bytes;
  }
  if (const absl::Status pieces = CheckPieces(dir, manifest); !pieces.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot seal ", dir, ": ", pieces.message()));
  }
  const std::string json = manifest.ToJson();
  Failpoint("checkpoint.before_seal");
  CADRE_RETURN_IF_ERROR(WriteFileAtomic(
      absl::StrCat(dir, "/", CheckpointManifest::kFileName), json));
  CADRE_RETURN_IF_ERROR(SyncDirectory(dir));
  Failpoint("checkpoint.after_seal");
  Sha256 sha;
  sha.Update(json);
  sealed.manifest_sha256 = sha.HexDigest();
  sealed.bytes += static_cast<int64_t>(json.size());
  return sealed;
}

}  // namespace cadre
