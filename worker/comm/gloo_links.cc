#include "worker/comm/gloo_links.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker/comm/peer_failure.h"

namespace cadre {
namespace {

std::chrono::milliseconds ToMilliseconds(absl::Duration d) {
  return std::chrono::milliseconds(std::max<int64_t>(
      absl::ToInt64Milliseconds(std::min(d, absl::Hours(24 * 365))), 1));
}

std::chrono::milliseconds Remaining(MonotonicTime deadline) {
  // Upwards: what ends before the deadline would not count as late.
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(
      deadline - std::chrono::steady_clock::now());
  return std::max(left, std::chrono::milliseconds(1));
}

}  // namespace

absl::Status GlooLinks::Connect(gloo_rendezvous::AddressBook* book) {
  const int rank = options_.rank, size = options_.size;
  if (size == 1) return absl::OkStatus();
  try {
    context_ = std::make_shared<gloo::rendezvous::Context>(rank, size);
    context_->setTimeout(ToMilliseconds(options_.rendezvous_timeout));
    // Gloo takes the device by a non-const reference.
    std::shared_ptr<gloo::transport::Device> device = options_.device;
    context_->connectFullMesh(*book, device);
    return absl::OkStatus();
  } catch (const std::exception& e) {
    context_.reset();
    const std::string attempt =
        absl::StrCat("connecting rank ", rank, " of ", size);
    if (!book->status().ok()) return Annotate(book->status(), attempt);
    return absl::UnavailableError(absl::StrCat(attempt, ": ", e.what()));
  }
}

absl::Status GlooLinks::Exchange(
    const char* call, absl::FunctionRef<Pieces(int peer)> pieces_of) {
  const int rank = options_.rank, size = options_.size;
  if (size == 1) return absl::OkStatus();
  const uint64_t tag = next_tag_++;
  const auto deadline = DeadlineAfter(options_.timeout);
  std::vector<std::unique_ptr<UnboundBuffer>> sends(size), recvs(size);
  int waiting_for = -1;
  absl::Status status;
  try {
    for (int step = 1; step < size; ++step) {
      const int peer = (rank + step) % size;
      waiting_for = peer;
      const Pieces pieces = pieces_of(peer);
      if (pieces.recv.bytes > 0) {
        recvs[peer] =
            context_->createUnboundBuffer(pieces.recv.data, pieces.recv.bytes);
        CADRE_RETURN_IF_ERROR(Register(call, recvs[peer].get()));
        recvs[peer]->recv(peer, tag, 0, pieces.recv.bytes);
      }
      if (pieces.send.bytes > 0) {
        sends[peer] =
            context_->createUnboundBuffer(pieces.send.data, pieces.send.bytes);
        CADRE_RETURN_IF_ERROR(Register(call, sends[peer].get()));
        sends[peer]->send(peer, tag, 0, pieces.send.bytes);
      }
    }
    for (int peer = 0; peer < size; ++peer) {
      waiting_for = peer;
      if (recvs[peer] && !recvs[peer]->waitRecv(Remaining(deadline))) break;
    }
    for (int peer = 0; peer < size; ++peer) {
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

absl::Status GlooLinks::Failure(const char* call, int peer,
                                MonotonicTime deadline,
                                const char* what) const {
  const int name = options_.names[peer];
  // Gloo reports its time-out as the same exception as a closed connection.
  if (std::chrono::steady_clock::now() >= deadline) {
    return WithFailedPeer(absl::DeadlineExceededError(absl::StrCat(
                              call, ": rank ", name, " was silent for ",
                              absl::FormatDuration(options_.timeout))),
                          name);
  }
  return WithFailedPeer(absl::UnavailableError(absl::StrCat(
                            call, ": rank ", name, " is gone: ", what)),
                        name);
}

absl::Status GlooLinks::Register(const char* call, UnboundBuffer* buffer) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (aborted_) {
    in_flight_.clear();
    return absl::AbortedError(absl::StrCat(call, ": aborted"));
  }
  in_flight_.push_back(buffer);
  return absl::OkStatus();
}

void GlooLinks::Unregister() {
  std::lock_guard<std::mutex> lock(mutex_);
  in_flight_.clear();
}

absl::Status GlooLinks::Aborted() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!aborted_) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat("collectives were aborted on rank ",
                                         options_.names[options_.rank]));
}

void GlooLinks::Abort() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    aborted_ = true;
    for (UnboundBuffer* buffer : in_flight_) {
      buffer->abortWaitRecv();
      buffer->abortWaitSend();
    }
  }
  Close();  // so the peers notice
}

void GlooLinks::Close() {
  if (context_ == nullptr) return;
  try {
    context_->closeConnections();
  } catch (const std::exception&) {
    // A connection that cannot be closed is closed already.
  }
}

}  // namespace cadre
