#include "worker/report_buffer.h"

#include <utility>

namespace cadre {

using cadre::v1::Report;
using cadre::v1::SyncRequest;

void ReportBuffer::Add(Report report) {
  std::lock_guard<std::mutex> lock(mutex_);
  report.set_report_seq(++last_seq_);
  Entry entry;
  entry.bytes = static_cast<int64_t>(report.ByteSizeLong());
  entry.report = std::move(report);
  bytes_ += entry.bytes;
  entries_.push_back(std::move(entry));
  if (bytes_ > options_.max_bytes) Shrink();
}

void ReportBuffer::AppendTo(SyncRequest* request) const {
  std::lock_guard<std::mutex> lock(mutex_);
  int64_t bytes = 0;
  for (const Entry& entry : entries_) {
    bytes += entry.bytes;
    // The first always goes, or one large report would block all others.
    if (bytes > options_.max_bytes_per_sync && request->reports_size() > 0) {
      return;
    }
    *request->add_reports() = entry.report;
  }
}

void ReportBuffer::Accept(int64_t seq) {
  std::lock_guard<std::mutex> lock(mutex_);
  while (!entries_.empty() && entries_.front().report.report_seq() <= seq) {
    bytes_ -= entries_.front().bytes;
    entries_.pop_front();
  }
}

bool ReportBuffer::empty() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return entries_.empty();
}

int64_t ReportBuffer::num_dropped() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return num_dropped_;
}

int64_t ReportBuffer::Count(int kind) const {
  int64_t count = 0;
  for (const Entry& entry : entries_) count += entry.report.item_case() == kind;
  return count;
}

void ReportBuffer::Thin(int kind) {
  std::deque<Entry> kept;
  bool keep = false;
  for (Entry& entry : entries_) {
    if (entry.report.item_case() == kind) {
      keep = !keep;
      if (!keep) {
        bytes_ -= entry.bytes;
        ++num_dropped_;
        continue;
      }
    }
    kept.push_back(std::move(entry));
  }
  entries_ = std::move(kept);
}

void ReportBuffer::Shrink() {
  // Down to three quarters, so that not every Add has to shrink.
  const int64_t goal = options_.max_bytes / 4 * 3;
  for (const int kind :
       {Report::kScalars, Report::kExpertLoads, Report::kEvent}) {
    while (bytes_ > goal && Count(kind) > 1) Thin(kind);
  }
}

}  // namespace cadre
