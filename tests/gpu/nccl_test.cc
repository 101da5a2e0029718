// NcclCommunicator over all GPUs of the machine (at most 4), one thread each;
// with one GPU, a group of one.

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "base/status_matchers.h"
#include "tests/gpu/device_tensor.h"
#include "worker/comm/nccl_communicator.h"
#include "worker/comm/rendezvous_store.h"
#include "worker/device/device.h"

namespace cadre {
namespace {

using testing::Must;

struct Rank {
  Exec exec;
  std::unique_ptr<Communicator> world;
};

// Runs body(rank) on every GPU at once.
void OnEveryGpu(const std::function<void(Rank&)>& body) {
  std::vector<std::unique_ptr<Device>> devices;
  for (int i = 0; i < 4; ++i) {
    absl::StatusOr<std::unique_ptr<Device>> device = OpenCudaDevice(i);
    if (!device.ok()) {
      if (i == 0) {
        GTEST_SKIP() << "no GPU: " << std::string(device.status().message());
      }
      break;
    }
    devices.push_back(*std::move(device));
  }
  const int size = static_cast<int>(devices.size());
  InMemoryStore store;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      Must(devices[rank]->MakeCurrent());
      Rank self{.exec = devices[rank]->exec()};
      self.world = Must(CreateNcclCommunicator({.rank = rank,
                                                .size = size,
                                                .exec = self.exec,
                                                .key_prefix = "t/",
                                                .timeout = absl::Seconds(20)},
                                               &store));
      body(self);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(NcclTest, SumsHostAndDeviceMemory) {
  OnEveryGpu([](Rank& r) {
    const int size = r.world->size(), rank = r.world->rank();
    std::vector<int64_t> counts = {rank + 1, int64_t{1} << 40};
    EXPECT_OK(r.world->AllReduceSum(absl::MakeSpan(counts)));
    EXPECT_EQ(counts[0], size * (size + 1) / 2);
    EXPECT_EQ(counts[1], (int64_t{1} << 40) * size);
    EXPECT_OK(r.world->AllReduceMax(absl::MakeSpan(counts).first(1)));
    double loss = 0.5;
    EXPECT_OK(r.world->AllReduceSum(absl::MakeSpan(&loss, 1)));
    EXPECT_EQ(loss, 0.5 * size);

    const auto t = testing::Upload(r.exec, DType::kF32, {1000},
                                   std::vector<float>(1000, 1.0f + rank));
    EXPECT_OK(r.world->AllReduceSum(
        absl::MakeSpan(static_cast<float*>(t.view.raw()), 1000)));
    EXPECT_EQ(Must(ReadFloats(r.exec, t.view))[999], size * (size + 1) / 2.0f);
    EXPECT_OK(r.world->Barrier());
  });
}

TEST(NcclTest, GathersScattersAndExchanges) {
  OnEveryGpu([](Rank& r) {
    const int size = r.world->size(), rank = r.world->rank();
    const std::vector<float> mine(3, static_cast<float>(rank));
    std::vector<float> all(3 * size);
    EXPECT_OK(r.world->AllGather(mine, absl::MakeSpan(all)));
    for (int i = 0; i < 3 * size; ++i) EXPECT_EQ(all[i], i / 3);
    std::vector<float> part(3);
    EXPECT_OK(r.world->ReduceScatterSum(all, absl::MakeSpan(part)));
    EXPECT_EQ(part, std::vector<float>(3, static_cast<float>(rank * size)));
    std::vector<float> shared(2, static_cast<float>(rank));
    EXPECT_OK(r.world->Broadcast(absl::MakeSpan(shared), size - 1));
    EXPECT_EQ(shared[1], size - 1);
    // Rank r sends d + 1 values r to rank d, and nothing at all to itself but
    // where it is alone.
    std::vector<int64_t> send_counts, recv_counts, sent;
    for (int peer = 0; peer < size; ++peer) {
      const bool self = peer == rank && size > 1;
      send_counts.push_back(self ? 0 : peer + 1);
      recv_counts.push_back(self ? 0 : rank + 1);
      sent.insert(sent.end(), send_counts.back(), rank);
    }
    int64_t total = 0;
    for (int64_t n : recv_counts) total += n;
    std::vector<int64_t> got(total);
    EXPECT_OK(r.world->AllToAllV(sent, send_counts, absl::MakeSpan(got),
                                 recv_counts));
    size_t at = 0;
    for (int peer = 0; peer < size; ++peer) {
      for (int64_t i = 0; i < recv_counts[peer]; ++i) {
        EXPECT_EQ(got[at++], peer);
      }
    }
  });
}

TEST(NcclTest, SplitsAndAborts) {
  OnEveryGpu([](Rank& r) {
    auto alone = r.world->Split(r.world->rank(), 0);
    ASSERT_OK(alone);
    EXPECT_EQ((*alone)->size(), 1);
    float one = 1;
    EXPECT_OK((*alone)->AllReduceSum(absl::MakeSpan(&one, 1)));
    (*alone)->Abort();
    EXPECT_EQ((*alone)->Barrier().code(), absl::StatusCode::kAborted);
    EXPECT_OK(r.world->Barrier());
  });
}

}  // namespace
}  // namespace cadre
