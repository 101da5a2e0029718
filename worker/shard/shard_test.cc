// Who owns what, and how gradients and values travel, on ranks that are
// threads.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/status_matchers.h"
#include "worker/comm/local_communicator.h"
#include "worker/model/dense_units.h"
#include "worker/shard/mesh_communicators.h"
#include "worker/shard/model_shards.h"
#include "worker/shard/owned_slice.h"
#include "worker/shard/parameter_gather.h"
#include "worker/shard/parameter_lane.h"

namespace cadre {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;

void OnRanks(const MeshSpec& spec,
             const std::function<void(const MeshCommunicators&)>& body) {
  auto world = CreateLocalCommunicators(spec.world_size);
  std::vector<std::thread> threads;
  for (auto& rank : world) {
    threads.emplace_back([&] {
      ASSERT_OK_AND_ASSIGN(const Mesh mesh, Mesh::Create(spec));
      ASSERT_OK_AND_ASSIGN(const auto communicators,
                           MeshCommunicators::Create(mesh, std::move(rank)));
      body(*communicators);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

std::string Text(const std::vector<Stretch>& stretches) {
  std::string out;
  for (const Stretch& s : stretches) {
    out += std::to_string(s.begin) + "+" + std::to_string(s.size) + "@" +
           std::to_string(s.global_begin) + " ";
  }
  return out;
}

TEST(OwnedSliceTest, StretchesFollowTheRowsOfTheWholeTensor) {
  float values[12];
  Parameter p{.name = "experts",
              .global_shape = {8, 3},
              .value = Tensor(values, DType::kF32, {4, 3})};
  const auto slice = [&](int64_t begin, int64_t end) {
    return OwnedSlice{.parameter = &p, .begin = begin, .end = end};
  };
  EXPECT_EQ(Text(HomeStretches(slice(2, 7))), "0+5@2 ");
  // Experts 5, 6 and a spare copy of 1, then an empty slot.
  p.rows = {
      {.index = 5}, {.index = 6}, {.index = 1, .home = false}, {.index = -1}};
  EXPECT_EQ(Text(HomeStretches(slice(0, 12))), "0+6@15 ");
  EXPECT_EQ(Text(StretchesOf(slice(0, 12))), "0+6@15 6+3@3 ");
  EXPECT_EQ(Text(StretchesOf(slice(4, 8))), "0+2@19 2+2@3 ");
  EXPECT_EQ(Text(HomeStretches(slice(6, 9))), "");
}

TEST(MeshCommunicatorsTest, GroupsAreThoseOfTheMesh) {
  OnRanks(
      {.world_size = 4, .fsdp_shard_group_size = 2, .expert_parallel_size = 4},
      [](const MeshCommunicators& all) {
        const int rank = all.world()->rank();
        EXPECT_EQ(all.group(MeshGroup::kShard)->size(), 2);
        EXPECT_EQ(all.group(MeshGroup::kShard)->rank(), rank % 2);
        EXPECT_EQ(all.group(MeshGroup::kReplica)->rank(), rank / 2);
        EXPECT_EQ(all.group(MeshGroup::kExpertParallel), all.world());
        EXPECT_EQ(all.group(MeshGroup::kExpertReplica), nullptr);
        // Threads of their own never share.
        EXPECT_NE(all.gather(), all.group(MeshGroup::kShard));
        EXPECT_NE(all.dispatch(), all.world());
        EXPECT_EQ(all.dispatch()->size(), 4);
      });
}

// Records in which order the world is split.
class SplitRecorder : public Communicator {
 public:
  explicit SplitRecorder(int size, int rank, std::vector<std::string>* log)
      : size_(size), rank_(rank), log_(log) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  absl::StatusOr<std::unique_ptr<Communicator>> Split(int color,
                                                      int key) override {
    log_->push_back(std::to_string(color) + "." + std::to_string(key));
    return std::make_unique<SplitRecorder>(1, 0, log_);
  }
  void Abort() override {}
  absl::Status AllReduceSum(absl::Span<float>) override { return {}; }
  absl::Status AllReduceSum(absl::Span<double>) override { return {}; }
  absl::Status AllReduceSum(absl::Span<int64_t>) override { return {}; }
  absl::Status AllReduceMin(absl::Span<int64_t>) override { return {}; }
  absl::Status AllReduceMax(absl::Span<int64_t>) override { return {}; }
  absl::Status AllGather(absl::Span<const float>, absl::Span<float>) override {
    return {};
  }
  absl::Status ReduceScatterSum(absl::Span<const float>,
                                absl::Span<float>) override {
    return {};
  }
  absl::Status Broadcast(absl::Span<float>, int) override { return {}; }
  absl::Status AllToAllV(absl::Span<const float>, absl::Span<const int64_t>,
                         absl::Span<float>,
                         absl::Span<const int64_t>) override {
    return {};
  }
  absl::Status AllToAllV(absl::Span<const int64_t>, absl::Span<const int64_t>,
                         absl::Span<int64_t>,
                         absl::Span<const int64_t>) override {
    return {};
  }
  absl::Status Barrier() override { return {}; }

 private:
  const int size_, rank_;
  std::vector<std::string>* const log_;
};

TEST(MeshCommunicatorsTest, EveryRankSplitsInTheDocumentedOrder) {
  ASSERT_OK_AND_ASSIGN(const Mesh mesh,
                       Mesh::Create({.world_size = 8,
                                     .fsdp_shard_group_size = 2,
                                     .expert_parallel_size = 4}));
  for (int rank = 0; rank < 8; ++rank) {
    std::vector<std::string> log;
    ASSERT_OK(MeshCommunicators::Create(
        mesh, std::make_unique<SplitRecorder>(8, rank, &log)));
    const auto entry = [](int color, int key) {
      return std::to_string(color) + "." + std::to_string(key);
    };
    const int shard = rank % 2, replica = rank / 2, ep = rank % 4,
              edp = rank / 4;
    // Shard, replica, expert parallel, expert replica, gather, dispatch.
    EXPECT_THAT(log, ElementsAre(entry(replica, shard), entry(shard, replica),
                                 entry(edp, ep), entry(ep, edp),
                                 entry(replica, shard), entry(edp, ep)));
  }
}

TEST(ParameterLaneTest, SumsIntoSlicesAndSharesValues) {
  OnRanks(
      {.world_size = 4, .fsdp_shard_group_size = 2},
      [](const MeshCommunicators& all) {
        const int rank = all.world()->rank();
        std::vector<float> a(21), b(30), ga(21), gb(30);
        for (int i = 0; i < 21; ++i) ga[i] = 100.0f * rank + i;
        for (int i = 0; i < 30; ++i) gb[i] = 100.0f * rank + 21 + i;
        Parameter pa{.name = "a",
                     .trainable = true,
                     .value = Tensor(a.data(), DType::kF32, {3, 7}),
                     .grad = Tensor(ga.data(), DType::kF32, {3, 7})};
        Parameter pb{.name = "b",
                     .trainable = true,
                     .value = Tensor(b.data(), DType::kF32, {30}),
                     .grad = Tensor(gb.data(), DType::kF32, {30})};
        // Pieces far smaller than the lane.
        ASSERT_OK_AND_ASSIGN(
            ParameterLane lane,
            ParameterLane::Create({}, {&pa, &pb},
                                  {.slices = all.group(MeshGroup::kShard),
                                   .copies = all.group(MeshGroup::kReplica)},
                                  /*max_elements=*/40));
        ASSERT_OK(lane.ReduceGradients());
        int64_t owned = 0;
        for (const OwnedSlice& slice : lane.Owned()) {
          const int64_t first = slice.parameter == &pa ? 0 : 21;
          for (int64_t i = 0; i < slice.size(); ++i) {
            const float expected =
                600.0f + 4.0f * static_cast<float>(first + slice.begin + i);
            EXPECT_EQ(slice.grad().data<float>()[i], expected);
            slice.value().data<float>()[i] = expected;
          }
          owned += slice.size();
        }
        EXPECT_EQ(owned, all.group(MeshGroup::kShard)->rank() == 0 ? 32 : 19);
        ASSERT_OK(lane.GatherValues());
        for (int i = 0; i < 21; ++i) EXPECT_EQ(a[i], 600.0f + 4.0f * i);
        for (int i = 0; i < 30; ++i) EXPECT_EQ(b[i], 600.0f + 4.0f * (21 + i));
      });
}

// Two units over two shards and two replicas: life of a step.
TEST(ModelShardsTest, UnitsAreGatheredForUseAndReducedBehindIt) {
  OnRanks(
      {.world_size = 4, .fsdp_shard_group_size = 2},
      [](const MeshCommunicators& all) {
        const int rank = all.world()->rank();
        ParameterRegistry registry;
        DenseUnits units({}, {.num_shards = 2, .shard = rank % 2});
        for (int u = 0; u < 2; ++u) {
          Parameter* trained =
              registry.Add({.name = "w" + std::to_string(u),
                            .trainable = true,
                            .value = Tensor(nullptr, DType::kF32, {40}),
                            .grad = Tensor(nullptr, DType::kF32, {40})});
          Parameter* frozen =
              registry.Add({.name = "f" + std::to_string(u),
                            .value = Tensor(nullptr, DType::kF32, {5})});
          ASSERT_OK(units.Add("unit", {trained, frozen}));
          std::vector<float> whole(40);
          for (int i = 0; i < 40; ++i) whole[i] = 1000.0f * u + i;
          ASSERT_OK(
              units.Store(*trained, Tensor(whole.data(), DType::kF32, {40})));
          ASSERT_OK(
              units.Store(*frozen, Tensor(whole.data(), DType::kF32, {5})));
        }
        ASSERT_OK_AND_ASSIGN(const auto shards,
                             ModelShards::Create({}, &registry, &units, &all));
        ASSERT_OK(shards->ZeroGradients());
        const std::vector<UnitStep> pass = {{0, UnitUse::kValues},
                                            {1, UnitUse::kValuesAndGradients},
                                            {0, UnitUse::kGradients}};
        for (int micro = 0; micro < 2; ++micro) {
          ASSERT_OK(shards->units()->BeginPass(pass));
          for (const UnitStep& step : pass) {
            ASSERT_OK(shards->units()->Acquire());
            const Parameter& p = *registry.all()[2 * step.unit];
            if (step.use != UnitUse::kGradients) {
              for (int i = 0; i < 40; ++i) {
                ASSERT_EQ(p.value.data<float>()[i], 1000.0f * step.unit + i);
              }
              EXPECT_EQ(registry.all()[2 * step.unit + 1]->value.span<float>(),
                        p.value.span<float>().subspan(0, 5));
            }
            if (step.use != UnitUse::kValues) {
              for (int i = 0; i < 40; ++i) {
                ASSERT_EQ(p.grad.data<float>()[i], 0);
                p.grad.data<float>()[i] =
                    static_cast<float>(i * (rank + 1) * (step.unit + 1));
              }
            }
            ASSERT_OK(shards->units()->Release());
            EXPECT_EQ(p.value.raw(), nullptr);
            EXPECT_EQ(p.value.num_elements(), 40);
          }
        }
        ASSERT_OK(shards->ReduceGradients());
        int64_t owned = 0;
        for (const OwnedSlice& slice : shards->owned()) {
          const int unit = slice.parameter->unit;
          for (int64_t i = 0; i < slice.size(); ++i) {
            // Two micro-batches, ranks count 1 + 2 + 3 + 4.
            EXPECT_EQ(
                slice.grad().data<float>()[i],
                static_cast<float>(2 * 10 * (slice.begin + i) * (unit + 1)));
          }
          EXPECT_EQ(slice.counted, rank < 2);
          owned += slice.size();
        }
        // Offsets: w 0-39, f from 64; slices of 64.
        EXPECT_EQ(owned, rank % 2 == 0 ? 80 : 0);

        ParameterGather gather({}, &registry, &units, &all);
        if (rank != 0) {
          ASSERT_OK(gather.Serve());
        } else {
          std::vector<float> out(20), expected(20);
          for (int i = 0; i < 20; ++i) expected[i] = 1007.0f + i;
          EXPECT_OK(gather.Fetch(*registry.all()[2], 7, absl::MakeSpan(out)));
          ASSERT_OK(gather.Finish());
          EXPECT_THAT(out, ElementsAreArray(expected));
        }
      });
}

TEST(ModelShardsTest, AnEarlyEndOfAPassIsGivenUp) {
  OnRanks(
      {.world_size = 2, .fsdp_shard_group_size = 2},
      [](const MeshCommunicators& all) {
        ParameterRegistry registry;
        DenseUnits units({}, {.num_shards = 2, .shard = all.world()->rank()});
        Parameter* p = registry.Add(
            {.name = "w", .value = Tensor(nullptr, DType::kF32, {3})});
        ASSERT_OK(units.Add("unit", {p}));
        ASSERT_OK_AND_ASSIGN(const auto shards,
                             ModelShards::Create({}, &registry, &units, &all));
        const std::vector<UnitStep> pass(3, UnitStep{});
        for (int i = 0; i < 3; ++i) {
          ASSERT_OK(shards->units()->BeginPass(pass));
          ASSERT_OK(shards->units()->Acquire());
        }
      });
}

}  // namespace
}  // namespace cadre
