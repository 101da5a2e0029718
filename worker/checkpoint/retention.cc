#include "worker/checkpoint/retention.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "worker/checkpoint/manifest.h"

namespace cadre {
namespace {

namespace fs = std::filesystem;

bool ParseName(const std::string& name, StoredCheckpoint* out) {
  long long step = 0, attempt = 0;
  int used = 0;
  if (std::sscanf(name.c_str(), "step-%lld.attempt-%lld%n", &step, &attempt,
                  &used) != 2 ||
      used != static_cast<int>(name.size())) {
    return false;
  }
  out->step = step;
  out->attempt_epoch = attempt;
  return CheckpointDirName(step, attempt) == name;
}

}  // namespace

std::vector<StoredCheckpoint> CheckpointsToRemove(
    std::vector<StoredCheckpoint> stored, int keep_last,
    int64_t keep_every_steps, int64_t attempt_epoch) {
  std::sort(stored.begin(), stored.end(), [](const auto& a, const auto& b) {
    return std::pair(a.step, a.attempt_epoch) >
           std::pair(b.step, b.attempt_epoch);
  });
  int64_t newest_sealed = -1;
  for (const StoredCheckpoint& c : stored) {
    if (c.sealed) newest_sealed = std::max(newest_sealed, c.step);
  }
  std::vector<StoredCheckpoint> remove;
  int kept = 0;
  for (StoredCheckpoint& c : stored) {
    if (!c.sealed) {
      if (c.attempt_epoch < attempt_epoch || c.step < newest_sealed) {
        remove.push_back(std::move(c));
      }
      continue;
    }
    const bool milestone =
        keep_every_steps > 0 && c.step % keep_every_steps == 0;
    if (kept < keep_last) {
      ++kept;
    } else if (!milestone) {
      remove.push_back(std::move(c));
    }
  }
  return remove;
}

absl::StatusOr<std::vector<StoredCheckpoint>> ListCheckpoints(
    const std::string& dir) {
  std::vector<StoredCheckpoint> out;
  std::error_code error;
  if (!fs::exists(dir, error)) return out;
  for (const auto& entry : fs::directory_iterator(dir, error)) {
    StoredCheckpoint c;
    if (!ParseName(entry.path().filename(), &c)) continue;
    c.path = entry.path();
    c.sealed = fs::exists(entry.path() / CheckpointManifest::kFileName, error);
    out.push_back(std::move(c));
  }
  if (error) {
    return absl::UnavailableError(
        absl::StrCat("cannot list ", dir, ": ", error.message()));
  }
  std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) {
    return std::pair(a.step, a.attempt_epoch) <
           std::pair(b.step, b.attempt_epoch);
  });
  return out;
}

absl::Status RemoveCheckpoint(const std::string& path) {
  StoredCheckpoint c;
  if (!ParseName(fs::path(path).filename(), &c)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is not named like a checkpoint; not removed"));
  }
  std::error_code error;
  // Without its manifest a half-removed folder is no checkpoint any more.
  fs::remove(fs::path(path) / CheckpointManifest::kFileName, error);
  fs::remove_all(path, error);
  if (error) {
    return absl::UnavailableError(
        absl::StrCat("cannot remove ", path, ": ", error.message()));
  }
  return absl::OkStatus();
}

}  // namespace cadre
