#ifndef CADRE_COORDINATOR_LEDGER_H_
#define CADRE_COORDINATOR_LEDGER_H_

// The working state of the journal's writer thread: what the mutations of the
// group under way have made of the jobs so far. Publish shows it to everybody
// after the commit; Rollback forgets it. Not thread-safe: the writer thread's.

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "base/metrics/registry.h"
#include "coordinator/job.h"
#include "coordinator/job_table.h"
#include "coordinator/store.h"

namespace cadre::coordinator {

// A job on its way from one version to the next: a copy of its record, the
// events to write with it and the states it enters on the way.
struct JobChange {
  state::v1::JobRecord record;
  std::vector<v1::Event> events;
  std::vector<v1::JobState> entered = {};  // by Ledger::Apply

  v1::Job& job() { return *record.mutable_job(); }
  std::string id() const { return JobId(record.job().name()); }
  void AddEvent(v1::Event::Severity severity, const std::string& type,
                const std::string& message,
                const std::map<std::string, std::string>& data = {});
};

google::protobuf::Timestamp ToProto(absl::Time time);
absl::Time FromProto(const google::protobuf::Timestamp& time);

class Ledger {
 public:
  Ledger(JobTable* table, Clock* clock, MetricsRegistry* metrics);

  // At start, before the writer thread.
  void Load(std::vector<state::v1::JobRecord> records);

  RecordPtr Find(const std::string& id) const;
  const std::map<std::string, RecordPtr>& jobs() const { return jobs_; }
  // Those that have not ended: what a round of judging looks at.
  const std::map<std::string, RecordPtr>& live() const { return live_; }
  // The owner's jobs in VALIDATING and QUEUED.
  int Waiting(const std::string& owner) const;
  int64_t NextSequence() const { return last_sequence_ + 1; }

  // Moves the job by the table of job.h: state, times, STATE_CHANGED event. The
  // error is Next's.
  absl::Status Apply(Trigger trigger, const std::string& message,
                     JobChange* change);

  // Writes the record and its events and makes them the working state.
  absl::Status Save(Store& store, JobChange change);

  // Removes an ended job for good.
  absl::Status Bury(Store& store, const std::string& id);

  void Publish();
  void Rollback();

 private:
  // A job's way from one state to another; `record` as it was saved then.
  struct Move {
    v1::JobState from, to;
    RecordPtr record;
  };
  void Count(const Move& move);
  // Keeps live_ and the gauges' counts in step with jobs_; null: no job.
  void Replace(const std::string& id, const RecordPtr& before,
               const RecordPtr& after);
  void ShowCounts();
  // Observes how long a job took from its failure to training again.
  void CountRecovery(const std::string& id, v1::JobState after);
  // The series of a live job in its state; `before` null: it was not there.
  void ShowInfo(const std::string& id, const v1::Job* before,
                const v1::Job& after);

  JobTable* const table_;
  Clock* const clock_;
  MetricsRegistry* const metrics_;
  std::map<std::string, RecordPtr> jobs_;
  std::map<std::string, RecordPtr> live_;
  std::map<v1::JobState, int> by_state_;
  std::map<std::string, int> by_reason_;
  std::map<std::string, RecordPtr> before_group_;     // null: did not exist
  std::vector<Move> moves_;                           // of the group, in order
  std::map<std::string, absl::Duration> recovering_;  // since, monotonic
  std::map<std::string, int> waiting_;                // by owner
  int64_t last_sequence_ = 0;
};

}  // namespace cadre::coordinator

#endif  // CADRE_COORDINATOR_LEDGER_H_
