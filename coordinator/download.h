#ifndef CADRE_COORDINATOR_DOWNLOAD_H_
#define CADRE_COORDINATOR_DOWNLOAD_H_

// Streams of files to clients. The disk is read on a few threads of its own, a
// part at a time and only once the last part is gone, so a slow reader costs
// one part of memory and no thread. For the service adaptors' .cc files only
// (it includes gRPC). Thread-safe.

#include <grpcpp/grpcpp.h>

#include <atomic>

#include "cadre/v1/job_service.pb.h"
#include "coordinator/services.h"
#include "coordinator/work_pool.h"

namespace cadre::coordinator {

class Downloads {
 public:
  // Streams at a time; more get STREAM_LIMIT.
  static constexpr int kMaxStreams = 32;

  explicit Downloads(const ServiceDeps& deps) : deps_(deps), pool_(2, 0) {}

  grpc::ServerWriteReactor<v1::DownloadArtifactResponse>* Start(
      grpc::CallbackServerContext* context,
      const v1::DownloadArtifactRequest& request);

 private:
  class Stream;

  const ServiceDeps deps_;
  std::atomic<int> streams_{0};
  WorkPool pool_;
};

}  // namespace cadre::coordinator

#endif  // CADRE_COORDINATOR_DOWNLOAD_H_
