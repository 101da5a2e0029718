#ifndef CADRE_WORKER_COMM_NCCL_HANDLE_H_
#define CADRE_WORKER_COMM_NCCL_HANDLE_H_

// An NCCL communicator from the meeting of its ranks to its end. NCCL runs
// non-blocking: the host waits by polling, with a deadline. After an error the
// communicator is aborted, never destroyed, and every later call answers with
// that first error. Owns the communicator. Abort from any thread, the rest from
// one. Linked into the CUDA plugin only.

#include <atomic>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

struct ncclComm;  // what NCCL's handle points to

namespace cadre {

// FAILED_PRECONDITION where NCCL is one that abort can corrupt.
absl::Status CheckNcclVersion();

// What the ranks of a new communicator must have in common, by one of them.
absl::StatusOr<std::string> NewNcclId();

class NcclHandle {
 public:
  struct Options {
    int rank = 0;
    int size = 1;
    absl::Duration timeout;  // of each call
    absl::Duration rendezvous_timeout;
  };

  explicit NcclHandle(const Options& options) : options_(options) {}
  ~NcclHandle() { Close(); }
  NcclHandle(const NcclHandle&) = delete;
  NcclHandle& operator=(const NcclHandle&) = delete;

  // Once: meets the peers, which have the same `id`.
  absl::Status Init(const std::string& id);
  // `part`, which has this one's options, becomes the communicator of the ranks
  // of one color, ordered by key.
  absl::Status Split(int color, int key, NcclHandle* part);

  const Options& options() const { return options_; }
  ncclComm* get() const { return comm_; }

  // The first failure, or that it was aborted.
  absl::Status Usable();
  // Until a call (`result` is its ncclResult_t) has taken effect on the host.
  absl::Status Settle(int result, absl::string_view what) {
    return Settle(result, what, options_.timeout);
  }
  // Until `done` says so.
  absl::Status Wait(absl::string_view what,
                    absl::FunctionRef<absl::StatusOr<bool>()> done) {
    return Poll(what, options_.timeout, done);
  }

  // The calling thread of the communicator sees the flag while it polls, and
  // aborts: NCCL's own calls stay on one thread.
  void Abort() { aborted_ = true; }

 private:
  absl::Status Settle(int result, absl::string_view what,
                      absl::Duration timeout);
  // Polls until `done` says so, the communicator fails or time is up.
  absl::Status Poll(absl::string_view what, absl::Duration timeout,
                    absl::FunctionRef<absl::StatusOr<bool>()> done);
  absl::Status Fail(absl::Status status);
  void Close();

  Options options_;
  ncclComm* comm_ = nullptr;
  std::atomic<bool> aborted_{false};
  absl::Status status_;  // the first failure
};

}  // namespace cadre

#endif  // CADRE_WORKER_COMM_NCCL_HANDLE_H_
