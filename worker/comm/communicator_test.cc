// One suite for every host communicator: what communicator.h promises. Ranks
// are threads; Gloo's meet through sockets on loopback.

#include "worker/comm/communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <functional>
#include <future>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "worker/comm/counting_communicator.h"
#include "worker/comm/gloo_communicator.h"
#include "worker/comm/local_communicator.h"
#include "worker/comm/peer_failure.h"
#include "worker/comm/rendezvous_store.h"

namespace cadre {
namespace {

using ::cadre::testing::StatusIs;
using ::testing::AnyOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

MATCHER_P(HasCode, code, "") {
  *result_listener << arg.ToString();
  return ::testing::ExplainMatchResult(code, arg.code(), result_listener);
}

using RankBody = std::function<absl::Status(Communicator&)>;

std::vector<std::unique_ptr<Communicator>> Connect(const std::string& kind,
                                                   int size,
                                                   absl::Duration timeout) {
  if (kind == "local") {
    return CreateLocalCommunicators(size, {.timeout = timeout});
  }
  InMemoryStore store;
  std::vector<std::unique_ptr<Communicator>> ranks(size);
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r) {
    threads.emplace_back([&, r] {
      auto made = CreateGlooCommunicator({.rank = r,
                                          .size = size,
                                          .bind_address = "127.0.0.1",
                                          .key_prefix = "test/",
                                          .timeout = timeout},
                                         &store);
      EXPECT_OK(made);
      if (made.ok()) ranks[r] = *std::move(made);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return ranks;
}

// Runs body on every rank; a rank's communicator lives until all are done.
std::vector<absl::Status> RunAll(
    std::vector<std::unique_ptr<Communicator>>& ranks, const RankBody& body) {
  std::vector<absl::Status> statuses(ranks.size());
  std::vector<std::thread> threads;
  for (size_t r = 0; r < ranks.size(); ++r) {
    threads.emplace_back([&, r] { statuses[r] = body(*ranks[r]); });
  }
  for (std::thread& thread : threads) thread.join();
  return statuses;
}

// Rounding differs with the order of addition, so == sees a wrong order.
float Value(int rank, int64_t i) {
  return std::sin(static_cast<float>(i) * 0.37f + static_cast<float>(rank)) *
         std::pow(10.0f, static_cast<float>((rank + i) % 5));
}

class CommunicatorTest
    : public ::testing::TestWithParam<std::tuple<std::string, int>> {
 protected:
  int size() const { return std::get<1>(GetParam()); }
  std::vector<std::unique_ptr<Communicator>> Connected(
      absl::Duration timeout = absl::Seconds(30)) {
    return Connect(std::get<0>(GetParam()), size(), timeout);
  }
  void ExpectOkOnAll(const RankBody& body) {
    auto ranks = Connected();
    EXPECT_THAT(RunAll(ranks, body), Each(cadre::testing::IsOk()));
  }
};

TEST_P(CommunicatorTest, AllReduceAddsInRankOrderOnEveryRank) {
  const int ranks = size();
  ExpectOkOnAll([ranks](Communicator& comm) {
    EXPECT_EQ(comm.size(), ranks);
    // One below, one above the size where Gloo changes the algorithm.
    for (int64_t n : {0, 1, 5, 4096, 4097, 20001}) {
      std::vector<float> got(n), want(n);
      std::vector<double> got_double(n), want_double(n);
      for (int64_t i = 0; i < n; ++i) {
        got[i] = Value(comm.rank(), i);
        got_double[i] = got[i] / 3.0;
        want[i] = Value(0, i);
        want_double[i] = Value(0, i) / 3.0;
        for (int r = 1; r < ranks; ++r) {
          want[i] += Value(r, i);
          want_double[i] += Value(r, i) / 3.0;
        }
      }
      CADRE_RETURN_IF_ERROR(comm.AllReduceSum(absl::MakeSpan(got)));
      CADRE_RETURN_IF_ERROR(comm.AllReduceSum(absl::MakeSpan(got_double)));
      EXPECT_EQ(got, want) << n;
      EXPECT_EQ(got_double, want_double) << n;
    }
    return absl::OkStatus();
  });
}

TEST_P(CommunicatorTest, IntegerReductions) {
  const int64_t n = size();
  ExpectOkOnAll([n](Communicator& comm) {
    const int64_t me = comm.rank();
    std::vector<int64_t> sum = {me, 1, int64_t{1} << 60}, min = {me, -me},
                         max = {me, -me};
    CADRE_RETURN_IF_ERROR(comm.AllReduceSum(absl::MakeSpan(sum)));
    CADRE_RETURN_IF_ERROR(comm.AllReduceMin(absl::MakeSpan(min)));
    CADRE_RETURN_IF_ERROR(comm.AllReduceMax(absl::MakeSpan(max)));
    EXPECT_THAT(sum, ElementsAre(n * (n - 1) / 2, n, n * (int64_t{1} << 60)));
    EXPECT_THAT(min, ElementsAre(0, 1 - n));
    EXPECT_THAT(max, ElementsAre(n - 1, 0));
    return absl::OkStatus();
  });
}

TEST_P(CommunicatorTest, GatherScatterAndBroadcast) {
  const int ranks = size();
  ExpectOkOnAll([ranks](Communicator& comm) {
    const int me = comm.rank();
    for (int64_t n : {0, 1, 7, 5000}) {
      std::vector<float> part(n), all(n * ranks), scattered(n), cast(n);
      for (int64_t i = 0; i < n; ++i) part[i] = Value(me, i);
      CADRE_RETURN_IF_ERROR(comm.AllGather(part, absl::MakeSpan(all)));
      for (int64_t i = 0; i < n * ranks; ++i) {
        EXPECT_EQ(all[i], Value(static_cast<int>(i / n), i % n));
      }
      std::vector<float> whole(n * ranks);
      for (int64_t i = 0; i < n * ranks; ++i) whole[i] = Value(me, i);
      CADRE_RETURN_IF_ERROR(
          comm.ReduceScatterSum(whole, absl::MakeSpan(scattered)));
      for (int64_t i = 0; i < n; ++i) {
        float want = Value(0, me * n + i);
        for (int r = 1; r < ranks; ++r) want += Value(r, me * n + i);
        EXPECT_EQ(scattered[i], want);
      }
      for (int root = 0; root < ranks; ++root) {
        for (int64_t i = 0; i < n; ++i) cast[i] = Value(me + 10, i);
        CADRE_RETURN_IF_ERROR(comm.Broadcast(absl::MakeSpan(cast), root));
        for (int64_t i = 0; i < n; ++i) EXPECT_EQ(cast[i], Value(root + 10, i));
      }
    }
    return comm.Barrier();
  });
}

// How many elements rank s sends to rank d; many parts are empty.
int64_t PartSize(int s, int d) { return (s * 3 + d * 5) % 4; }

template <typename T>
absl::Status ExchangeParts(Communicator& comm) {
  const int ranks = comm.size(), me = comm.rank();
  std::vector<int64_t> send_counts(ranks), recv_counts(ranks);
  std::vector<T> send, want;
  for (int peer = 0; peer < ranks; ++peer) {
    send_counts[peer] = PartSize(me, peer);
    recv_counts[peer] = PartSize(peer, me);
    for (int64_t i = 0; i < send_counts[peer]; ++i) {
      send.push_back(static_cast<T>(100 * me + 10 * peer + i));
    }
    for (int64_t i = 0; i < recv_counts[peer]; ++i) {
      want.push_back(static_cast<T>(100 * peer + 10 * me + i));
    }
  }
  std::vector<T> recv(want.size());
  CADRE_RETURN_IF_ERROR(comm.AllToAllV(absl::Span<const T>(send), send_counts,
                                       absl::MakeSpan(recv), recv_counts));
  EXPECT_EQ(recv, want);
  return absl::OkStatus();
}

TEST_P(CommunicatorTest, AllToAllWithEmptyParts) {
  ExpectOkOnAll([](Communicator& comm) {
    CADRE_RETURN_IF_ERROR(ExchangeParts<float>(comm));
    CADRE_RETURN_IF_ERROR(ExchangeParts<int64_t>(comm));
    const std::vector<int64_t> none(comm.size(), 0);
    return comm.AllToAllV(absl::Span<const float>(), none, absl::Span<float>(),
                          none);
  });
}

TEST_P(CommunicatorTest, WrongArgumentsAreRefusedBeforeAnythingIsSent) {
  ExpectOkOnAll([](Communicator& comm) {
    std::vector<float> two(2), odd(2 * comm.size() + 1);
    EXPECT_THAT(comm.AllGather(two, absl::MakeSpan(odd)),
                StatusIs(absl::StatusCode::kInvalidArgument));
    EXPECT_THAT(comm.Broadcast(absl::MakeSpan(two), comm.size()),
                StatusIs(absl::StatusCode::kInvalidArgument));
    const std::vector<int64_t> ones(comm.size(), 1);
    EXPECT_THAT(comm.AllToAllV(absl::Span<const float>(odd), ones,
                               absl::MakeSpan(two), ones),
                StatusIs(absl::StatusCode::kInvalidArgument));
    return comm.Barrier();
  });
}

TEST_P(CommunicatorTest, SplitsOrderByKeyThenRank) {
  const int ranks = size();
  ExpectOkOnAll([ranks](Communicator& comm) -> absl::Status {
    const int me = comm.rank();
    // Even and odd ranks; inside, the highest rank first.
    CADRE_ASSIGN_OR_RETURN(auto half, comm.Split(me % 2, -me));
    const int members = (ranks + 1 - me % 2) / 2;
    EXPECT_EQ(half->size(), members);
    EXPECT_EQ(half->rank(), members - 1 - me / 2);
    std::vector<float> mine = {static_cast<float>(me)}, all(members);
    CADRE_RETURN_IF_ERROR(half->AllGather(mine, absl::MakeSpan(all)));
    for (int i = 0; i < members; ++i) {
      EXPECT_EQ(all[i], 2 * (members - 1 - i) + me % 2);
    }
    CADRE_ASSIGN_OR_RETURN(auto alone, comm.Split(me, 0));
    EXPECT_EQ(alone->size(), 1);
    CADRE_RETURN_IF_ERROR(alone->Barrier());
    // The parent and a split of a split still work.
    CADRE_ASSIGN_OR_RETURN(auto again, half->Split(0, 0));
    EXPECT_EQ(again->rank(), half->rank());
    CADRE_RETURN_IF_ERROR(again->Barrier());
    return comm.Barrier();
  });
}

TEST_P(CommunicatorTest, AGoneRankIsNamed) {
  auto ranks = Connected();
  const int gone = size() - 1;
  ranks[gone].reset();
  ranks.pop_back();
  if (ranks.empty()) return;
  const auto statuses = RunAll(ranks, [](Communicator& comm) {
    std::vector<float> data(10000, 1.0f);
    absl::Status status = comm.AllReduceSum(absl::MakeSpan(data));
    comm.Abort();
    return status;
  });
  for (const absl::Status& status : statuses) {
    EXPECT_THAT(status, HasCode(AnyOf(absl::StatusCode::kUnavailable,
                                      absl::StatusCode::kAborted)));
  }
  int named = 0;
  for (const absl::Status& status : statuses) {
    named += absl::StrContains(status.message(), absl::StrCat("rank ", gone)) &&
             FailedPeer(status) == gone;
  }
  EXPECT_GT(named, 0) << statuses[0];
}

TEST_P(CommunicatorTest, ErrorsOfASplitNameTheRankOfTheWorld) {
  if (size() == 1) return;
  auto ranks = Connected();
  const auto statuses = RunAll(ranks, [](Communicator& comm) -> absl::Status {
    // Reversed: rank 0 is the last of the part.
    CADRE_ASSIGN_OR_RETURN(auto part, comm.Split(0, -comm.rank()));
    if (comm.rank() == 0) return absl::OkStatus();
    return part->Barrier();
  });
  int named = 0;
  for (const absl::Status& status : statuses) {
    named += absl::StrContains(status.message(), "rank 0 ");
  }
  EXPECT_GT(named, 0) << statuses.back();
}

TEST_P(CommunicatorTest, ASilentRankIsADeadline) {
  if (size() == 1) return;
  auto ranks = Connected(absl::Milliseconds(200));
  std::promise<void> given_up;
  std::atomic<int> waiting{size() - 1};
  const auto statuses = RunAll(ranks, [&](Communicator& comm) {
    if (comm.rank() == 0) {
      given_up.get_future().wait();  // alive, but takes no part
      return absl::OkStatus();
    }
    absl::Status status = comm.Barrier();
    if (--waiting == 0) given_up.set_value();
    return status;
  });
  int deadlines = 0;
  for (int r = 1; r < size(); ++r) {
    // The first to give up closes its connections: the others may see that.
    EXPECT_THAT(statuses[r], HasCode(AnyOf(absl::StatusCode::kDeadlineExceeded,
                                           absl::StatusCode::kUnavailable)));
    deadlines +=
        statuses[r].code() == absl::StatusCode::kDeadlineExceeded &&
        absl::StrContains(statuses[r].message(), "rank 0 was silent") &&
        FailedPeer(statuses[r]) == 0;
  }
  EXPECT_GT(deadlines, 0) << statuses[1];
}

TEST_P(CommunicatorTest, AbortFromAnotherThreadInterrupts) {
  if (size() == 1) return;
  auto ranks = Connected(absl::Minutes(10));
  std::promise<void> entered;
  std::thread aborter([&] {
    entered.get_future().wait();
    ranks[1]->Abort();
    ranks[1]->Abort();
  });
  std::atomic<bool> first{true};
  const auto statuses = RunAll(ranks, [&](Communicator& comm) {
    if (comm.rank() == 0) {  // keeps the others waiting until the abort
      absl::Status status;
      std::vector<float> data(1);
      aborter.join();
      return comm.AllReduceSum(absl::MakeSpan(data));
    }
    if (first.exchange(false)) entered.set_value();
    std::vector<float> data(100000, 1.0f);
    absl::Status status = comm.AllReduceSum(absl::MakeSpan(data));
    comm.Abort();
    return status;
  });
  EXPECT_THAT(statuses[1], StatusIs(absl::StatusCode::kAborted));
  for (const absl::Status& status : statuses) {
    EXPECT_THAT(status, HasCode(AnyOf(absl::StatusCode::kAborted,
                                      absl::StatusCode::kUnavailable)));
  }
  EXPECT_THAT(ranks[1]->Barrier(), StatusIs(absl::StatusCode::kAborted));
}

TEST_P(CommunicatorTest, CountsBeginningAndEndOfEachCall) {
  auto ranks = Connected();
  std::vector<std::atomic<int64_t>> counters(size());
  for (int r = 0; r < size(); ++r) {
    ranks[r] = CountCollectives(std::move(ranks[r]), &counters[r]);
  }
  EXPECT_THAT(RunAll(ranks,
                     [](Communicator& comm) -> absl::Status {
                       CADRE_RETURN_IF_ERROR(comm.Barrier());
                       CADRE_ASSIGN_OR_RETURN(auto part, comm.Split(0, 0));
                       return part->Barrier();
                     }),
              Each(cadre::testing::IsOk()));
  for (const auto& counter : counters) EXPECT_EQ(counter, 6);
}

INSTANTIATE_TEST_SUITE_P(All, CommunicatorTest,
                         ::testing::Combine(::testing::Values("local", "gloo"),
                                            ::testing::Values(1, 2, 3, 4)),
                         [](const auto& info) {
                           return absl::StrCat(std::get<0>(info.param),
                                               std::get<1>(info.param));
                         });

TEST(LocalCommunicator, DifferentCallsAreAnError) {
  auto ranks = CreateLocalCommunicators(2);
  const auto statuses = RunAll(ranks, [](Communicator& comm) {
    std::vector<float> data(3 + comm.rank());
    return comm.AllReduceSum(absl::MakeSpan(data));
  });
  EXPECT_THAT(statuses,
              Each(StatusIs(absl::StatusCode::kInternal,
                            HasSubstr("ranks disagree on collective"))));
}

TEST(GlooCommunicator, AMissingRankIsNamed) {
  InMemoryStore store;
  EXPECT_THAT(
      CreateGlooCommunicator({.rank = 0,
                              .size = 2,
                              .bind_address = "127.0.0.1",
                              .rendezvous_timeout = absl::Milliseconds(50)},
                             &store),
      StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("rank 1")));
}

TEST(GlooCommunicator, BadOptionsAreRefused) {
  InMemoryStore store;
  EXPECT_THAT(CreateGlooCommunicator({.rank = 2, .size = 2}, &store),
              StatusIs(absl::StatusCode::kInvalidArgument));
  for (const char* address : {"not an address", "192.0.2.1"}) {
    EXPECT_THAT(
        CreateGlooCommunicator({.rank = 0, .size = 2, .bind_address = address},
                               &store),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(address)));
  }
  EXPECT_THAT(CreateGlooCommunicator(
                  {.rank = 0, .size = 2, .interface = "none0"}, &store),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("none0")));
}

TEST(InMemoryStore, KeysAreSetOnceAndWaitedFor) {
  InMemoryStore store;
  std::thread setter([&] { EXPECT_OK(store.Set("a", "1")); });
  EXPECT_THAT(store.Get("a", absl::Seconds(30)).value(), "1");
  setter.join();
  EXPECT_OK(store.Set("a", "1"));
  EXPECT_THAT(store.Set("a", "2"),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("a")));
  EXPECT_THAT(store.Get("b", absl::Milliseconds(1)),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("b")));
  store.Abort();
  EXPECT_THAT(store.Get("a", absl::Seconds(30)),
              StatusIs(absl::StatusCode::kAborted));
}

}  // namespace
}  // namespace cadre
