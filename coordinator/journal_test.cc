#include "coordinator/journal.h"

#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/failpoint.h"
#include "base/file.h"
#include "base/rpc/error.h"
#include "base/status_matchers.h"
#include "coordinator/backup.h"
#include "coordinator/schema.h"

namespace cadre::coordinator {
namespace {

using ::cadre::testing::StatusIs;
using ::testing::HasSubstr;

std::string FreshDir(const std::string& name) {
  const std::string dir = absl::StrCat(::testing::TempDir(), "/", name);
  std::filesystem::remove_all(dir);
  return dir;
}

class JournalTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<Journal>> Open(const std::string& dir) {
    return Journal::Open({.state_dir = dir,
                          .clock = Clock::Real(),
                          .ids = &ids_,
                          .metrics = &metrics_});
  }
  FakeIdSource ids_;
  MetricsRegistry metrics_;
};

state::v1::JobRecord Record(int64_t sequence) {
  state::v1::JobRecord record;
  record.set_create_sequence(sequence);
  record.mutable_job()->set_name(absl::StrCat("jobs/j", sequence));
  return record;
}

// Writes job number `sequence` and one event.
absl::Status Write(Store& store, int64_t sequence) {
  CADRE_RETURN_IF_ERROR(
      store.PutJob(absl::StrCat("j", sequence), Record(sequence)));
  v1::Event event;
  event.set_type("CREATED");
  return store.AppendEvent(absl::StrCat("j", sequence), event).status();
}

absl::Status Do(Journal& journal, std::function<absl::Status(Store&)> decide) {
  absl::Notification finished;
  absl::Status outcome;
  journal.Submit(
      {.decide = std::move(decide), .done = [&](const absl::Status& status) {
         outcome = status;
         finished.Notify();
       }});
  finished.WaitForNotification();
  return outcome;
}

TEST_F(JournalTest, KeepsWhatWasCommittedAndCountsItsStarts) {
  const std::string dir = FreshDir("keeps");
  std::string uuid;
  {
    ASSERT_OK_AND_ASSIGN(auto journal, Open(dir));
    EXPECT_EQ(journal->generation(), 1);
    uuid = journal->cluster_uuid();
    journal->Start({});
    EXPECT_OK(Do(*journal, [](Store& store) { return Write(store, 7); }));
  }
  ASSERT_OK_AND_ASSIGN(auto journal, Open(dir));
  EXPECT_EQ(journal->generation(), 2);
  EXPECT_EQ(journal->cluster_uuid(), uuid);
  ASSERT_OK_AND_ASSIGN(const auto jobs, journal->store().LoadJobs());
  ASSERT_EQ(jobs.size(), 1u);
  EXPECT_EQ(jobs[0].create_sequence(), 7);
  ASSERT_OK_AND_ASSIGN(const auto events,
                       journal->store().ReadEvents("j7", 0, 10));
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].sequence(), 1);
}

TEST_F(JournalTest, RefusesASecondCoordinator) {
  const std::string dir = FreshDir("second");
  ASSERT_OK_AND_ASSIGN(auto journal, Open(dir));
  EXPECT_THAT(Open(dir).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("another coordinator")));
}

TEST_F(JournalTest, RefusesANewerSchema) {
  const std::string dir = FreshDir("newer");
  {
    ASSERT_OK(Open(dir));
  }
  {
    ASSERT_OK_AND_ASSIGN(Database db,
                         Database::Open(absl::StrCat(dir, "/state.db"),
                                        Database::Mode::kReadWrite));
    ASSERT_OK(
        db.Exec(absl::StrCat("PRAGMA user_version = ", SchemaVersion() + 1)));
  }
  EXPECT_THAT(Open(dir).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("newer release")));
}

TEST_F(JournalTest, AFailedMutationLeavesItsNeighboursAlone) {
  ASSERT_OK_AND_ASSIGN(auto journal, Open(FreshDir("neighbours")));
  std::vector<absl::Status> outcomes(3);
  absl::Notification finished;
  int published = 0;
  // Queued before the writer starts, so that all are one group.
  for (int i = 0; i < 3; ++i) {
    journal->Submit({.decide = [i](Store& store) -> absl::Status {
                       CADRE_RETURN_IF_ERROR(Write(store, i));
                       return i == 1 ? absl::AbortedError("no")
                                     : absl::OkStatus();
                     },
                     .done =
                         [&, i](const absl::Status& status) {
                           EXPECT_EQ(published, 1);
                           outcomes[i] = status;
                           if (i == 2) finished.Notify();
                         }});
  }
  journal->Start({.publish = [&] { ++published; }});
  finished.WaitForNotification();
  EXPECT_OK(outcomes[0]);
  EXPECT_THAT(outcomes[1], StatusIs(absl::StatusCode::kAborted));
  EXPECT_OK(outcomes[2]);
  journal->Stop();
  ASSERT_OK_AND_ASSIGN(const auto jobs, journal->store().LoadJobs());
  ASSERT_EQ(jobs.size(), 2u);
  // The undone event leaves no gap.
  EXPECT_EQ(journal->store().ReadEvents("j2", 0, 9)->at(0).sequence(), 2);
}

TEST_F(JournalTest, AFullDiskUndoesTheGroupAndSaysSo) {
  ASSERT_OK_AND_ASSIGN(auto journal, Open(FreshDir("full")));
  int rollbacks = 0;
  journal->Start({.rollback = [&] { ++rollbacks; }});
  // The limit of pages stands in for a full disk: SQLITE_FULL either way.
  EXPECT_OK(Do(*journal, [](Store& store) {
    return store.Exec("PRAGMA max_page_count = 20");
  }));
  const absl::Status status = Do(*journal, [](Store& store) {
    return store.PutMeta("big", std::string(1 << 20, 'x'));
  });
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(ErrorReason(status), "STATE_DISK_FULL");
  EXPECT_EQ(rollbacks, 1);
  EXPECT_OK(Do(*journal, [](Store& store) { return Write(store, 1); }));
}

TEST_F(JournalTest, ItsLogDoesNotGrowWithWhatIsWritten) {
  const std::string dir = FreshDir("log");
  ASSERT_OK_AND_ASSIGN(auto journal, Open(dir));
  journal->Start({});
  constexpr int64_t kWritten = int64_t{64} << 20;
  for (int64_t written = 0; written < kWritten; written += 1 << 18) {
    EXPECT_OK(Do(*journal, [](Store& store) {
      return store.PutMeta("big", std::string(1 << 18, 'x'));
    }));
  }
  EXPECT_LT(std::filesystem::file_size(dir + "/state.db-wal"), kWritten / 2);
  journal->Stop();
  ASSERT_OK_AND_ASSIGN(const std::string value,
                       journal->store().GetMeta("big"));
  EXPECT_EQ(value.size(), size_t{1} << 18);
}

TEST_F(JournalTest, AnswersUnavailableOnceStopped) {
  ASSERT_OK_AND_ASSIGN(auto journal, Open(FreshDir("stopped")));
  journal->Start({});
  journal->Stop();
  EXPECT_THAT(Do(*journal, [](Store&) { return absl::OkStatus(); }),
              StatusIs(absl::StatusCode::kUnavailable));
}

// What is on disk after kill -9 at each point: the fork has no threads yet, so
// it may start its own.
class CrashTest : public ::testing::TestWithParam<std::pair<const char*, int>> {
};

TEST_P(CrashTest, AllOrNothingIsLeft) {
  const auto [point, expected_jobs] = GetParam();
  const std::string dir = FreshDir(absl::StrCat("crash-", point));
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    FakeIdSource ids;
    MetricsRegistry metrics;
    auto journal = Journal::Open({.state_dir = dir,
                                  .clock = Clock::Real(),
                                  .ids = &ids,
                                  .metrics = &metrics});
    if (!journal.ok()) _exit(1);
    ArmFailpoints(absl::StrCat(point, "=kill"));
    (*journal)->Start({});
    Do(**journal, [](Store& store) -> absl::Status {
      CADRE_RETURN_IF_ERROR(Write(store, 1));
      return Write(store, 2);
    }).IgnoreError();
    _exit(2);  // the failpoint was not reached
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status)) << status;
  FakeIdSource ids;
  MetricsRegistry metrics;
  ASSERT_OK_AND_ASSIGN(auto journal, Journal::Open({.state_dir = dir,
                                                    .clock = Clock::Real(),
                                                    .ids = &ids,
                                                    .metrics = &metrics}));
  EXPECT_EQ(journal->generation(), 2);
  EXPECT_EQ(journal->store().LoadJobs()->size(),
            static_cast<size_t>(expected_jobs));
  EXPECT_EQ(journal->store().ReadEvents("j1", 0, 9)->size(),
            static_cast<size_t>(expected_jobs / 2));
}

INSTANTIATE_TEST_SUITE_P(
    Failpoints, CrashTest,
    ::testing::Values(std::make_pair("journal.before_begin", 0),
                      std::make_pair("journal.mid_batch", 0),
                      std::make_pair("journal.before_commit", 0),
                      std::make_pair("journal.after_commit", 2),
                      std::make_pair("journal.before_reply", 2)));

TEST(Statement, MovesAndOutlivesNothing) {
  ASSERT_OK_AND_ASSIGN(Database db,
                       Database::Open(":memory:", Database::Mode::kReadWrite));
  ASSERT_OK_AND_ASSIGN(Statement a, db.Prepare("SELECT ?"));
  Statement b = std::move(a);
  EXPECT_EQ(a.get(), nullptr);
  ASSERT_OK_AND_ASSIGN(const bool row, b.Bind(1, int64_t{5}).Step());
  ASSERT_TRUE(row);
  EXPECT_EQ(b.Int(0), 5);
  Statement& same = b;
  b = std::move(same);
  EXPECT_NE(b.get(), nullptr);
  EXPECT_THAT(db.Prepare("SELEKT 1").status(),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("SELEKT")));
  Database moved = std::move(db);
  EXPECT_EQ(db.get(), nullptr);
}

TEST(Migration, EveryReleasedSchemaIsBroughtForwardAfterACopy) {
  for (int from = 1; from < SchemaVersion(); ++from) {
    const std::string path = absl::StrCat(::testing::TempDir(), "/migrate-",
                                          from, "-", getpid(), ".db");
    std::filesystem::remove(path);
    ASSERT_OK_AND_ASSIGN(Database db,
                         Database::Open(path, Database::Mode::kReadWrite));
    for (int schema = 1; schema <= from; ++schema) {
      ASSERT_OK(db.Exec(MigrationTo(schema)));
    }
    ASSERT_OK(db.Exec(absl::StrCat(
        "PRAGMA user_version = ", from,
        "; INSERT INTO workers(id, admin_state, reason, last_incarnation) "
        "VALUES('w', 2, 'fan', 'i')")));
    ASSERT_OK(Migrate(db, path));
    Store store(&db);
    ASSERT_OK_AND_ASSIGN(const auto workers, store.LoadWorkers());
    ASSERT_EQ(workers.size(), 1u);
    EXPECT_EQ(workers[0].reason, "fan");
    EXPECT_TRUE(std::filesystem::exists(absl::StrCat(path, ".schema-", from)));
  }
}

TEST(Migration, ANewerSchemaIsLeftAlone) {
  ASSERT_OK_AND_ASSIGN(Database db,
                       Database::Open(":memory:", Database::Mode::kReadWrite));
  ASSERT_OK(db.Exec("PRAGMA user_version = 999"));
  EXPECT_EQ(ErrorReason(Migrate(db, ":memory:")), "SCHEMA_NEWER");
}

TEST(Backup, IsCheckedRotatedAndRestoredWithAJumpOfTheGeneration) {
  const std::string dir =
      absl::StrCat(::testing::TempDir(), "/backup-", getpid());
  std::filesystem::remove_all(dir);
  MetricsRegistry metrics;
  const Journal::Options options{.state_dir = dir + "/state",
                                 .clock = Clock::Real(),
                                 .ids = IdSource::Random(),
                                 .metrics = &metrics};
  {
    ASSERT_OK_AND_ASSIGN(const auto journal, Journal::Open(options));
    for (int i = 0; i < 4; ++i) {
      ASSERT_OK(BackUpInto(options.state_dir, dir + "/copies", 2));
    }
    ASSERT_OK_AND_ASSIGN(const BackupInfo info,
                         BackUp(options.state_dir, dir + "/copy.db"));
    EXPECT_EQ(info.generation, 1);
    EXPECT_THAT(BackUp(options.state_dir, dir + "/copy.db").status(),
                StatusIs(absl::StatusCode::kAlreadyExists));
    EXPECT_THAT(Restore(dir + "/copy.db", options.state_dir).status(),
                StatusIs(absl::StatusCode::kFailedPrecondition));
  }
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir + "/copies"),
                          std::filesystem::directory_iterator()),
            2);
  ASSERT_OK(Restore(dir + "/copy.db", options.state_dir));
  ASSERT_OK_AND_ASSIGN(const auto journal, Journal::Open(options));
  EXPECT_EQ(journal->generation(), 1 + kRestoreJump + 1);
  // A flipped page is found out.
  ASSERT_OK_AND_ASSIGN(std::string bytes, ReadFile(dir + "/copy.db"));
  for (size_t i = 4096; i < 4096 + 512; ++i) bytes[i] = '\x5a';
  ASSERT_OK(WriteFileAtomic(dir + "/bad.db", bytes));
  EXPECT_FALSE(CheckBackup(dir + "/bad.db").ok());
  ASSERT_OK(WriteFileAtomic(dir + "/none.db", "not a database"));
  EXPECT_THAT(CheckBackup(dir + "/none.db").status(),
              StatusIs(absl::StatusCode::kDataLoss));
}

TEST(Retention, EventsAreTrimmedFromTheFrontAndLeaveAMark) {
  ASSERT_OK_AND_ASSIGN(Database db,
                       Database::Open(":memory:", Database::Mode::kReadWrite));
  ASSERT_OK(Migrate(db, ":memory:"));
  Store store(&db);
  for (int i = 0; i < 10; ++i) {
    ASSERT_OK(store.AppendEvent(i % 2 == 0 ? "a" : "b", v1::Event()));
  }
  ASSERT_OK(store.TrimEvents("a", 2));
  ASSERT_OK_AND_ASSIGN(const auto left, store.ReadEvents("a", 0, 10));
  ASSERT_EQ(left.size(), 2u);
  EXPECT_EQ(left[0].sequence(), 7);
  EXPECT_EQ(*store.TrimmedUpTo("a"), 5);
  EXPECT_EQ(*store.TrimmedUpTo("b"), 0);
}

}  // namespace
}  // namespace cadre::coordinator
