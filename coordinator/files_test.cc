// Downloads and the end of what jobs leave behind, over gRPC.

#include <fstream>

#include "base/rpc/error.h"
#include "coordinator/job_table.h"
#include "coordinator/server_fixture.h"

namespace cadre::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Jobs = v1::JobService::Stub;
using Admin = v1::AdminService::Stub;
namespace fs = std::filesystem;

class FilesTest : public ServerFixture {
 protected:
  // A job that has succeeded and left 2.5 MiB of adapter.
  std::string EndedJob(const std::string& id = "") {
    if (workers_.empty()) {
      AddWorkers(1);
      workers_[0]->writes_files = true;
      workers_[0]->content.resize(5 << 19);
      for (size_t i = 0; i < workers_[0]->content.size(); ++i) {
        workers_[0]->content[i] = static_cast<char>(i * i >> 7);
      }
    }
    auto request = Request(1, 8);
    request.set_job_id(id);
    auto created = Create(request);
    EXPECT_OK(created);
    if (!created.ok()) return "";
    EXPECT_TRUE(SyncUntilState(created->job().name(), v1::JOB_STATE_SUCCEEDED));
    return created->job().name();
  }

  struct Download {
    v1::DownloadArtifactResponse::Listing listing;
    std::string bytes;
    int chunks = 0;
    absl::Status status;
  };
  Download Get(const std::string& name, const std::string& file = "",
               int64_t offset = 0, bool path_only = false) {
    Download out;
    grpc::ClientContext context;
    v1::DownloadArtifactRequest request;
    request.set_name(name);
    request.set_file(file);
    request.set_offset(offset);
    request.set_path_only(path_only);
    auto reader = jobs_->DownloadArtifact(&context, request);
    v1::DownloadArtifactResponse part;
    while (reader->Read(&part)) {
      if (part.has_listing()) {
        out.listing = part.listing();
        continue;
      }
      ++out.chunks;
      EXPECT_EQ(part.chunk().offset(),
                offset + static_cast<int64_t>(out.bytes.size()));
      out.bytes += part.chunk().data();
    }
    out.status = FromGrpcStatus(reader->Finish());
    return out;
  }
  std::string Reason(const Download& download) {
    return ErrorReason(download.status);
  }
  std::string CheckpointsOf(const std::string& name) {
    return absl::StrCat(dir_, "/state/checkpoints/", JobId(name));
  }
  std::string OutputsOf(const std::string& name) {
    return fs::path(absl::StrCat(dir_, "/state/outputs/", JobId(name)))
        .lexically_normal();
  }
  ::testing::AssertionResult Gone(const std::string& path) {
    return SyncUntil([&] { return !fs::exists(path); }, "removal of " + path);
  }
};

TEST_F(FilesTest, AResultComesListedThenInParts) {
  const std::string adapter = EndedJob() + "/artifacts/adapter";
  const Download listing = Get(adapter);
  ASSERT_OK(listing.status);
  ASSERT_EQ(listing.listing.files_size(), 2);
  EXPECT_EQ(listing.listing.files(0).path(), "cadre_manifest.json");
  EXPECT_EQ(listing.listing.files(1).path(), "part/data.bin");
  EXPECT_EQ(listing.chunks, 0);
  const Download whole = Get(adapter, "part/data.bin");
  ASSERT_OK(whole.status);
  EXPECT_EQ(whole.chunks, 3);
  EXPECT_EQ(whole.bytes, workers_[0]->content);
  const int64_t size = whole.listing.files(1).bytes();
  const Download rest = Get(adapter, "part/data.bin", size - 10);
  ASSERT_OK(rest.status);
  EXPECT_EQ(rest.bytes, whole.bytes.substr(size - 10));
  const Download none = Get(adapter, "part/data.bin", size);
  ASSERT_OK(none.status);
  EXPECT_EQ(none.bytes, "");
  EXPECT_EQ(Reason(Get(adapter, "part/data.bin", size + 1)), "OFFSET_PAST_END");
}

TEST_F(FilesTest, OnlyWhatAManifestListsIsServed) {
  const std::string name = EndedJob();
  const std::string adapter = name + "/artifacts/adapter";
  for (const char* file : {"/etc/passwd", "../secret", "part/other"}) {
    EXPECT_EQ(Reason(Get(adapter, file)), "ARTIFACT_NOT_FOUND") << file;
  }
  EXPECT_EQ(Reason(Get(name + "/artifacts/other")), "ARTIFACT_NOT_FOUND");
  EXPECT_EQ(Reason(Get(name + "/checkpoints/3")), "CHECKPOINT_NOT_FOUND");
  EXPECT_EQ(Reason(Get("jobs/none/artifacts/adapter")), "JOB_NOT_FOUND");
  EXPECT_EQ(Reason(Get("nonsense")), "JOB_NOT_FOUND");
  const Download checkpoint = Get(name + "/checkpoints/8", "manifest.json");
  ASSERT_OK(checkpoint.status);
  EXPECT_THAT(checkpoint.bytes, HasSubstr("data.bin"));
}

TEST_F(FilesTest, DamageIsFoundAndAMissingFolderNamed) {
  const std::string name = EndedJob();
  const std::string adapter = name + "/artifacts/adapter";
  const std::string file = OutputsOf(name) + "/part/data.bin";
  std::fstream(file, std::ios::in | std::ios::out | std::ios::binary) << "X";
  const Download damaged = Get(adapter, "part/data.bin");
  EXPECT_EQ(Reason(damaged), "CHECKSUM_MISMATCH");
  fs::resize_file(file, 5);
  EXPECT_EQ(Reason(Get(adapter, "part/data.bin")), "CHECKSUM_MISMATCH");
  ASSERT_OK(
      WriteFileAtomic(OutputsOf(name) + "/cadre_manifest.json", "{\"a\": 1}"));
  EXPECT_EQ(Reason(Get(adapter)), "CHECKSUM_MISMATCH");
  fs::remove_all(OutputsOf(name));
  EXPECT_EQ(Reason(Get(adapter)), "ARTIFACT_NOT_LOCAL");
  const Download path = Get(adapter, "", 0, true);
  ASSERT_OK(path.status);
  EXPECT_EQ(path.listing.storage_path(), OutputsOf(name));
}

TEST_F(FilesTest, DeletingWithPurgeRemovesTheFolders) {
  const std::string name = EndedJob();
  ASSERT_TRUE(fs::exists(CheckpointsOf(name)));
  v1::DeleteJobRequest request;
  request.set_name(name);
  request.set_purge_artifacts(true);
  ASSERT_OK(Call(jobs_, &Jobs::DeleteJob, request));
  EXPECT_TRUE(Gone(CheckpointsOf(name)));
  EXPECT_TRUE(Gone(OutputsOf(name)));
  EXPECT_TRUE(Gone(CheckpointsOf(name) + ".purged"));
  const std::string kept = EndedJob();
  request.set_name(kept);
  request.set_purge_artifacts(false);
  ASSERT_OK(Call(jobs_, &Jobs::DeleteJob, request));
  EXPECT_TRUE(fs::exists(CheckpointsOf(kept)));
}

TEST_F(FilesTest, FilesThatAnotherJobStartsFromStay) {
  const std::string name = EndedJob();
  auto next = Request(6);  // waits: there is one worker
  std::string yaml = next.job_yaml();
  yaml.replace(
      yaml.find("checkpoint:\n"), 12,
      absl::StrCat("checkpoint:\n  resume_from: ", name, "/checkpoints/8\n"));
  next.set_job_yaml(yaml);
  ASSERT_OK_AND_ASSIGN(const auto waiting, Create(next));
  v1::DeleteJobRequest request;
  request.set_name(name);
  request.set_purge_artifacts(true);
  EXPECT_EQ(ErrorReason(Call(jobs_, &Jobs::DeleteJob, request).status()),
            "CHECKPOINT_IN_USE");
  v1::PurgeJobsRequest purge;
  purge.set_filter("state = SUCCEEDED");
  purge.set_force(true);
  purge.set_purge_artifacts(true);
  ASSERT_OK_AND_ASSIGN(auto purged, Call(admin_, &Admin::PurgeJobs, purge));
  EXPECT_THAT(purged.names(), IsEmpty());
  EXPECT_THAT(purged.in_use(), ElementsAre(name));
  EXPECT_TRUE(fs::exists(CheckpointsOf(name)));
  ASSERT_OK(Cancel(waiting.job().name()));
  ASSERT_OK(Call(jobs_, &Jobs::DeleteJob, request));
  EXPECT_TRUE(Gone(CheckpointsOf(name)));
}

TEST_F(FilesTest, APurgeSaysFirstWhatItWouldForget) {
  const std::string first = EndedJob("first");
  clock_.Advance(absl::Hours(2));
  const std::string second = EndedJob("second");
  const std::string running = MustCreate(3);
  v1::PurgeJobsRequest request;
  EXPECT_EQ(ErrorReason(Call(admin_, &Admin::PurgeJobs, request).status()),
            "FILTER_INVALID");
  request.set_filter("stat = X");
  EXPECT_EQ(ErrorReason(Call(admin_, &Admin::PurgeJobs, request).status()),
            "FILTER_INVALID");
  request.set_filter("state != RUNNING");
  ASSERT_OK_AND_ASSIGN(auto answer, Call(admin_, &Admin::PurgeJobs, request));
  EXPECT_THAT(answer.names(), ElementsAre(first, second));
  request.mutable_ended_before()->set_seconds(
      absl::ToUnixSeconds(clock_.Now() - absl::Hours(1)));
  request.set_force(true);
  ASSERT_OK_AND_ASSIGN(answer, Call(admin_, &Admin::PurgeJobs, request));
  EXPECT_THAT(answer.names(), ElementsAre(first));
  v1::ListJobsRequest list;
  list.set_order_by("name desc");
  ASSERT_OK_AND_ASSIGN(const auto jobs, Call(jobs_, &Jobs::ListJobs, list));
  ASSERT_EQ(jobs.jobs_size(), 2);
  EXPECT_EQ(jobs.jobs(0).name(), second);
  EXPECT_EQ(jobs.jobs(1).name(), running);
}

TEST_F(FilesTest, RetentionRemovesFoldersWhereTheConfigurationSaysSo) {
  configure = [](config::v1::CoordinatorConfig* config) {
    config->mutable_retention()->set_job_days(1);
    config->mutable_retention()->set_purge_artifacts(true);
  };
  RestartServer(false);
  const std::string name = EndedJob();
  clock_.Advance(absl::Hours(49));
  EXPECT_TRUE(Gone(CheckpointsOf(name)));
  EXPECT_TRUE(Gone(OutputsOf(name)));
}

}  // namespace
}  // namespace cadre::coordinator
