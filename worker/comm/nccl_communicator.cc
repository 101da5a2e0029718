#include "worker/comm/nccl_communicator.h"

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/common/cuda_status.h"
#include "worker/comm/arguments.h"
#include "worker/comm/nccl_handle.h"
#include "worker/device/buffer.h"
#include "worker/device/cuda_stream.h"

namespace cadre {
namespace {

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
  NcclCommunicator(const Exec& exec, const NcclHandle::Options& options)
      : exec_(exec), handle_(options) {}

  absl::Status Init(const std::string& id) {
    CADRE_RETURN_IF_ERROR(Prepare());
    return handle_.Init(id);
  }

  int rank() const override { return handle_.options().rank; }
  int size() const override { return handle_.options().size; }

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
        CheckParts("AllGather", Count(recv), Count(send), size()));
    return Run("all-gather", Bytes(send), Bytes(recv),
               [&](const void* from, void* to, cudaStream_t stream) {
                 return ncclAllGather(from, to, send.size(), ncclFloat32,
                                      handle_.get(), stream);
               });
  }
  absl::Status ReduceScatterSum(absl::Span<const float> send,
                                absl::Span<float> recv) override {
    CADRE_RETURN_IF_ERROR(
        CheckParts("ReduceScatterSum", Count(send), Count(recv), size()));
    return Run("reduce-scatter", Bytes(send), Bytes(recv),
               [&](const void* from, void* to, cudaStream_t stream) {
                 return ncclReduceScatter(from, to, recv.size(), ncclFloat32,
                                          ncclSum, handle_.get(), stream);
               });
  }
  absl::Status Broadcast(absl::Span<float> data, int root) override {
    CADRE_RETURN_IF_ERROR(CheckRoot("Broadcast", root, size()));
    return Run("broadcast", Bytes(absl::Span<const float>(data)), Bytes(data),
               [&](const void* from, void* to, cudaStream_t stream) {
                 return ncclBroadcast(from, to, data.size(), ncclFloat32, root,
                                      handle_.get(), stream);
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
    CADRE_RETURN_IF_ERROR(handle_.Usable());
    auto part = std::make_unique<NcclCommunicator>(exec_, handle_.options());
    CADRE_RETURN_IF_ERROR(part->Prepare());
    CADRE_RETURN_IF_ERROR(handle_.Split(color, key, &part->handle_));
    return part;
  }

  void OrderBehind(void* stream) override { exec_.stream = stream; }

  void Abort() override { handle_.Abort(); }

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

  // issue(device input, device output, stream) -> ncclResult_t.
  template <typename Issue>
  absl::Status Run(absl::string_view what, ConstBytes in, MutableBytes out,
                   Issue issue) {
    CADRE_RETURN_IF_ERROR(handle_.Usable());
    // A communication thread comes with another GPU, or with none.
    CADRE_RETURN_IF_ERROR(CudaStatus(cudaSetDevice(device_), what));
    const bool in_place = OnDevice(in.data) || OnDevice(out.data);
    const void* from = in.data;
    void* to = out.data;
    const cudaStream_t stream = stream_.get();
    if (in_place) {
      CADRE_RETURN_IF_ERROR(
          before_.Record(static_cast<cudaStream_t>(exec_.stream)));
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
    CADRE_RETURN_IF_ERROR(handle_.Settle(issue(from, to, stream), what));
    if (!in_place) {
      CADRE_RETURN_IF_ERROR(
          CudaStatus(cudaMemcpyAsync(pinned_.data(), to, out.size,
                                     cudaMemcpyDeviceToHost, stream),
                     what));
    }
    CADRE_RETURN_IF_ERROR(after_.Record(stream));
    CADRE_RETURN_IF_ERROR(
        handle_.Wait(what, [this] { return after_.Reached(); }));
    if (!in_place) std::memcpy(out.data, pinned_.data(), out.size);
    return absl::OkStatus();
  }

  template <typename T>
  absl::Status AllReduce(absl::Span<T> data, ncclRedOp_t op,
                         absl::string_view what) {
    return Run(what, Bytes(absl::Span<const T>(data)), Bytes(data),
               [&](const void* from, void* to, cudaStream_t stream) {
                 return ncclAllReduce(from, to, data.size(), kType<T>, op,
                                      handle_.get(), stream);
               });
  }

  template <typename T>
  absl::Status Exchange(absl::Span<const T> send,
                        absl::Span<const int64_t> send_counts,
                        absl::Span<T> recv,
                        absl::Span<const int64_t> recv_counts) {
    CADRE_RETURN_IF_ERROR(CheckAllToAll(Count(send), send_counts, Count(recv),
                                        recv_counts, rank(), size()));
    return Run("all-to-all", Bytes(send), Bytes(recv),
               [&](const void* from, void* to, cudaStream_t stream) {
                 const char* out = static_cast<const char*>(from);
                 char* in = static_cast<char*>(to);
                 ncclGroupStart();
                 for (int peer = 0; peer < size(); ++peer) {
                   const auto sent = static_cast<size_t>(send_counts[peer]);
                   const auto got = static_cast<size_t>(recv_counts[peer]);
                   if (sent > 0) {
                     ncclSend(out, sent, kType<T>, peer, handle_.get(), stream);
                   }
                   if (got > 0) {
                     ncclRecv(in, got, kType<T>, peer, handle_.get(), stream);
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
    CADRE_ASSIGN_OR_RETURN(staging_in_, Buffer::Create(exec_, bytes, kWhat));
    CADRE_ASSIGN_OR_RETURN(staging_out_, Buffer::Create(exec_, bytes, kWhat));
    // Both were zeroed on the compute stream.
    CADRE_RETURN_IF_ERROR(CudaStatus(
        cudaStreamSynchronize(static_cast<cudaStream_t>(exec_.stream)), kWhat));
    CADRE_ASSIGN_OR_RETURN(pinned_, PinnedBuffer::Create(exec_, bytes, kWhat));
    return absl::OkStatus();
  }

  Exec exec_;  // its stream is what calls are ordered behind
  int device_ = 0;
  Stream stream_;
  Event before_, after_;
  Buffer staging_in_, staging_out_;
  PinnedBuffer pinned_;
  NcclHandle handle_;  // last: closed before what its calls use
};

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> CreateNcclCommunicator(
    const NcclCommunicatorOptions& options, KeyValueStore* store) {
  CADRE_RETURN_IF_ERROR(CheckNcclVersion());
  const std::string key = absl::StrCat(options.key_prefix, "nccl");
  std::string id;
  // The store keeps text.
  if (options.rank == 0) {
    CADRE_ASSIGN_OR_RETURN(id, NewNcclId());
    CADRE_RETURN_IF_ERROR(store->Set(key, absl::Base64Escape(id)));
  } else {
    CADRE_ASSIGN_OR_RETURN(const std::string text,
                           store->Get(key, options.rendezvous_timeout));
    if (!absl::Base64Unescape(text, &id)) {
      return absl::InternalError(
          absl::StrCat("NCCL: the id under ", key, " is damaged"));
    }
  }
  auto communicator = std::make_unique<NcclCommunicator>(
      options.exec,
      NcclHandle::Options{.rank = options.rank,
                          .size = options.size,
                          .timeout = options.timeout,
                          .rendezvous_timeout = options.rendezvous_timeout});
  CADRE_RETURN_IF_ERROR(communicator->Init(id));
  return communicator;
}

}  // namespace cadre
