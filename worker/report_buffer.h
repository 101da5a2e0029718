#ifndef CADRE_WORKER_REPORT_BUFFER_H_
#define CADRE_WORKER_REPORT_BUFFER_H_

// Reports on their way to the coordinator: numbered when they are made, sent
// again with each Sync, dropped when the coordinator says that they are
// committed. They outlive the session that made them. Bounded: while the
// coordinator is away scalars are thinned first, then expert loads, then
// events; what describes files on the store is kept. Thread-safe.

#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

#include "cadre/v1/worker_service.pb.h"

namespace cadre {

class ReportBuffer {
 public:
  struct Options {
    int64_t max_bytes = int64_t{64} << 20;
    // Part of one Sync; the rest goes with the next.
    int64_t max_bytes_per_sync = int64_t{4} << 20;
  };
  ReportBuffer() : ReportBuffer(Options{}) {}
  explicit ReportBuffer(Options options) : options_(options) {}

  // Sets report_seq and keeps the report until it is accepted.
  void Add(cadre::v1::Report report);

  // Appends the oldest reports to the request, as many as one Sync may carry.
  void AppendTo(cadre::v1::SyncRequest* request) const;

  // Forgets every report up to and including `seq`.
  void Accept(int64_t seq);

  bool empty() const;
  // Reports given up to stay below max_bytes.
  int64_t num_dropped() const;

 private:
  struct Entry {
    cadre::v1::Report report;
    int64_t bytes = 0;
  };
  void Shrink();                  // mutex_ held
  void Thin(int kind);            // mutex_ held: every second one of that kind
  int64_t Count(int kind) const;  // mutex_ held

  const Options options_;
  mutable std::mutex mutex_;
  std::deque<Entry> entries_;
  int64_t bytes_ = 0;
  int64_t last_seq_ = 0;
  int64_t num_dropped_ = 0;
};

}  // namespace cadre

#endif  // CADRE_WORKER_REPORT_BUFFER_H_
