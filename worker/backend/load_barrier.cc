#include "worker/backend/load_barrier.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace cadre {

absl::Status AwaitLoaded(const TrainerRequest& request,
                         const std::string& key_prefix) {
  const int size = request.options.mesh.world_size;
  CADRE_RETURN_IF_ERROR(request.store->Set(
      absl::StrCat(key_prefix, "loaded/", request.options.rank), "1"));
  for (int rank = 0; rank < size; ++rank) {
    request.observer->OnPreparing("communicator", rank, size);
    CADRE_RETURN_IF_ERROR(
        Annotate(request.store
                     ->Get(absl::StrCat(key_prefix, "loaded/", rank),
                           request.start_timeout)
                     .status(),
                 absl::StrCat("waiting for rank ", rank, " to load")));
  }
  return absl::OkStatus();
}

}  // namespace cadre
