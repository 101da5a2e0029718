#include "worker/comm/nccl_communicator.h"

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "worker/comm/arguments.h"
#include "worker/comm/monotonic_wait.h"
#include "worker/device/buffer.h"
#include "worker/device/cuda_status.h"
#include "worker/device/cuda_stream.h"

namespace cadre {
namespace {

absl::Status NcclStatus(ncclResult_t result, absl::string_view call) {
  const std::string text =
      absl::StrCat("NCCL: ", call, ": ", ncclGetErrorString(result));
  switch (result) {
    case ncclSuccess:
    case ncclInProgress:
      return absl::OkStatus();
    case ncclInvalidArgument:
    case ncclInvalidUsage:
      return absl::InternalError(text);
    default:
      return absl::UnavailableError(absl::StrCat(
          text,
          "; a peer or the link to it is lost (NCCL_DEBUG=INFO in the "
          "worker's environment says more)"));
  }
}

template <typename T>
constexpr ncclDataType_t kType = ncclFloat32;
template <>
constexpr ncclDataType_t kType<double> = ncclFloat64;
template <>
constexpr ncclDataType_t kType<int64_t> = ncclInt64;

bool OnDevice(const void* data) {
  cudaPointerAttributes attributes;
  if (data == nullptr ||
      cudaPointerGetAttributes(&attributes, data) != cudaSuccess) {
    cudaGetLastError();
    return false;
  }
  return attributes.type == cudaMemoryTypeDevice;
}

class NcclCommunicator final : public Communicator {
 public:
  explicit NcclCommunicator(const NcclCommunicatorOptions& options)
      : options_(options) {}
  ~NcclCommunicator() override { Close(); }

  absl::Status Init(const ncclUniqueId& id) {
    CADRE_RETURN_IF_ERROR(Prepare());
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    return Settle(ncclCommInitRankConfig(&comm_, options_.size, id,
                                         options_.rank, &config),
                  "meeting the peers", options_.rendezvous_timeout);
  }

  int rank() const override { return options_.rank; }
  int size() const override { return options_.size; }

  absl::Status AllReduceSum(absl::Span<float> data) override {
    return AllReduce(data, ncclSum, "all-reduce");
  }
  absl::Status AllReduceSum(absl::Span<double> data) override {
    return AllReduce(data, ncclSum, "all-reduce");
  }
  absl::Status AllReduceSum(absl::Span<int64_t> data) override {
    return AllReduce(data, ncclSum, "all-reduce");
  }
  absl::Status AllReduceMin(absl::Span<int64_t> data) override {
    return AllReduce(data, ncclMin, "all-reduce (minimum)");
  }
  absl::Status AllReduceMax(absl::Span<int64_t> data) override {
    return AllReduce(data, ncclMax, "all-reduce (maximum)");
  }

  absl::Status AllGather(absl::Span<const float> send,
                         absl::Span<float> recv) override {
    CADRE_RETURN_IF_ERROR(
        CheckParts("AllGather", Count(recv), Count(send), options_.size));
    return Run("all-gather", Bytes(send), Bytes(recv),
               [&](const void* from, void* to, cudaStream_t stream) {
                 return ncclAllGather(from, to, send.size(), ncclFloat32, comm_,
                                      stream);
               });
  }
  absl::Status ReduceScatterSum(absl::Span<const float> send,
                                absl::Span<float> recv) override {
    CADRE_RETURN_IF_ERROR(CheckParts("ReduceScatterSum", Count(send),
                                     Count(recv), options_.size));
    return Run("reduce-scatter", Bytes(send), Bytes(recv),
               [&](const void* from, void* to, cudaStream_t stream) {
                 return ncclReduceScatter(from, to, recv.size(), ncclFloat32,
                                          ncclSum, comm_, stream);
               });
  }
  absl::Status Broadcast(absl::Span<float> data, int root) override {
    CADRE_RETURN_IF_ERROR(CheckRoot("Broadcast", root, options_.size));
    return Run("broadcast", Bytes(absl::Span<const float>(data)), Bytes(data),
               [&](const void* from, void* to, cudaStream_t stream) {
                 return ncclBroadcast(from, to, data.size(), ncclFloat32, root,
                                      comm_, stream);
               });
  }
  absl::Status AllToAllV(absl::Span<const float> send,
                         absl::Span<const int64_t> send_counts,
                         absl::Span<float> recv,
                         absl::Span<const int64_t> recv_counts) override {
    return Exchange(send, send_counts, recv, recv_counts);
  }
  absl::Status AllToAllV(absl::Span<const int64_t> send,
                         absl::Span<const int64_t> send_counts,
                         absl::Span<int64_t> recv,
                         absl::Span<const int64_t> recv_counts) override {
    return Exchange(send, send_counts, recv, recv_counts);
  }
  absl::Status Barrier() override {
    float one = 1;
    return AllReduce(absl::MakeSpan(&one, 1), ncclSum, "barrier");
  }

  absl::StatusOr<std::unique_ptr<Communicator>> Split(int color,
                                                      int key) override {
    CADRE_RETURN_IF_ERROR(Usable());
    auto part = std::make_unique<NcclCommunicator>(options_);
    CADRE_RETURN_IF_ERROR(part->Prepare());
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    CADRE_RETURN_IF_ERROR(
        Settle(ncclCommSplit(comm_, color, key, &part->comm_, &config),
               "splitting", options_.rendezvous_timeout));
    // A thread of NCCL's makes the new communicator.
    CADRE_RETURN_IF_ERROR(Poll("splitting", options_.rendezvous_timeout,
                               [&part]() -> absl::StatusOr<bool> {
                                 return std::atomic_ref(part->comm_).load() !=
                                        nullptr;
                               }));
    CADRE_RETURN_IF_ERROR(
        part->Settle(ncclInProgress, "splitting", options_.rendezvous_timeout));
    CADRE_RETURN_IF_ERROR(NcclStatus(
        ncclCommUserRank(part->comm_, &part->options_.rank), "splitting"));
    CADRE_RETURN_IF_ERROR(NcclStatus(
        ncclCommCount(part->comm_, &part->options_.size), "splitting"));
    return part;
  }

  void OrderBehind(void* stream) override { options_.exec.stream = stream; }

  // The calling thread of the communicator sees the flag while it polls, and
  // aborts: NCCL's own calls stay on one thread.
  void Abort() override { aborted_ = true; }

 private:
  struct ConstBytes {
    const void* data;
    int64_t size;
  };
  struct MutableBytes {
    void* data;
    int64_t size;
  };
  template <typename T>
  static int64_t Count(absl::Span<T> span) {
    return static_cast<int64_t>(span.size());
  }
  template <typename T>
  static ConstBytes Bytes(absl::Span<const T> span) {
    return {span.data(), Count(span) * static_cast<int64_t>(sizeof(T))};
  }
  template <typename T>
  static MutableBytes Bytes(absl::Span<T> span) {
    return {span.data(), Count(span) * static_cast<int64_t>(sizeof(T))};
  }

  absl::Status Prepare() {
    CADRE_RETURN_IF_ERROR(
        CudaStatus(cudaGetDevice(&device_), "asking for the current GPU"));
    CADRE_ASSIGN_OR_RETURN(stream_, Stream::Create());
    CADRE_ASSIGN_OR_RETURN(before_, Event::Create());
    CADRE_ASSIGN_OR_RETURN(after_, Event::Create());
    return absl::OkStatus();
  }

  absl::Status Usable() {
    if (status_.ok() && aborted_) {
      return Fail(absl::AbortedError("NCCL: aborted"));
    }
    return status_;
  }
  absl::Status Fail(absl::Status status) {
    if (status_.ok()) status_ = std::move(status);
    if (comm_ != nullptr) {
      ncclCommAbort(comm_);
      comm_ = nullptr;
    }
    return status_;
  }

  // Polls until `done` says so, the communicator fails or time is up.
  template <typename Done>
  absl::Status Poll(absl::string_view what, absl::Duration timeout, Done done) {
    const MonotonicTime begin = std::chrono::steady_clock::now();
    const MonotonicTime deadline = DeadlineAfter(timeout);
    while (true) {
      const absl::StatusOr<bool> finished = done();
      if (!finished.ok()) return Fail(finished.status());
      if (*finished) return absl::OkStatus();
      ncclResult_t async = ncclSuccess;
      const ncclResult_t asked = ncclCommGetAsyncError(comm_, &async);
      for (const ncclResult_t result : {asked, async}) {
        const absl::Status status = NcclStatus(result, what);
        if (!status.ok()) return Fail(status);
      }
      if (aborted_) return Fail(absl::AbortedError("NCCL: aborted"));
      const MonotonicTime now = std::chrono::steady_clock::now();
      if (now >= deadline) {
        return Fail(absl::DeadlineExceededError(absl::StrCat(
            "NCCL: ", what, ": rank ", options_.rank, " of ", options_.size,
            " waited ", absl::FormatDuration(timeout), " for its peers")));
      }
      // Most calls take microseconds; a long wait leaves the core to others.
      if (now - begin > std::chrono::milliseconds(2)) {
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
    }
  }

  // Until a non-blocking call has taken effect on the host.
  absl::Status Settle(ncclResult_t result, absl::string_view what,
                      absl::Duration timeout) {
    const absl::Status status = NcclStatus(result, what);
    if (!status.ok()) return Fail(status);
    if (result != ncclInProgress) return absl::OkStatus();
    return Poll(what, timeout, [this, what]() -> absl::StatusOr<bool> {
      ncclResult_t async = ncclSuccess;
      CADRE_RETURN_IF_ERROR(
          NcclStatus(ncclCommGetAsyncError(comm_, &async), what));
      CADRE_RETURN_IF_ERROR(NcclStatus(async, what));
      return async != ncclInProgress;
    });
  }

  // issue(device input, device output, stream) -> ncclResult_t.
  template <typename Issue>
  absl::Status Run(absl::string_view what, ConstBytes in, MutableBytes out,
                   Issue issue) {
    CADRE_RETURN_IF_ERROR(Usable());
    // A communication thread comes with another GPU, or with none.
    CADRE_RETURN_IF_ERROR(CudaStatus(cudaSetDevice(device_), what));
    const bool in_place = OnDevice(in.data) || OnDevice(out.data);
    const void* from = in.data;
    void* to = out.data;
    const cudaStream_t stream = stream_.get();
    if (in_place) {
      CADRE_RETURN_IF_ERROR(
          before_.Record(static_cast<cudaStream_t>(options_.exec.stream)));
      CADRE_RETURN_IF_ERROR(before_.Block(stream));
    } else {
      CADRE_RETURN_IF_ERROR(Stage(std::max(in.size, out.size)));
      std::memcpy(pinned_.data(), in.data, in.size);
      CADRE_RETURN_IF_ERROR(
          CudaStatus(cudaMemcpyAsync(staging_in_.data(), pinned_.data(),
                                     in.size, cudaMemcpyHostToDevice, stream),
                     what));
      from = staging_in_.data();
      to = staging_out_.data();
    }
    CADRE_RETURN_IF_ERROR(
        Settle(issue(from, to, stream), what, options_.timeout));
    if (!in_place) {
      CADRE_RETURN_IF_ERROR(
          CudaStatus(cudaMemcpyAsync(pinned_.data(), to, out.size,
                                     cudaMemcpyDeviceToHost, stream),
                     what));
    }
    CADRE_RETURN_IF_ERROR(after_.Record(stream));
    CADRE_RETURN_IF_ERROR(
        Poll(what, options_.timeout, [this] { return after_.Reached(); }));
    if (!in_place) std::memcpy(out.data, pinned_.data(), out.size);
    return absl::OkStatus();
  }

  template <typename T>
  absl::Status AllReduce(absl::Span<T> data, ncclRedOp_t op,
                         absl::string_view what) {
    return Run(what, Bytes(absl::Span<const T>(data)), Bytes(data),
               [&](const void* from, void* to, cudaStream_t stream) {
                 return ncclAllReduce(from, to, data.size(), kType<T>, op,
                                      comm_, stream);
               });
  }

  template <typename T>
  absl::Status Exchange(absl::Span<const T> send,
                        absl::Span<const int64_t> send_counts,
                        absl::Span<T> recv,
                        absl::Span<const int64_t> recv_counts) {
    CADRE_RETURN_IF_ERROR(CheckAllToAll(Count(send), send_counts, Count(recv),
                                        recv_counts, options_.rank,
                                        options_.size));
    return Run("all-to-all", Bytes(send), Bytes(recv),
               [&](const void* from, void* to, cudaStream_t stream) {
                 const char* out = static_cast<const char*>(from);
                 char* in = static_cast<char*>(to);
                 ncclGroupStart();
                 for (int peer = 0; peer < options_.size; ++peer) {
                   const auto sent = static_cast<size_t>(send_counts[peer]);
                   const auto got = static_cast<size_t>(recv_counts[peer]);
                   if (sent > 0) {
                     ncclSend(out, sent, kType<T>, peer, comm_, stream);
                   }
                   if (got > 0) {
                     ncclRecv(in, got, kType<T>, peer, comm_, stream);
                   }
                   out += sent * sizeof(T);
                   in += got * sizeof(T);
                 }
                 return ncclGroupEnd();
               });
  }

  absl::Status Stage(int64_t bytes) {
    if (pinned_.num_bytes() >= bytes) return absl::OkStatus();
    bytes = std::max<int64_t>(2 * bytes, 64 << 10);
    pinned_ = PinnedBuffer();
    staging_in_ = Buffer();
    staging_out_ = Buffer();
    constexpr char kWhat[] = "staging of collectives";
    CADRE_ASSIGN_OR_RETURN(staging_in_,
                           Buffer::Create(options_.exec, bytes, kWhat));
    CADRE_ASSIGN_OR_RETURN(staging_out_,
                           Buffer::Create(options_.exec, bytes, kWhat));
    // Both were zeroed on the compute stream.
    CADRE_RETURN_IF_ERROR(CudaStatus(
        cudaStreamSynchronize(static_cast<cudaStream_t>(options_.exec.stream)),
        kWhat));
    CADRE_ASSIGN_OR_RETURN(pinned_,
                           PinnedBuffer::Create(options_.exec, bytes, kWhat));
    return absl::OkStatus();
  }

  void Close() {
    if (comm_ == nullptr) return;
    if (status_.ok() && !aborted_ &&
        Settle(ncclCommFinalize(comm_), "closing", absl::Seconds(10)).ok()) {
      ncclCommDestroy(comm_);
    } else if (comm_ != nullptr) {
      ncclCommAbort(comm_);
    }
    comm_ = nullptr;
  }

  NcclCommunicatorOptions options_;
  int device_ = 0;
  ncclComm_t comm_ = nullptr;
  Stream stream_;
  Event before_, after_;
  Buffer staging_in_, staging_out_;
  PinnedBuffer pinned_;
  std::atomic<bool> aborted_{false};
  absl::Status status_;  // the first failure
};

absl::Status CheckVersion() {
  int version = 0;
  CADRE_RETURN_IF_ERROR(NcclStatus(ncclGetVersion(&version), "its version"));
  if (version >= 22803 && version <= 22808) {
    return absl::FailedPreconditionError(
        absl::StrCat("NCCL version code ", version,
                     ": 2.28.3 to 2.28.8 are unsafe after an abort; install "
                     "2.28.9 or later"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> CreateNcclCommunicator(
    const NcclCommunicatorOptions& options, KeyValueStore* store) {
  CADRE_RETURN_IF_ERROR(CheckVersion());
  const std::string key = absl::StrCat(options.key_prefix, "nccl");
  ncclUniqueId id;
  // The store keeps text.
  if (options.rank == 0) {
    CADRE_RETURN_IF_ERROR(NcclStatus(ncclGetUniqueId(&id), "making an id"));
    CADRE_RETURN_IF_ERROR(
        store->Set(key, absl::Base64Escape(absl::string_view(
                            id.internal, sizeof(id.internal)))));
  } else {
    CADRE_ASSIGN_OR_RETURN(const std::string text,
                           store->Get(key, options.rendezvous_timeout));
    std::string bytes;
    if (!absl::Base64Unescape(text, &bytes) ||
        bytes.size() != sizeof(id.internal)) {
      return absl::InternalError(
          absl::StrCat("NCCL: the id under ", key, " is damaged"));
    }
    std::memcpy(id.internal, bytes.data(), bytes.size());
  }
  auto communicator = std::make_unique<NcclCommunicator>(options);
  CADRE_RETURN_IF_ERROR(communicator->Init(id));
  return communicator;
}

}  // namespace cadre
