#include "worker/checkpoint_orders.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "base/logging.h"
#include "cadre/v1/worker_service.pb.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/checkpoint/retention.h"

namespace cadre {

using cadre::v1::Report;

void CheckpointOrders::CarryOut() {
  if (const auto request = link_->TakeSeal()) Seal(*request);
  for (const std::string& folder : link_->TakeRemovals()) {
    const absl::Status status = RemoveCheckpoint(folder);
    if (!status.ok()) {
      CADRE_LOG(WARNING) << "removing checkpoint " << folder << ": "
                         << status.message();
    }
  }
}

void CheckpointOrders::Seal(const SealRequest& request) {
  const auto it = unsealed_.find(request.step);
  if (it == unsealed_.end()) {
    CADRE_LOG(WARNING) << "asked to seal step " << request.step
                       << ", which this rank has not saved";
    return;
  }
  CheckpointManifest manifest = it->second.manifest;
  manifest.files.clear();
  for (const cadre::v1::SavedFile& file : request.files) {
    manifest.files.push_back(
        {.path = file.path(), .bytes = file.bytes(), .sha256 = file.sha256()});
  }
  std::sort(manifest.files.begin(), manifest.files.end(),
            [](const CheckpointFile& a, const CheckpointFile& b) {
              return a.path < b.path;
            });
  const std::string dir = it->second.dir;
  // Whether or not it can be sealed, older saves never will be.
  unsealed_.erase(unsealed_.begin(), std::next(it));
  const absl::StatusOr<SealedCheckpoint> sealed = SealCheckpoint(dir, manifest);
  if (!sealed.ok()) {
    metrics_->CountFailedSave();
    Report report;
    auto* failed = report.mutable_checkpoint_failed();
    failed->set_step(request.step);
    failed->set_reason(std::string(sealed.status().message()));
    link_->AddReport(std::move(report));
    return;
  }
  Report report;
  auto* done = report.mutable_checkpoint_sealed();
  done->set_step(request.step);
  done->set_storage_path(dir);
  done->set_manifest_sha256(sealed->manifest_sha256);
  done->set_bytes(sealed->bytes);
  link_->AddReport(std::move(report));
}

}  // namespace cadre
