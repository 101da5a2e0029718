#include "worker/comm/gloo_communicator.h"

#include <gloo/rendezvous/context.h>
#include <gloo/transport/device.h>
#include <gloo/transport/unbound_buffer.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <mutex>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker/comm/arguments.h"
#include "worker/comm/gloo_rendezvous.h"
#include "worker/comm/monotonic_wait.h"
#include "worker/comm/peer_failure.h"
#include "worker/comm/reduce.h"

namespace cadre {
namespace {

using Device = std::shared_ptr<gloo::transport::Device>;
using gloo_rendezvous::AddressBook;

// Below this size one direct exchange of everything beats two of blocks.
constexpr int64_t kDirectElements = 4096;

class GlooCommunicator final : public Communicator {
 public:
  // A rank alone needs no device.
  GlooCommunicator(int rank, int size, Device device, absl::Duration timeout,
                   absl::Duration rendezvous_timeout)
      : rank_(rank),
        size_(size),
        timeout_(timeout),
        rendezvous_timeout_(rendezvous_timeout),
        device_(std::move(device)),
        names_(size) {
    std::iota(names_.begin(), names_.end(), 0);
  }
  ~GlooCommunicator() override { Close(); }

  absl::Status Connect(AddressBook* book) {
    if (size_ == 1) return absl::OkStatus();
    try {
      context_ = std::make_shared<gloo::rendezvous::Context>(rank_, size_);
      context_->setTimeout(ToMilliseconds(rendezvous_timeout_));
      context_->connectFullMesh(*book, device_);
      return absl::OkStatus();
    } catch (const std::exception& e) {
      context_.reset();
      const std::string attempt =
          absl::StrCat("connecting rank ", rank_, " of ", size_);
      if (!book->status().ok()) return Annotate(book->status(), attempt);
      return absl::UnavailableError(absl::StrCat(attempt, ": ", e.what()));
    }
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

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
        CheckParts("AllGather", recv.size(), send.size(), size_));
    const int64_t n = send.size();
    std::copy_n(send.data(), n, recv.data() + rank_ * n);
    return Exchange("AllGather", [&](int peer) {
      return Pieces{Bytes(send.data(), n), Bytes(recv.data() + peer * n, n)};
    });
  }

  absl::Status ReduceScatterSum(absl::Span<const float> send,
                                absl::Span<float> recv) override {
    CADRE_RETURN_IF_ERROR(
        CheckParts("ReduceScatterSum", send.size(), recv.size(), size_));
    return ReduceBlock(
        "ReduceScatterSum", ReduceOp::kSum, send,
        [&](int rank) { return rank * int64_t(recv.size()); }, recv.data());
  }

  absl::Status Broadcast(absl::Span<float> data, int root) override {
    CADRE_RETURN_IF_ERROR(CheckRoot("Broadcast", root, size_));
    return Exchange("Broadcast", [&](int peer) {
      const Piece whole = Bytes(data.data(), data.size());
      if (rank_ == root) return Pieces{.send = whole};
      return peer == root ? Pieces{.recv = whole} : Pieces{};
    });
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
    char token = 0;
    std::vector<char> tokens(size_);
    return Exchange("Barrier", [&](int peer) {
      return Pieces{Bytes(&token, 1), Bytes(&tokens[peer], 1)};
    });
  }

  absl::StatusOr<std::unique_ptr<Communicator>> Split(int color,
                                                      int key) override;

  void Abort() override {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      aborted_ = true;
      for (gloo::transport::UnboundBuffer* buffer : in_flight_) {
        buffer->abortWaitRecv();
        buffer->abortWaitSend();
      }
    }
    Close();  // so the peers notice
  }

 private:
  struct Piece {
    void* data = nullptr;
    size_t bytes = 0;
  };
  struct Pieces {
    Piece send, recv;  // 0 bytes: nothing in that direction
  };
  using Buffer = std::unique_ptr<gloo::transport::UnboundBuffer>;

  template <typename T>
  static Piece Bytes(T* data, int64_t n) {
    // Gloo takes one non-const pointer for both directions.
    return {const_cast<std::remove_const_t<T>*>(data), n * sizeof(T)};
  }
  static std::chrono::milliseconds ToMilliseconds(absl::Duration d) {
    return std::chrono::milliseconds(std::max<int64_t>(
        absl::ToInt64Milliseconds(std::min(d, absl::Hours(24 * 365))), 1));
  }

  // Sends and receives one piece per peer; returns when all have arrived and
  // left. Every call has a tag of its own.
  template <typename PiecesOf>
  absl::Status Exchange(const char* call, PiecesOf pieces_of) {
    if (size_ == 1) return absl::OkStatus();
    const uint64_t tag = next_tag_++;
    const auto deadline = DeadlineAfter(timeout_);
    std::vector<Buffer> sends(size_), recvs(size_);
    int waiting_for = -1;
    absl::Status status;
    try {
      for (int step = 1; step < size_; ++step) {
        const int peer = (rank_ + step) % size_;
        waiting_for = peer;
        const Pieces pieces = pieces_of(peer);
        if (pieces.recv.bytes > 0) {
          recvs[peer] = context_->createUnboundBuffer(pieces.recv.data,
                                                      pieces.recv.bytes);
          CADRE_RETURN_IF_ERROR(Register(call, recvs[peer].get()));
          recvs[peer]->recv(peer, tag, 0, pieces.recv.bytes);
        }
        if (pieces.send.bytes > 0) {
          sends[peer] = context_->createUnboundBuffer(pieces.send.data,
                                                      pieces.send.bytes);
          CADRE_RETURN_IF_ERROR(Register(call, sends[peer].get()));
          sends[peer]->send(peer, tag, 0, pieces.send.bytes);
        }
      }
      for (int peer = 0; peer < size_; ++peer) {
        waiting_for = peer;
        if (recvs[peer] && !recvs[peer]->waitRecv(Remaining(deadline))) break;
      }
      for (int peer = 0; peer < size_; ++peer) {
        if (!Aborted().ok()) break;
        waiting_for = peer;
        if (sends[peer] && !sends[peer]->waitSend(Remaining(deadline))) break;
      }
    } catch (const std::exception& e) {
      status = Failure(call, waiting_for, deadline, e.what());
      Close();  // so that peers that wait for this rank see it, too
    }
    Unregister();
    if (absl::Status aborted = Aborted(); !aborted.ok()) return aborted;
    return status;
  }

  static std::chrono::milliseconds Remaining(MonotonicTime deadline) {
    // Upwards: what ends before the deadline would not count as late.
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    return std::max(left, std::chrono::milliseconds(1));
  }

  absl::Status Failure(const char* call, int peer, MonotonicTime deadline,
                       const char* what) const {
    // Gloo reports its time-out as the same exception as a closed connection.
    if (std::chrono::steady_clock::now() >= deadline) {
      return WithFailedPeer(
          absl::DeadlineExceededError(
              absl::StrCat(call, ": rank ", names_[peer], " was silent for ",
                           absl::FormatDuration(timeout_))),
          names_[peer]);
    }
    return WithFailedPeer(
        absl::UnavailableError(
            absl::StrCat(call, ": rank ", names_[peer], " is gone: ", what)),
        names_[peer]);
  }

  absl::Status Register(const char* call,
                        gloo::transport::UnboundBuffer* buffer) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (aborted_) {
      in_flight_.clear();
      return absl::AbortedError(absl::StrCat(call, ": aborted"));
    }
    in_flight_.push_back(buffer);
    return absl::OkStatus();
  }
  void Unregister() {
    std::lock_guard<std::mutex> lock(mutex_);
    in_flight_.clear();
  }
  absl::Status Aborted() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!aborted_) return absl::OkStatus();
    return absl::AbortedError(
        absl::StrCat("collectives were aborted on rank ", names_[rank_]));
  }
  void Close() {
    if (context_ == nullptr) return;
    try {
      context_->closeConnections();
    } catch (const std::exception&) {
      // A connection that cannot be closed is closed already.
    }
  }

  // out = sum over ranks, in rank order, of their block for this rank;
  // begin(r) is the first element of rank r's block (begin(size) the end).
  template <typename T, typename Begin>
  absl::Status ReduceBlock(const char* call, ReduceOp op,
                           absl::Span<const T> data, Begin begin, T* out) {
    const int64_t first = begin(rank_), n = begin(rank_ + 1) - first;
    std::vector<T>& scratch = Scratch<T>(n * size_);
    CADRE_RETURN_IF_ERROR(Exchange(call, [&](int peer) {
      return Pieces{
          Bytes(data.data() + begin(peer), begin(peer + 1) - begin(peer)),
          Bytes(scratch.data() + peer * n, n)};
    }));
    std::copy_n(data.data() + first, n, scratch.data() + rank_ * n);
    std::copy_n(scratch.data(), n, out);
    for (int r = 1; r < size_; ++r) {
      Combine(op, out, scratch.data() + r * n, n);
    }
    return absl::OkStatus();
  }

  template <typename T>
  absl::Status AllReduce(const char* call, ReduceOp op, absl::Span<T> data) {
    const int64_t n = data.size();
    if (size_ == 1 || n == 0) return Aborted();
    if (n <= kDirectElements) {
      // Everything to everyone, then each adds in rank order.
      std::vector<T>& scratch = Scratch<T>(n * size_);
      CADRE_RETURN_IF_ERROR(Exchange(call, [&](int peer) {
        return Pieces{Bytes(data.data(), n),
                      Bytes(scratch.data() + peer * n, n)};
      }));
      std::copy_n(data.data(), n, scratch.data() + rank_ * n);
      std::copy_n(scratch.data(), n, data.data());
      for (int r = 1; r < size_; ++r) {
        Combine(op, data.data(), scratch.data() + r * n, n);
      }
      return absl::OkStatus();
    }
    const auto begin = [&](int r) { return BlockBegin(n, r, size_); };
    CADRE_RETURN_IF_ERROR(ReduceBlock(call, op, absl::Span<const T>(data),
                                      begin, data.data() + begin(rank_)));
    return Exchange(call, [&](int peer) {
      return Pieces{
          Bytes(data.data() + begin(rank_), begin(rank_ + 1) - begin(rank_)),
          Bytes(data.data() + begin(peer), begin(peer + 1) - begin(peer))};
    });
  }

  template <typename T>
  absl::Status AllToAll(absl::Span<const T> send,
                        absl::Span<const int64_t> send_counts,
                        absl::Span<T> recv,
                        absl::Span<const int64_t> recv_counts) {
    CADRE_RETURN_IF_ERROR(CheckAllToAll(send.size(), send_counts, recv.size(),
                                        recv_counts, rank_, size_));
    std::vector<int64_t> send_begin(size_), recv_begin(size_);
    std::exclusive_scan(send_counts.begin(), send_counts.end(),
                        send_begin.begin(), int64_t{0});
    std::exclusive_scan(recv_counts.begin(), recv_counts.end(),
                        recv_begin.begin(), int64_t{0});
    std::copy_n(send.data() + send_begin[rank_], send_counts[rank_],
                recv.data() + recv_begin[rank_]);
    return Exchange("AllToAllV", [&](int peer) {
      return Pieces{Bytes(send.data() + send_begin[peer], send_counts[peer]),
                    Bytes(recv.data() + recv_begin[peer], recv_counts[peer])};
    });
  }

  // Receive space, kept between calls so that a step allocates nothing.
  template <typename T>
  std::vector<T>& Scratch(int64_t n) {
    std::vector<T>& scratch = std::get<std::vector<T>>(scratch_);
    if (static_cast<int64_t>(scratch.size()) < n) scratch.resize(n);
    return scratch;
  }

  const int rank_, size_;
  const absl::Duration timeout_, rendezvous_timeout_;
  Device device_;
  std::shared_ptr<gloo::rendezvous::Context> context_;
  // What errors call the ranks: their numbers in the group that was split
  // first.
  std::vector<int> names_;
  uint64_t next_tag_ = 1;
  std::tuple<std::vector<float>, std::vector<double>, std::vector<int64_t>>
      scratch_;

  std::mutex mutex_;  // std: ThreadSanitizer sees it, absl::Mutex it does not
  bool aborted_ = false;
  std::vector<gloo::transport::UnboundBuffer*> in_flight_;
};

absl::StatusOr<std::unique_ptr<Communicator>> GlooCommunicator::Split(int color,
                                                                      int key) {
  // Who goes where.
  std::vector<int64_t> wishes(2 * size_, 0);
  wishes[2 * rank_] = color;
  wishes[2 * rank_ + 1] = key;
  CADRE_RETURN_IF_ERROR(AllReduceSum(absl::MakeSpan(wishes)));
  std::vector<std::pair<int64_t, int>> members;  // (key, rank)
  for (int r = 0; r < size_; ++r) {
    if (wishes[2 * r] == color) members.push_back({wishes[2 * r + 1], r});
  }
  std::sort(members.begin(), members.end());
  const int group_size = static_cast<int>(members.size());
  const int group_rank = static_cast<int>(
      std::find_if(members.begin(), members.end(),
                   [this](const auto& m) { return m.second == rank_; }) -
      members.begin());

  // Addresses travel over the parent: every rank gathers those of all, also the
  // ranks whose own group needs none.
  std::vector<std::string> addresses(size_);
  const auto publish = [&](const std::string& mine) -> absl::Status {
    std::vector<int64_t> lengths(size_, 0);
    lengths[rank_] = static_cast<int64_t>(mine.size());
    CADRE_RETURN_IF_ERROR(AllReduceSum(absl::MakeSpan(lengths)));
    for (int r = 0; r < size_; ++r) addresses[r].resize(lengths[r]);
    addresses[rank_] = mine;
    return Exchange("Split", [&](int peer) {
      return Pieces{Bytes(mine.data(), mine.size()),
                    Bytes(addresses[peer].data(), addresses[peer].size())};
    });
  };
  const auto lookup = [&](int rank) -> absl::StatusOr<std::string> {
    return addresses[members[rank].second];
  };
  auto part = std::make_unique<GlooCommunicator>(
      group_rank, group_size, device_, timeout_, rendezvous_timeout_);
  for (int r = 0; r < group_size; ++r) {
    part->names_[r] = names_[members[r].second];
  }
  if (group_size == 1) {
    CADRE_RETURN_IF_ERROR(publish(""));
    return part;
  }
  AddressBook book(publish, lookup);
  CADRE_RETURN_IF_ERROR(part->Connect(&book));
  return part;
}

absl::Status CheckOptions(const GlooCommunicatorOptions& options) {
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size) {
    return absl::InvalidArgumentError(absl::StrCat(
        "communicator of rank ", options.rank, " of ", options.size));
  }
  if (options.timeout <= absl::ZeroDuration() ||
      options.rendezvous_timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        "communicator time-outs must be positive");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> CreateGlooCommunicator(
    const GlooCommunicatorOptions& options, KeyValueStore* store) {
  CADRE_RETURN_IF_ERROR(CheckOptions(options));
  Device device;
  if (options.size > 1) {
    CADRE_ASSIGN_OR_RETURN(
        device,
        gloo_rendezvous::CreateDevice(options.bind_address, options.interface));
  }
  auto world = std::make_unique<GlooCommunicator>(options.rank, options.size,
                                                  device, options.timeout,
                                                  options.rendezvous_timeout);
  const auto key = [&](int rank) {
    return absl::StrCat(options.key_prefix, "gloo/", rank);
  };
  const auto deadline = absl::Now() + options.rendezvous_timeout;
  AddressBook book(
      [&](const std::string& mine) {
        return store->Set(key(options.rank), mine);
      },
      [&](int rank) -> absl::StatusOr<std::string> {
        absl::StatusOr<std::string> value = store->Get(
            key(rank), std::max(deadline - absl::Now(), absl::Milliseconds(1)));
        if (value.ok()) return value;
        return Annotate(value.status(),
                        absl::StrCat("waiting for the address of rank ", rank));
      });
  CADRE_RETURN_IF_ERROR(world->Connect(&book));
  return world;
}

}  // namespace cadre
