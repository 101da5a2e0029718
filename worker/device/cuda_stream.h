#ifndef CADRE_WORKER_DEVICE_CUDA_STREAM_H_
#define CADRE_WORKER_DEVICE_CUDA_STREAM_H_

// Owning handles of a CUDA stream and an event; move-only, not thread-safe.
// Made on the current device. Linked into the CUDA plugin only.

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// What CUDA's handles of a stream and an event point to.
struct CUstream_st;
struct CUevent_st;

namespace cadre {

class Stream {
 public:
  // Not ordered with the default stream.
  static absl::StatusOr<Stream> Create();

  Stream() = default;
  Stream(Stream&& other) noexcept
      : stream_(std::exchange(other.stream_, nullptr)) {}
  Stream& operator=(Stream&& other) noexcept {
    std::swap(stream_, other.stream_);
    return *this;
  }
  // Waits for the stream's work.
  ~Stream();

  CUstream_st* get() const { return stream_; }
  CUstream_st* release() { return std::exchange(stream_, nullptr); }

 private:
  CUstream_st* stream_ = nullptr;
};

class Event {
 public:
  // With `timed`, two events can be subtracted.
  static absl::StatusOr<Event> Create(bool timed = false);

  Event() = default;
  Event(Event&& other) noexcept
      : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }
  ~Event();

  absl::Status Record(CUstream_st* stream);
  // `stream`'s later work waits for this event.
  absl::Status Block(CUstream_st* stream) const;
  // Whether the stream has passed it; an error of the stream's work otherwise.
  absl::StatusOr<bool> Reached() const;

  CUevent_st* get() const { return event_; }
  CUevent_st* release() { return std::exchange(event_, nullptr); }

 private:
  CUevent_st* event_ = nullptr;
};

}  // namespace cadre

#endif  // CADRE_WORKER_DEVICE_CUDA_STREAM_H_
