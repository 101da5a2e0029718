#include "coordinator/series.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/logging.h"
#include "base/status_macros.h"

namespace cadre::coordinator {
namespace {

constexpr auto kFlushInterval = std::chrono::milliseconds(500);
// A disk that does not take values must not fill the memory.
constexpr size_t kMaxPendingPoints = 200'000;
constexpr int kDefaultPoints = 1000;
constexpr int kMaxPoints = 5000;

constexpr char kTables[] = R"sql(
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
CREATE TABLE IF NOT EXISTS series(
  id INTEGER PRIMARY KEY,
  job_id TEXT NOT NULL,
  name TEXT NOT NULL,
  UNIQUE(job_id, name)
) STRICT;
CREATE TABLE IF NOT EXISTS points(
  series INTEGER NOT NULL,
  step INTEGER NOT NULL,
  time_ns INTEGER NOT NULL,
  value REAL NOT NULL,
  PRIMARY KEY(series, step)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS expert_loads(
  job_id TEXT NOT NULL,
  cumulative INTEGER NOT NULL,
  loads BLOB NOT NULL,          -- cadre.v1.ExpertLoads
  PRIMARY KEY(job_id, cumulative)
) STRICT, WITHOUT ROWID;
)sql";

std::string UnitOf(const std::string& name) {
  if (name == "tokens_per_second") return "tokens/s";
  return absl::EndsWith(name, "_seconds") ? "s" : "";
}

absl::Status CheckRange(const v1::GetMetricsRequest& request) {
  if (request.start_step() < 0 || request.end_step() < 0 ||
      request.max_points() < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "start_step ", request.start_step(), ", end_step ", request.end_step(),
        " and max_points ", request.max_points(), " must not be negative"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<SeriesStore>> SeriesStore::Open(
    const std::string& path) {
  for (int attempt = 0;; ++attempt) {
    auto db = Database::Open(path, Database::Mode::kReadWrite);
    const absl::Status made = db.ok() ? db->Exec(kTables) : db.status();
    if (made.ok()) {
      return std::unique_ptr<SeriesStore>(new SeriesStore(*std::move(db)));
    }
    if (attempt > 0 || !absl::IsDataLoss(made)) return made;
    CADRE_LOG(WARNING) << "series: " << made.ToString() << "; put aside as "
                       << path << ".damaged";
    std::error_code ignored;
    std::filesystem::rename(path, path + ".damaged", ignored);
    for (const char* suffix : {"-wal", "-shm"}) {
      std::filesystem::remove(path + suffix, ignored);
    }
  }
}

SeriesStore::SeriesStore(Database db)
    : db_(std::move(db)), thread_([this] { Run(); }) {}

SeriesStore::~SeriesStore() { Stop(); }

void SeriesStore::Stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (std::exchange(stopping_, true)) return;
  }
  wake_.notify_all();
  thread_.join();
}

void SeriesStore::Add(const std::string& job, const v1::ScalarPoint& point,
                      absl::Time time) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (stopping_ || pending_.points.size() >= kMaxPendingPoints) return;
  for (const auto& [name, value] : point.values()) {
    pending_.points.push_back(
        {job, name, point.step(), absl::ToUnixNanos(time), value});
  }
}

void SeriesStore::AddLoads(const std::string& job,
                           const v1::ExpertLoads& loads) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (stopping_ || pending_.loads.size() >= kMaxPendingPoints) return;
  pending_.loads.emplace_back(job, loads);
}

void SeriesStore::AfterFlush(std::function<void()> done) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!stopping_) {
      pending_.waiting.push_back(std::move(done));
      done = nullptr;
    }
  }
  if (done) return done();
  wake_.notify_one();
}

void SeriesStore::Run() {
  for (bool last = false; !last;) {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      wake_.wait_for(lock, kFlushInterval, [this] {
        return stopping_ || !pending_.waiting.empty() || !flushed_.empty();
      });
      last = stopping_;
    }
    {
      std::lock_guard<std::mutex> lock(db_mutex_);
      const absl::Status status = Flush();
      if (!status.ok() && !failing_) {
        CADRE_LOG(WARNING) << "series: values are lost: " << status.ToString();
      }
      failing_ = !status.ok();
    }
    std::vector<std::function<void()>> flushed;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      flushed = std::exchange(flushed_, {});
    }
    for (const auto& done : flushed) done();
  }
}

absl::Status SeriesStore::Flush() {
  Pending pending;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    pending = std::exchange(pending_, {});
  }
  absl::Status status;
  if (!pending.points.empty() || !pending.loads.empty()) {
    status = db_.Exec("BEGIN IMMEDIATE");
    if (status.ok()) status = Write(pending);
    if (status.ok()) status = db_.Exec("COMMIT");
    if (!status.ok()) {
      ids_.clear();  // they may name rows that are no longer there
      if (db_.InTransaction()) db_.Exec("ROLLBACK").IgnoreError();
    }
  }
  if (!pending.waiting.empty()) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      flushed_.insert(flushed_.end(),
                      std::make_move_iterator(pending.waiting.begin()),
                      std::make_move_iterator(pending.waiting.end()));
    }
    wake_.notify_one();
  }
  return status;
}

absl::StatusOr<int64_t> SeriesStore::SeriesId(const std::string& job,
                                              const std::string& name) {
  SeriesRow& row = ids_[{job, name}];
  if (row.id != 0) {
    ++row.points;
    return row.id;
  }
  CADRE_ASSIGN_OR_RETURN(
      Statement put,
      db_.Prepare("INSERT INTO series(job_id, name) VALUES(?, ?) ON CONFLICT "
                  "DO UPDATE SET name = excluded.name RETURNING id"));
  CADRE_ASSIGN_OR_RETURN(const bool found,
                         put.Bind(1, job).Bind(2, name).Step());
  if (found) row.id = put.Int(0);
  put.Reset();
  CADRE_ASSIGN_OR_RETURN(
      Statement count,
      db_.Prepare("SELECT count(*) FROM points WHERE series = ?"));
  CADRE_RETURN_IF_ERROR(count.Bind(1, row.id).Step().status());
  row.points = count.Int(0) + 1;
  return row.id;
}

absl::Status SeriesStore::Thin(int64_t series) {
  CADRE_ASSIGN_OR_RETURN(
      Statement thin,
      db_.Prepare(
          "DELETE FROM points WHERE series = ?1 AND step IN (SELECT "
          "step FROM (SELECT step, row_number() OVER (ORDER BY step) "
          "AS n FROM points WHERE series = ?1) WHERE n % 2 = 0) AND (SELECT "
          "count(*) FROM points WHERE series = ?1) > ?2"));
  return thin.Bind(1, series).Bind(2, kMaxSeriesPoints).Run();
}

absl::Status SeriesStore::Write(const Pending& pending) {
  CADRE_ASSIGN_OR_RETURN(
      Statement put,
      db_.Prepare("INSERT OR REPLACE INTO points(series, step, time_ns, value) "
                  "VALUES(?, ?, ?, ?)"));
  for (const Point& point : pending.points) {
    // SQLite has no NaN, and a column of reals takes no NULL.
    if (point.value != point.value) continue;
    CADRE_ASSIGN_OR_RETURN(const int64_t id, SeriesId(point.job, point.name));
    put.Bind(1, id).Bind(2, point.step).Bind(3, point.time_ns);
    CADRE_RETURN_IF_ERROR(put.BindReal(4, point.value).Run());
    SeriesRow& row = ids_[{point.job, point.name}];
    if (row.points <= kMaxSeriesPoints) continue;
    CADRE_RETURN_IF_ERROR(Thin(id));
    row.id = 0;  // counted again with the next point
  }
  for (const auto& [job, loads] : pending.loads) {
    CADRE_RETURN_IF_ERROR(WriteLoads(job, loads));
  }
  return absl::OkStatus();
}

absl::Status SeriesStore::WriteLoads(const std::string& job,
                                     const v1::ExpertLoads& loads) {
  CADRE_ASSIGN_OR_RETURN(
      Statement get, db_.Prepare("SELECT loads FROM expert_loads WHERE job_id "
                                 "= ? AND cumulative = 1"));
  CADRE_ASSIGN_OR_RETURN(const bool found, get.Bind(1, job).Step());
  v1::ExpertLoads total;
  if (!found || !total.ParseFromString(get.Text(0)) ||
      total.layers_size() != loads.layers_size()) {
    total = loads;
  } else if (loads.last_step() > total.last_step()) {
    total.set_last_step(loads.last_step());
    for (int l = 0; l < loads.layers_size(); ++l) {
      auto* sum = total.mutable_layers(l);
      const auto& more = loads.layers(l);
      sum->set_dropped(sum->dropped() + more.dropped());
      sum->set_remapped(sum->remapped() + more.remapped());
      sum->set_padding_rows(sum->padding_rows() + more.padding_rows());
      const int experts = std::min(sum->tokens_size(), more.tokens_size());
      for (int e = 0; e < experts; ++e) {
        sum->set_tokens(e, sum->tokens(e) + more.tokens(e));
      }
      const int ranks =
          std::min(sum->rank_tokens_size(), more.rank_tokens_size());
      for (int r = 0; r < ranks; ++r) {
        sum->set_rank_tokens(r, sum->rank_tokens(r) + more.rank_tokens(r));
      }
    }
  }
  CADRE_ASSIGN_OR_RETURN(
      Statement put,
      db_.Prepare("INSERT OR REPLACE INTO expert_loads(job_id, cumulative, "
                  "loads) VALUES(?, ?, ?)"));
  for (const bool cumulative : {false, true}) {
    put.Bind(1, job).Bind(2, int64_t{cumulative});
    CADRE_RETURN_IF_ERROR(
        put.BindBlob(3, (cumulative ? total : loads).SerializeAsString())
            .Run());
  }
  return absl::OkStatus();
}

void SeriesStore::Forget(const std::string& job) {
  std::lock_guard<std::mutex> lock(db_mutex_);
  Flush().IgnoreError();
  for (const char* sql :
       {"DELETE FROM points WHERE series IN (SELECT id FROM series WHERE "
        "job_id = ?)",
        "DELETE FROM series WHERE job_id = ?",
        "DELETE FROM expert_loads WHERE job_id = ?"}) {
    auto statement = db_.Prepare(sql);
    if (statement.ok()) statement->Bind(1, job).Run().IgnoreError();
  }
  ids_.clear();
}

absl::StatusOr<v1::GetMetricsResponse> SeriesStore::Read(
    const std::string& job, const v1::GetMetricsRequest& request) {
  CADRE_RETURN_IF_ERROR(CheckRange(request));
  const int64_t limit = request.max_points() == 0
                            ? kDefaultPoints
                            : std::min(request.max_points(), kMaxPoints);
  const int64_t end = request.end_step() == 0
                          ? std::numeric_limits<int64_t>::max()
                          : request.end_step();
  std::lock_guard<std::mutex> lock(db_mutex_);
  CADRE_RETURN_IF_ERROR(Flush());
  v1::GetMetricsResponse response;
  CADRE_ASSIGN_OR_RETURN(Statement names,
                         db_.Prepare("SELECT id, name FROM series WHERE job_id "
                                     "= ? ORDER BY name"));
  names.Bind(1, job);
  CADRE_ASSIGN_OR_RETURN(
      Statement count, db_.Prepare("SELECT count(*) FROM points WHERE series = "
                                   "? AND step BETWEEN ? AND ?"));
  CADRE_ASSIGN_OR_RETURN(
      Statement points,
      db_.Prepare("SELECT step, time_ns, value FROM points WHERE series = ? "
                  "AND step BETWEEN ? AND ? ORDER BY step"));
  const auto& wanted = request.series();
  while (true) {
    CADRE_ASSIGN_OR_RETURN(const bool more, names.Step());
    if (!more) return response;
    if (!wanted.empty() && std::find(wanted.begin(), wanted.end(),
                                     names.Text(1)) == wanted.end()) {
      continue;
    }
    v1::MetricSeries* series = response.add_series();
    series->set_name(names.Text(1));
    series->set_unit(UnitOf(series->name()));
    count.Bind(1, names.Int(0)).Bind(2, request.start_step()).Bind(3, end);
    CADRE_RETURN_IF_ERROR(count.Step().status());
    const int64_t total = count.Int(0);
    count.Reset();
    const int64_t every = std::max<int64_t>(1, (total + limit - 1) / limit);
    response.set_downsampled(response.downsampled() || every > 1);
    points.Bind(1, names.Int(0)).Bind(2, request.start_step()).Bind(3, end);
    for (int64_t i = 0;; ++i) {
      CADRE_ASSIGN_OR_RETURN(const bool row, points.Step());
      if (!row) break;
      // Counted from the end: the newest point is what a reader looks for.
      if ((total - 1 - i) % every != 0) continue;
      v1::MetricPoint* point = series->add_points();
      point->set_step(points.Int(0));
      point->mutable_time()->set_seconds(points.Int(1) / 1'000'000'000);
      point->mutable_time()->set_nanos(
          static_cast<int32_t>(points.Int(1) % 1'000'000'000));
      point->set_value(points.Real(2));
    }
  }
}

absl::StatusOr<std::optional<v1::ExpertLoads>> SeriesStore::Loads(
    const std::string& job, bool cumulative) {
  std::lock_guard<std::mutex> lock(db_mutex_);
  CADRE_RETURN_IF_ERROR(Flush());
  CADRE_ASSIGN_OR_RETURN(
      Statement get, db_.Prepare("SELECT loads FROM expert_loads WHERE job_id "
                                 "= ? AND cumulative = ?"));
  CADRE_ASSIGN_OR_RETURN(const bool found,
                         get.Bind(1, job).Bind(2, int64_t{cumulative}).Step());
  if (!found) return std::nullopt;
  v1::ExpertLoads loads;
  if (!loads.ParseFromString(get.Text(0))) {
    return absl::DataLossError("expert loads of " + job +
                               " in series.db cannot be read");
  }
  return loads;
}

}  // namespace cadre::coordinator
