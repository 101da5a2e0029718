#include "worker/comm/local_communicator.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <numeric>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "worker/comm/arguments.h"
#include "worker/comm/monotonic_wait.h"
#include "worker/comm/peer_failure.h"
#include "worker/comm/reduce.h"

namespace cadre {
namespace {

class LocalGroup;

// What one rank brings to one call.
struct Contribution {
  std::string call;  // name and sizes; must be equal on all ranks
  std::vector<char> bytes;
  std::vector<int64_t> numbers;       // AllToAllV counts, Split color and key
  std::shared_ptr<LocalGroup> group;  // Split: the leader's new group
};
using Contributions = std::vector<std::shared_ptr<const Contribution>>;

// The meeting point of the ranks: the n-th call of every rank is round n.
// std::mutex, not absl::Mutex: ThreadSanitizer cannot see into the latter.
class LocalGroup {
 public:
  // `names`: what errors call the ranks.
  LocalGroup(std::vector<int> names, absl::Duration timeout)
      : names_(std::move(names)),
        timeout_(timeout),
        rounds_done_(names_.size(), 0),
        gone_(names_.size(), false) {}

  int size() const { return static_cast<int>(gone_.size()); }
  absl::Duration timeout() const { return timeout_; }
  int name(int rank) const { return names_[rank]; }

  // Brings a contribution, waits for those of all ranks and returns them.
  absl::StatusOr<Contributions> Exchange(int rank, Contribution mine) {
    std::unique_lock<std::mutex> lock(mutex_);
    const int64_t round_number = rounds_done_[rank]++;
    Round& round = rounds_[round_number];
    if (round.parts.empty()) round.parts.resize(size());
    const std::string call = mine.call;
    round.parts[rank] = std::make_shared<const Contribution>(std::move(mine));
    ++round.arrived;
    if (round.arrived == size()) changed_.notify_all();
    absl::Status alive;
    const bool done = WaitUntil(changed_, lock, DeadlineAfter(timeout_), [&] {
      if (round.arrived == size()) return true;
      alive = CheckAlive(call, round);
      return !alive.ok();
    });
    CADRE_RETURN_IF_ERROR(alive);
    if (!done) {
      const int missing = names_[Missing(round)];
      return WithFailedPeer(absl::DeadlineExceededError(absl::StrCat(
                                call, ": rank ", missing, " was silent for ",
                                absl::FormatDuration(timeout_))),
                            missing);
    }
    if (!aborted_by_.empty()) return absl::AbortedError(aborted_by_);
    Contributions parts = round.parts;
    if (++round.taken == size()) rounds_.erase(round_number);
    for (int r = 0; r < size(); ++r) {
      if (parts[r]->call != call) {
        return absl::InternalError(
            absl::StrCat("ranks disagree on collective ", round_number,
                         ": rank ", names_[rank], " calls ", call, ", rank ",
                         names_[r], " calls ", parts[r]->call));
      }
    }
    return parts;
  }

  void Abort(int rank) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (aborted_by_.empty()) {
      aborted_by_ =
          absl::StrCat("collectives were aborted by rank ", names_[rank]);
    }
    changed_.notify_all();
  }

  void Leave(int rank) {
    std::lock_guard<std::mutex> lock(mutex_);
    gone_[rank] = true;
    changed_.notify_all();
  }

 private:
  struct Round {
    Contributions parts;
    int arrived = 0;
    int taken = 0;
  };

  // Requires mutex_.
  absl::Status CheckAlive(const std::string& call, const Round& round) const {
    if (!aborted_by_.empty()) return absl::AbortedError(aborted_by_);
    for (int r = 0; r < size(); ++r) {
      if (gone_[r] && round.parts[r] == nullptr) {
        return WithFailedPeer(absl::UnavailableError(absl::StrCat(
                                  call, ": rank ", names_[r], " is gone")),
                              names_[r]);
      }
    }
    return absl::OkStatus();
  }
  static int Missing(const Round& round) {
    const auto at = std::find(round.parts.begin(), round.parts.end(), nullptr);
    return static_cast<int>(at - round.parts.begin());
  }

  const std::vector<int> names_;
  const absl::Duration timeout_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int64_t, Round> rounds_;
  std::vector<int64_t> rounds_done_;
  std::vector<bool> gone_;
  std::string aborted_by_;
};

template <typename T>
std::vector<char> ToBytes(absl::Span<const T> data) {
  const char* begin = reinterpret_cast<const char*>(data.data());
  return std::vector<char>(begin, begin + data.size() * sizeof(T));
}
template <typename T>
const T* FromBytes(const Contribution& part) {
  return reinterpret_cast<const T*>(part.bytes.data());
}

class LocalCommunicator final : public Communicator {
 public:
  LocalCommunicator(std::shared_ptr<LocalGroup> group, int rank)
      : group_(std::move(group)), rank_(rank) {}
  ~LocalCommunicator() override { group_->Leave(rank_); }

  int rank() const override { return rank_; }
  int size() const override { return group_->size(); }

  absl::Status AllReduceSum(absl::Span<float> data) override {
    return AllReduce("AllReduceSum", ReduceOp::kSum, data);
  }
  absl::Status AllReduceSum(absl::Span<double> data) override {
    return AllReduce("AllReduceSum", ReduceOp::kSum, data);
  }
  absl::Status AllReduceSum(absl::Span<int64_t> data) override {
    return AllReduce("AllReduceSum", ReduceOp::kSum, data);
  }
  absl::Status AllReduceMin(absl::Span<int64_t> data) override {
    return AllReduce("AllReduceMin", ReduceOp::kMin, data);
  }
  absl::Status AllReduceMax(absl::Span<int64_t> data) override {
    return AllReduce("AllReduceMax", ReduceOp::kMax, data);
  }

  absl::Status AllGather(absl::Span<const float> send,
                         absl::Span<float> recv) override {
    CADRE_RETURN_IF_ERROR(
        CheckParts("AllGather", recv.size(), send.size(), size()));
    CADRE_ASSIGN_OR_RETURN(
        const Contributions parts,
        group_->Exchange(rank_,
                         {.call = absl::StrCat("AllGather(", send.size(), ")"),
                          .bytes = ToBytes(send)}));
    float* out = recv.data();
    for (const auto& part : parts) {
      out = std::copy_n(FromBytes<float>(*part), send.size(), out);
    }
    return absl::OkStatus();
  }

  absl::Status ReduceScatterSum(absl::Span<const float> send,
                                absl::Span<float> recv) override {
    CADRE_RETURN_IF_ERROR(
        CheckParts("ReduceScatterSum", send.size(), recv.size(), size()));
    CADRE_ASSIGN_OR_RETURN(
        const Contributions parts,
        group_->Exchange(
            rank_, {.call = absl::StrCat("ReduceScatterSum(", recv.size(), ")"),
                    .bytes = ToBytes(send)}));
    const int64_t n = recv.size();
    std::copy_n(FromBytes<float>(*parts[0]) + rank_ * n, n, recv.data());
    for (int r = 1; r < size(); ++r) {
      Combine(ReduceOp::kSum, recv.data(),
              FromBytes<float>(*parts[r]) + rank_ * n, n);
    }
    return absl::OkStatus();
  }

  absl::Status Broadcast(absl::Span<float> data, int root) override {
    CADRE_RETURN_IF_ERROR(CheckRoot("Broadcast", root, size()));
    Contribution mine{
        .call = absl::StrCat("Broadcast(", data.size(), ", root ", root, ")")};
    if (rank_ == root) mine.bytes = ToBytes<float>(data);
    CADRE_ASSIGN_OR_RETURN(const Contributions parts,
                           group_->Exchange(rank_, std::move(mine)));
    if (rank_ != root) {
      std::copy_n(FromBytes<float>(*parts[root]), data.size(), data.data());
    }
    return absl::OkStatus();
  }

  absl::Status AllToAllV(absl::Span<const float> send,
                         absl::Span<const int64_t> send_counts,
                         absl::Span<float> recv,
                         absl::Span<const int64_t> recv_counts) override {
    return AllToAll(send, send_counts, recv, recv_counts);
  }
  absl::Status AllToAllV(absl::Span<const int64_t> send,
                         absl::Span<const int64_t> send_counts,
                         absl::Span<int64_t> recv,
                         absl::Span<const int64_t> recv_counts) override {
    return AllToAll(send, send_counts, recv, recv_counts);
  }

  absl::Status Barrier() override {
    return group_->Exchange(rank_, {.call = "Barrier"}).status();
  }

  absl::StatusOr<std::unique_ptr<Communicator>> Split(int color,
                                                      int key) override {
    CADRE_ASSIGN_OR_RETURN(
        const Contributions wishes,
        group_->Exchange(rank_, {.call = "Split", .numbers = {color, key}}));
    std::vector<std::pair<int64_t, int>> members;  // (key, rank)
    for (int r = 0; r < size(); ++r) {
      if (wishes[r]->numbers[0] == color) {
        members.push_back({wishes[r]->numbers[1], r});
      }
    }
    std::sort(members.begin(), members.end());
    Contribution mine{.call = "Split, second round"};
    const int leader = members[0].second;
    if (leader == rank_) {
      std::vector<int> names;
      for (const auto& [unused, rank] : members) {
        names.push_back(group_->name(rank));
      }
      mine.group =
          std::make_shared<LocalGroup>(std::move(names), group_->timeout());
    }
    CADRE_ASSIGN_OR_RETURN(const Contributions groups,
                           group_->Exchange(rank_, std::move(mine)));
    const auto at = std::find_if(
        members.begin(), members.end(),
        [this](const auto& member) { return member.second == rank_; });
    return std::make_unique<LocalCommunicator>(
        groups[leader]->group, static_cast<int>(at - members.begin()));
  }

  void Abort() override { group_->Abort(rank_); }

 private:
  template <typename T>
  absl::Status AllReduce(const char* call, ReduceOp op, absl::Span<T> data) {
    CADRE_ASSIGN_OR_RETURN(
        const Contributions parts,
        group_->Exchange(
            rank_,
            {.call = absl::StrCat(call, "(", data.size(), " x ", sizeof(T),
                                  " bytes)"),
             .bytes = size() == 1 ? std::vector<char>() : ToBytes<T>(data)}));
    if (size() == 1) return absl::OkStatus();
    const int64_t n = data.size();
    std::copy_n(FromBytes<T>(*parts[0]), n, data.data());
    for (int r = 1; r < size(); ++r) {
      Combine(op, data.data(), FromBytes<T>(*parts[r]), n);
    }
    return absl::OkStatus();
  }

  template <typename T>
  absl::Status AllToAll(absl::Span<const T> send,
                        absl::Span<const int64_t> send_counts,
                        absl::Span<T> recv,
                        absl::Span<const int64_t> recv_counts) {
    CADRE_RETURN_IF_ERROR(CheckAllToAll(send.size(), send_counts, recv.size(),
                                        recv_counts, rank_, size()));
    CADRE_ASSIGN_OR_RETURN(
        const Contributions parts,
        group_->Exchange(
            rank_, {.call = absl::StrCat("AllToAllV of ", sizeof(T), " bytes"),
                    .bytes = ToBytes(send),
                    .numbers = {send_counts.begin(), send_counts.end()}}));
    T* out = recv.data();
    for (int s = 0; s < size(); ++s) {
      const std::vector<int64_t>& counts = parts[s]->numbers;
      if (counts[rank_] != recv_counts[s]) {
        return absl::InternalError(absl::StrCat(
            "AllToAllV: rank ", s, " sends ", counts[rank_],
            " elements to rank ", rank_, ", which expects ", recv_counts[s]));
      }
      const T* part = FromBytes<T>(*parts[s]);
      for (int d = 0; d < rank_; ++d) part += counts[d];
      out = std::copy_n(part, counts[rank_], out);
    }
    return absl::OkStatus();
  }

  const std::shared_ptr<LocalGroup> group_;
  const int rank_;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> CreateLocalCommunicators(
    int size, const LocalCommunicatorOptions& options) {
  CADRE_CHECK(size >= 1) << size;
  std::vector<int> names(size);
  std::iota(names.begin(), names.end(), 0);
  auto group = std::make_shared<LocalGroup>(std::move(names), options.timeout);
  std::vector<std::unique_ptr<Communicator>> ranks;
  for (int r = 0; r < size; ++r) {
    ranks.push_back(std::make_unique<LocalCommunicator>(group, r));
  }
  return ranks;
}

}  // namespace cadre
