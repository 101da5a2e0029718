#ifndef CADRE_COORDINATOR_ARTIFACT_FILES_H_
#define CADRE_COORDINATOR_ARTIFACT_FILES_H_

// The files of a checkpoint or a result, as its manifest lists them. No path
// ever comes from a caller: a file is served only if the manifest, whose digest
// the journal has, names it. Thread-safe but for FileDownload.

#include <cstdint>
#include <fstream>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cadre/state/v1/state.pb.h"
#include "cadre/v1/job_service.pb.h"
#include "model/sha256.h"

namespace cadre::coordinator {

struct ArtifactFolder {
  std::string name;  // "jobs/j/artifacts/adapter"
  std::string storage_path;
  std::string manifest_name;  // relative to the folder
  std::string manifest_sha256;
};

// The job of "jobs/{job}/artifacts/{artifact}" or
// "jobs/{job}/checkpoints/{step}"; "" if it is neither.
std::string JobOfArtifact(const std::string& name);

// ARTIFACT_NOT_FOUND or CHECKPOINT_NOT_FOUND when the job has none of that
// name.
absl::StatusOr<ArtifactFolder> FindArtifact(const state::v1::JobRecord& record,
                                            const std::string& name);

// Reads the manifest. ARTIFACT_NOT_LOCAL when the folder is not here,
// CHECKSUM_MISMATCH when the manifest is not the one that was committed.
absl::StatusOr<v1::DownloadArtifactResponse::Listing> ListArtifactFiles(
    const ArtifactFolder& folder);

// One file from an offset on.
class FileDownload {
 public:
  static constexpr int64_t kChunkBytes = 1 << 20;
  static constexpr int64_t kMaxFileBytes = int64_t{16} << 30;

  // ARTIFACT_NOT_FOUND for a file that is not listed, OFFSET_PAST_END,
  // DOWNLOAD_TOO_LARGE.
  static absl::StatusOr<FileDownload> Open(
      const v1::DownloadArtifactResponse::Listing& listing,
      const std::string& file, int64_t offset);

  // The next part; false at the end. CHECKSUM_MISMATCH when the file is shorter
  // than listed or, read from its beginning, has another digest.
  absl::StatusOr<bool> Next(v1::DownloadArtifactResponse::Chunk* chunk);

 private:
  FileDownload() = default;
  std::string path_;
  v1::SavedFile file_;
  std::ifstream in_;
  int64_t offset_ = 0;
  bool from_start_ = false;
  Sha256 sha_;
};

}  // namespace cadre::coordinator

#endif  // CADRE_COORDINATOR_ARTIFACT_FILES_H_
