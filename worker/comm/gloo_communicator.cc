#include "worker/comm/gloo_communicator.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker/comm/arguments.h"
#include "worker/comm/gloo_links.h"
#include "worker/comm/gloo_rendezvous.h"
#include "worker/comm/reduce.h"

namespace cadre {
namespace {

using gloo_rendezvous::AddressBook;

// Below this size one direct exchange of everything beats two of blocks.
constexpr int64_t kDirectElements = 4096;

class GlooCommunicator final : public Communicator {
 public:
  explicit GlooCommunicator(GlooLinks::Options options)
      : rank_(options.rank), size_(options.size), links_(std::move(options)) {}

  absl::Status Connect(AddressBook* book) { return links_.Connect(book); }

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

  void Abort() override { links_.Abort(); }

 private:
  using Piece = GlooLinks::Piece;
  using Pieces = GlooLinks::Pieces;
  template <typename T>
  static Piece Bytes(T* data, int64_t n) {
    return GlooLinks::Bytes(data, n);
  }
  absl::Status Exchange(const char* call,
                        absl::FunctionRef<Pieces(int peer)> pieces_of) {
    return links_.Exchange(call, pieces_of);
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
    if (size_ == 1 || n == 0) return links_.Aborted();
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
  GlooLinks links_;
  std::tuple<std::vector<float>, std::vector<double>, std::vector<int64_t>>
      scratch_;
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
  GlooLinks::Options options = links_.options();
  options.rank = group_rank;
  options.size = group_size;
  options.names.clear();
  for (const auto& [order, rank] : members) {
    options.names.push_back(links_.options().names[rank]);
  }
  auto part = std::make_unique<GlooCommunicator>(std::move(options));
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
  GlooLinks::Options links{.rank = options.rank,
                           .size = options.size,
                           .timeout = options.timeout,
                           .rendezvous_timeout = options.rendezvous_timeout,
                           .names = std::vector<int>(options.size)};
  std::iota(links.names.begin(), links.names.end(), 0);
  if (options.size > 1) {
    CADRE_ASSIGN_OR_RETURN(
        links.device,
        gloo_rendezvous::CreateDevice(options.bind_address, options.interface));
  }
  auto world = std::make_unique<GlooCommunicator>(std::move(links));
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
