#include "worker/comm/counting_communicator.h"

#include <utility>

#include "base/status_macros.h"

namespace cadre {
namespace {

class Counted final : public Communicator {
 public:
  Counted(std::unique_ptr<Communicator> inner, std::atomic<int64_t>* counter)
      : inner_(std::move(inner)), counter_(counter) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  absl::Status AllReduceSum(absl::Span<float> data) override {
    return Count([&] { return inner_->AllReduceSum(data); });
  }
  absl::Status AllReduceSum(absl::Span<double> data) override {
    return Count([&] { return inner_->AllReduceSum(data); });
  }
  absl::Status AllReduceSum(absl::Span<int64_t> data) override {
    return Count([&] { return inner_->AllReduceSum(data); });
  }
  absl::Status AllReduceMin(absl::Span<int64_t> data) override {
    return Count([&] { return inner_->AllReduceMin(data); });
  }
  absl::Status AllReduceMax(absl::Span<int64_t> data) override {
    return Count([&] { return inner_->AllReduceMax(data); });
  }
  absl::Status AllGather(absl::Span<const float> send,
                         absl::Span<float> recv) override {
    return Count([&] { return inner_->AllGather(send, recv); });
  }
  absl::Status ReduceScatterSum(absl::Span<const float> send,
                                absl::Span<float> recv) override {
    return Count([&] { return inner_->ReduceScatterSum(send, recv); });
  }
  absl::Status Broadcast(absl::Span<float> data, int root) override {
    return Count([&] { return inner_->Broadcast(data, root); });
  }
  absl::Status AllToAllV(absl::Span<const float> send,
                         absl::Span<const int64_t> send_counts,
                         absl::Span<float> recv,
                         absl::Span<const int64_t> recv_counts) override {
    return Count([&] {
      return inner_->AllToAllV(send, send_counts, recv, recv_counts);
    });
  }
  absl::Status AllToAllV(absl::Span<const int64_t> send,
                         absl::Span<const int64_t> send_counts,
                         absl::Span<int64_t> recv,
                         absl::Span<const int64_t> recv_counts) override {
    return Count([&] {
      return inner_->AllToAllV(send, send_counts, recv, recv_counts);
    });
  }
  absl::Status Barrier() override {
    return Count([&] { return inner_->Barrier(); });
  }
  absl::StatusOr<std::unique_ptr<Communicator>> Split(int color,
                                                      int key) override {
    counter_->fetch_add(1, std::memory_order_relaxed);
    CADRE_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> part,
                           inner_->Split(color, key));
    counter_->fetch_add(1, std::memory_order_relaxed);
    return CountCollectives(std::move(part), counter_);
  }
  void OrderBehind(void* stream) override { inner_->OrderBehind(stream); }
  void Abort() override { inner_->Abort(); }

 private:
  template <typename Call>
  absl::Status Count(Call call) {
    counter_->fetch_add(1, std::memory_order_relaxed);
    absl::Status status = call();
    counter_->fetch_add(1, std::memory_order_relaxed);
    return status;
  }

  const std::unique_ptr<Communicator> inner_;
  std::atomic<int64_t>* const counter_;
};

}  // namespace

std::unique_ptr<Communicator> CountCollectives(
    std::unique_ptr<Communicator> communicator, std::atomic<int64_t>* counter) {
  return std::make_unique<Counted>(std::move(communicator), counter);
}

}  // namespace cadre
