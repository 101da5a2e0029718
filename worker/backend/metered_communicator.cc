#include "worker/backend/metered_communicator.h"

#include <chrono>
#include <utility>

#include "base/status_macros.h"

namespace cadre {
namespace {

template <typename T>
int64_t Bytes(absl::Span<T> data) {
  return static_cast<int64_t>(data.size() * sizeof(T));
}

class MeteredCommunicator final : public Communicator {
 public:
  MeteredCommunicator(std::unique_ptr<Communicator> inner,
                      CollectiveObserver* observer)
      : inner_(std::move(inner)), observer_(observer) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }

  absl::Status AllReduceSum(absl::Span<float> data) override {
    return Run("all_reduce", Bytes(data),
               [&] { return inner_->AllReduceSum(data); });
  }
  absl::Status AllReduceSum(absl::Span<double> data) override {
    return Run("all_reduce", Bytes(data),
               [&] { return inner_->AllReduceSum(data); });
  }
  absl::Status AllReduceSum(absl::Span<int64_t> data) override {
    return Run("all_reduce", Bytes(data),
               [&] { return inner_->AllReduceSum(data); });
  }
  absl::Status AllReduceMin(absl::Span<int64_t> data) override {
    return Run("all_reduce", Bytes(data),
               [&] { return inner_->AllReduceMin(data); });
  }
  absl::Status AllReduceMax(absl::Span<int64_t> data) override {
    return Run("all_reduce", Bytes(data),
               [&] { return inner_->AllReduceMax(data); });
  }
  absl::Status AllGather(absl::Span<const float> send,
                         absl::Span<float> recv) override {
    return Run("all_gather", Bytes(send),
               [&] { return inner_->AllGather(send, recv); });
  }
  absl::Status ReduceScatterSum(absl::Span<const float> send,
                                absl::Span<float> recv) override {
    return Run("reduce_scatter", Bytes(send),
               [&] { return inner_->ReduceScatterSum(send, recv); });
  }
  absl::Status Broadcast(absl::Span<float> data, int root) override {
    return Run("broadcast", root == rank() ? Bytes(data) : 0,
               [&] { return inner_->Broadcast(data, root); });
  }
  absl::Status AllToAllV(absl::Span<const float> send,
                         absl::Span<const int64_t> send_counts,
                         absl::Span<float> recv,
                         absl::Span<const int64_t> recv_counts) override {
    return Run("all_to_all", Bytes(send), [&] {
      return inner_->AllToAllV(send, send_counts, recv, recv_counts);
    });
  }
  absl::Status AllToAllV(absl::Span<const int64_t> send,
                         absl::Span<const int64_t> send_counts,
                         absl::Span<int64_t> recv,
                         absl::Span<const int64_t> recv_counts) override {
    return Run("all_to_all", Bytes(send), [&] {
      return inner_->AllToAllV(send, send_counts, recv, recv_counts);
    });
  }
  absl::Status Barrier() override {
    return Run("barrier", 0, [&] { return inner_->Barrier(); });
  }
  absl::StatusOr<std::unique_ptr<Communicator>> Split(int color,
                                                      int key) override {
    std::unique_ptr<Communicator> part;
    CADRE_RETURN_IF_ERROR(Run("barrier", 0, [&]() -> absl::Status {
      CADRE_ASSIGN_OR_RETURN(part, inner_->Split(color, key));
      return absl::OkStatus();
    }));
    return MeterCollectives(std::move(part), observer_);
  }
  void OrderBehind(void* stream) override { inner_->OrderBehind(stream); }
  void Abort() override { inner_->Abort(); }

 private:
  template <typename Call>
  absl::Status Run(const char* op, int64_t bytes, Call call) {
    const auto begin = std::chrono::steady_clock::now();
    const absl::Status status = call();
    observer_->OnCollective(
        op, bytes,
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin)
            .count());
    return status;
  }

  const std::unique_ptr<Communicator> inner_;
  CollectiveObserver* const observer_;
};

}  // namespace

std::unique_ptr<Communicator> MeterCollectives(
    std::unique_ptr<Communicator> communicator, CollectiveObserver* observer) {
  return std::make_unique<MeteredCommunicator>(std::move(communicator),
                                               observer);
}

}  // namespace cadre
