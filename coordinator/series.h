#ifndef CADRE_COORDINATOR_SERIES_H_
#define CADRE_COORDINATOR_SERIES_H_

// Values over the steps of jobs (loss, learning rate, ...) and tokens per
// expert, in series.db beside the journal. Kept with less care than jobs:
// written without waiting for the disk itself, so that the end of the process
// loses nothing that AfterFlush has called back for, but that of the machine
// may lose the last moments; losing the file loses plots and nothing else. A
// damaged file is put aside and begun anew. Thread-safe; reads and Forget wait
// for the disk, the rest does not.

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cadre/v1/job_service.pb.h"
#include "cadre/v1/worker_service.pb.h"
#include "coordinator/sqlite.h"

namespace cadre::coordinator {

// A series never has more points: above, every second one goes.
inline constexpr int64_t kMaxSeriesPoints = 20'000;

class SeriesStore {
 public:
  static absl::StatusOr<std::unique_ptr<SeriesStore>> Open(
      const std::string& path);
  ~SeriesStore();  // Stop
  SeriesStore(const SeriesStore&) = delete;
  SeriesStore& operator=(const SeriesStore&) = delete;

  // `job` is an id, without "jobs/". A step that comes again replaces its
  // former values.
  void Add(const std::string& job, const v1::ScalarPoint& point,
           absl::Time time);
  // Loads of steps that were counted before change only the recent window.
  void AddLoads(const std::string& job, const v1::ExpertLoads& loads);
  void Forget(const std::string& job);
  // Calls back, from another thread, once all that was added before is written
  // (or given up, which the log says: values stop no training). At once after
  // Stop.
  void AfterFlush(std::function<void()> done);

  // INVALID_ARGUMENT for a range or a limit below 0.
  absl::StatusOr<v1::GetMetricsResponse> Read(
      const std::string& job, const v1::GetMetricsRequest& request);
  // nullopt: nothing was reported yet.
  absl::StatusOr<std::optional<v1::ExpertLoads>> Loads(const std::string& job,
                                                       bool cumulative);

  // Writes what waits; later values are dropped.
  void Stop();

 private:
  struct Point {
    std::string job, name;
    int64_t step = 0;
    int64_t time_ns = 0;
    double value = 0;
  };
  struct Pending {
    std::vector<Point> points;
    std::vector<std::pair<std::string, v1::ExpertLoads>> loads;
    std::vector<std::function<void()>> waiting;
  };

  explicit SeriesStore(Database db);
  void Run();
  absl::Status Flush();  // with db_mutex_ held
  absl::Status Write(const Pending& pending);
  absl::Status WriteLoads(const std::string& job, const v1::ExpertLoads& loads);
  absl::StatusOr<int64_t> SeriesId(const std::string& job,
                                   const std::string& name);
  absl::Status Thin(int64_t series);

  // std and not absl: a timed wait on the monotonic clock.
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  Pending pending_;
  // Of what a reader has written: for the thread to call, which holds no lock.
  std::vector<std::function<void()>> flushed_;
  bool failing_ = false;  // one line in the log per trouble

  std::mutex db_mutex_;  // before mutex_ where both are held
  Database db_;
  struct SeriesRow {
    int64_t id = 0;
    int64_t points = 0;
  };
  std::map<std::pair<std::string, std::string>, SeriesRow> ids_;
  std::thread thread_;
};

}  // namespace cadre::coordinator

#endif  // CADRE_COORDINATOR_SERIES_H_
