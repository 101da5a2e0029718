#ifndef CADRE_WORKER_COMM_COMMUNICATOR_H_
#define CADRE_WORKER_COMM_COMMUNICATOR_H_

// Collectives over one group of ranks. Twins: LocalCommunicator (threads of one
// process), GlooCommunicator (processes, CPU), NcclCommunicator (GPUs).
//
// One thread per communicator; all ranks issue the same calls in the same
// order. Every call has the deadline given at creation: DEADLINE_EXCEEDED when
// a peer is silent, UNAVAILABLE (naming the rank where it is known) when it is
// gone, ABORTED after Abort(). After any error only Abort() and destruction are
// allowed. Reductions are sums in a fixed order, so that results repeat
// bit for bit; there is no average on purpose (docs/numerics.md).

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace cadre {

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // In place: every rank ends with the sum over ranks, in rank order.
  virtual absl::Status AllReduceSum(absl::Span<float> data) = 0;
  virtual absl::Status AllReduceSum(absl::Span<double> data) = 0;
  virtual absl::Status AllReduceSum(absl::Span<int64_t> data) = 0;
  virtual absl::Status AllReduceMin(absl::Span<int64_t> data) = 0;
  virtual absl::Status AllReduceMax(absl::Span<int64_t> data) = 0;

  // recv holds size() equal parts, part r = the send of rank r.
  virtual absl::Status AllGather(absl::Span<const float> send,
                                 absl::Span<float> recv) = 0;
  // send holds size() equal parts; recv = sum over ranks of part rank().
  virtual absl::Status ReduceScatterSum(absl::Span<const float> send,
                                        absl::Span<float> recv) = 0;
  virtual absl::Status Broadcast(absl::Span<float> data, int root) = 0;
  // Part d of send (send_counts[d] elements) goes to rank d; part s of recv
  // (recv_counts[s]) comes from rank s. Any count may be 0.
  virtual absl::Status AllToAllV(absl::Span<const float> send,
                                 absl::Span<const int64_t> send_counts,
                                 absl::Span<float> recv,
                                 absl::Span<const int64_t> recv_counts) = 0;
  virtual absl::Status AllToAllV(absl::Span<const int64_t> send,
                                 absl::Span<const int64_t> send_counts,
                                 absl::Span<int64_t> recv,
                                 absl::Span<const int64_t> recv_counts) = 0;
  virtual absl::Status Barrier() = 0;

  // A sub-group: ranks with the same color, ordered by key then rank. Every
  // rank of this communicator calls it, in the documented total order. Errors
  // of the sub-group name ranks by their numbers in the first group.
  virtual absl::StatusOr<std::unique_ptr<Communicator>> Split(int color,
                                                              int key) = 0;

  // Calls on device memory wait for this stream (a cudaStream_t) in place of
  // the compute stream; ignored where there is no device. Before the first
  // call.
  virtual void OrderBehind(void* /*stream*/) {}

  // Makes calls under way and later ones fail with ABORTED, here and soon at
  // the peers. May be called from any thread, more than once.
  virtual void Abort() = 0;
};

}  // namespace cadre

#endif  // CADRE_WORKER_COMM_COMMUNICATOR_H_
