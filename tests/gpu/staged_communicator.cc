#include "tests/gpu/staged_communicator.h"

#include <cuda_runtime_api.h>

#include <utility>

#include "base/status_macros.h"
#include "kernels/common/cuda_status.h"
#include "tests/gpu/runtime_calls.h"

namespace cadre::testing {
namespace {

class Staged final : public Communicator {
 public:
  Staged(std::unique_ptr<Communicator> host, void* stream)
      : host_(std::move(host)), stream_(stream) {
    cudaGetDevice(&device_);
  }

  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }

  absl::Status AllReduceSum(absl::Span<float> data) override {
    return InPlace(data, [this](auto d) { return host_->AllReduceSum(d); });
  }
  absl::Status AllReduceSum(absl::Span<double> data) override {
    return InPlace(data, [this](auto d) { return host_->AllReduceSum(d); });
  }
  absl::Status AllReduceSum(absl::Span<int64_t> data) override {
    return InPlace(data, [this](auto d) { return host_->AllReduceSum(d); });
  }
  absl::Status AllReduceMin(absl::Span<int64_t> data) override {
    return InPlace(data, [this](auto d) { return host_->AllReduceMin(d); });
  }
  absl::Status AllReduceMax(absl::Span<int64_t> data) override {
    return InPlace(data, [this](auto d) { return host_->AllReduceMax(d); });
  }
  absl::Status AllGather(absl::Span<const float> send,
                         absl::Span<float> recv) override {
    return Through(send, recv,
                   [this](auto s, auto r) { return host_->AllGather(s, r); });
  }
  absl::Status ReduceScatterSum(absl::Span<const float> send,
                                absl::Span<float> recv) override {
    return Through(send, recv, [this](auto s, auto r) {
      return host_->ReduceScatterSum(s, r);
    });
  }
  absl::Status Broadcast(absl::Span<float> data, int root) override {
    return InPlace(data,
                   [this, root](auto d) { return host_->Broadcast(d, root); });
  }
  absl::Status AllToAllV(absl::Span<const float> send,
                         absl::Span<const int64_t> send_counts,
                         absl::Span<float> recv,
                         absl::Span<const int64_t> recv_counts) override {
    return Through(send, recv, [&](auto s, auto r) {
      return host_->AllToAllV(s, send_counts, r, recv_counts);
    });
  }
  absl::Status AllToAllV(absl::Span<const int64_t> send,
                         absl::Span<const int64_t> send_counts,
                         absl::Span<int64_t> recv,
                         absl::Span<const int64_t> recv_counts) override {
    return Through(send, recv, [&](auto s, auto r) {
      return host_->AllToAllV(s, send_counts, r, recv_counts);
    });
  }
  absl::Status Barrier() override { return host_->Barrier(); }
  absl::StatusOr<std::unique_ptr<Communicator>> Split(int color,
                                                      int key) override {
    CADRE_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> part,
                           host_->Split(color, key));
    return StageOnHost(std::move(part), stream_);
  }
  void OrderBehind(void* stream) override { stream_ = stream; }
  void Abort() override { host_->Abort(); }

 private:
  template <typename T>
  absl::Status Copy(const T* from, T* to, size_t n) {
    return CudaStatus(cudaMemcpy(to, from, n * sizeof(T), cudaMemcpyDefault),
                      "staging a collective");
  }
  absl::Status Before() {
    // A communication thread comes with another GPU.
    CADRE_RETURN_IF_ERROR(
        CudaStatus(cudaSetDevice(device_), "choosing the GPU"));
    return CudaStatus(cudaStreamSynchronize(static_cast<cudaStream_t>(stream_)),
                      "waiting before a collective");
  }
  template <typename T, typename Call>
  absl::Status InPlace(absl::Span<T> data, Call call) {
    const Uncounted staging;
    CADRE_RETURN_IF_ERROR(Before());
    std::vector<T> all(data.size());
    CADRE_RETURN_IF_ERROR(Copy<T>(data.data(), all.data(), all.size()));
    CADRE_RETURN_IF_ERROR(call(absl::MakeSpan(all)));
    return Copy<T>(all.data(), data.data(), all.size());
  }
  template <typename T, typename Call>
  absl::Status Through(absl::Span<const T> send, absl::Span<T> recv,
                       Call call) {
    const Uncounted staging;
    CADRE_RETURN_IF_ERROR(Before());
    std::vector<T> in(send.size()), out(recv.size());
    CADRE_RETURN_IF_ERROR(Copy<T>(send.data(), in.data(), in.size()));
    CADRE_RETURN_IF_ERROR(call(absl::MakeConstSpan(in), absl::MakeSpan(out)));
    return Copy<T>(out.data(), recv.data(), out.size());
  }

  const std::unique_ptr<Communicator> host_;
  void* stream_;
  int device_ = 0;
};

}  // namespace

std::unique_ptr<Communicator> StageOnHost(std::unique_ptr<Communicator> host,
                                          void* stream) {
  return std::make_unique<Staged>(std::move(host), stream);
}

}  // namespace cadre::testing
