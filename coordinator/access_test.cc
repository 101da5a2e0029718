// Tokens, roles, ownership, limits and the audit log, over gRPC with a real
// access list; certificates are tried with the real programs in tests/fault.

#include <openssl/sha.h>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "base/rpc/error.h"
#include "coordinator/access_list.h"
#include "coordinator/gate.h"
#include "coordinator/server_fixture.h"

namespace cadre::coordinator {
namespace {

using ::cadre::testing::StatusIs;
using ::testing::HasSubstr;
using Admin = v1::AdminService::Stub;
using Jobs = v1::JobService::Stub;

std::string Sha256(const std::string& text) {
  std::string digest(SHA256_DIGEST_LENGTH, '\0');
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(),
         reinterpret_cast<unsigned char*>(digest.data()));
  return absl::BytesToHexString(digest);
}

class AccessTest : public ServerFixture {
 protected:
  void SetUp() override {
    configure = [this](config::v1::CoordinatorConfig* config) {
      const std::string file = absl::StrCat(dir_, "/access");
      std::string text;
      for (const char* name : {"viewer", "submitter", "admin", "worker"}) {
        absl::StrAppend(&text, "tokens { name: '",
                        name == std::string("worker") ? "host" : name,
                        "' role: ROLE_", absl::AsciiStrToUpper(name),
                        " sha256: '", Sha256(Secret(name)), "' }\n");
      }
      absl::StrAppend(&text, "tokens { name: 'other' role: ROLE_SUBMITTER ",
                      "sha256: '", Sha256(Secret("other")), "' }\n");
      ASSERT_OK(WriteFileAtomic(file, text));
      config->set_access_file(file);
      config->set_rate_burst(30);
    };
    ServerFixture::SetUp();
  }
  static std::string Secret(const std::string& name) {
    return "secret-of-" + name;
  }
  // Later calls are made by that token's owner; "": by nobody.
  void Be(const std::string& name) {
    ChannelOptions options{.address = server_->address(), .insecure = true};
    if (!name.empty()) {
      options.token_file = absl::StrCat(dir_, "/token-", name);
      ASSERT_OK(WriteFileAtomic(options.token_file, Secret(name) + "\n"));
    }
    auto channel = OpenChannel(options);
    ASSERT_OK(channel);
    jobs_ = v1::JobService::NewStub(*channel);
    admin_ = v1::AdminService::NewStub(*channel);
    sync_ = v1::WorkerService::NewStub(*channel);
  }
  absl::Status Cordon() {
    v1::CordonRequest request;
    request.set_name("workers/host.0");
    return Call(admin_, &Admin::Cordon, request).status();
  }
};

TEST_F(AccessTest, NobodyAndStrangersAreTurnedAway) {
  Be("");
  EXPECT_THAT(Call(jobs_, &Jobs::ListJobs, v1::ListJobsRequest()).status(),
              StatusIs(absl::StatusCode::kUnauthenticated));
  Be("stranger");
  const absl::Status status =
      Call(jobs_, &Jobs::ListJobs, v1::ListJobsRequest()).status();
  EXPECT_EQ(ErrorReason(status), "TOKEN_INVALID");
  // Nothing of the secret comes back.
  EXPECT_EQ(std::string(status.message()).find("secret"), std::string::npos);
  absl::Status end;
  Watch("jobs/x", 0, false, &end);
  EXPECT_EQ(ErrorReason(end), "TOKEN_INVALID");
}

TEST_F(AccessTest, EachRoleMayDoItsPart) {
  Be("viewer");
  EXPECT_OK(Call(jobs_, &Jobs::ListJobs, v1::ListJobsRequest()));
  EXPECT_EQ(ErrorReason(Create(Request(1)).status()), "ROLE_REQUIRED");
  Be("submitter");
  const std::string name = MustCreate(1);
  EXPECT_EQ(Get(name).owner(), "submitter");
  EXPECT_EQ(ErrorReason(Cordon()), "ROLE_REQUIRED");
  Be("other");
  EXPECT_EQ(ErrorReason(Cancel(name).status()), "NOT_OWNER");
  Be("worker");
  EXPECT_EQ(ErrorReason(Create(Request(1)).status()), "ROLE_REQUIRED");
  AddWorkers(1);
  SyncAll();
  FakeWorker liar("elsewhere.0", "x");
  EXPECT_EQ(ErrorReason(liar.Sync(sync_.get())), "WORKER_ID_MISMATCH");
  Be("admin");
  FakeWorker admin("host.1", "x");
  EXPECT_EQ(ErrorReason(admin.Sync(sync_.get())), "ROLE_REQUIRED");
  EXPECT_OK(Cordon());
  EXPECT_OK(Cancel(name));
}

TEST_F(AccessTest, ChangesAndDenialsAreInTheAuditLog) {
  Be("submitter");
  const std::string name = MustCreate(1);
  EXPECT_FALSE(Cordon().ok());
  Be("other");
  EXPECT_FALSE(Cancel(name).ok());
  Be("admin");
  ASSERT_OK(Cancel(name));
  v1::ListAuditRecordsRequest request;
  request.set_page_size(3);
  std::string log;
  do {
    ASSERT_OK_AND_ASSIGN(const auto page,
                         Call(admin_, &Admin::ListAuditRecords, request));
    for (const auto& record : page.records()) {
      absl::StrAppend(&log, record.principal(), " ", record.method(), " ",
                      record.target(), " ", record.outcome(), "\n");
      EXPECT_THAT(record.peer(), HasSubstr("127.0.0.1"));
    }
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty());
  EXPECT_EQ(log, absl::StrCat("admin CancelJob ", name, " OK\n",
                              "other CancelJob  NOT_OWNER\n",
                              "submitter Cordon  ROLE_REQUIRED\n",
                              "submitter CreateJob ", name, " OK\n"));
}

TEST_F(AccessTest, TooManyCallsAreToldWhenToComeBack) {
  Be("viewer");
  absl::Status status;
  for (int i = 0; i < 31; ++i) {
    status = Call(jobs_, &Jobs::ListJobs, v1::ListJobsRequest()).status();
  }
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(ErrorReason(status), "RATE_LIMITED");
  clock_.Advance(absl::Seconds(1));
  EXPECT_OK(Call(jobs_, &Jobs::ListJobs, v1::ListJobsRequest()));
}

TEST_F(AccessTest, AHugeRequestIsRefused) {
  Be("submitter");
  auto request = Request(1);
  request.set_job_yaml(std::string(20 << 20, 'x'));
  EXPECT_THAT(Create(request).status(),
              StatusIs(absl::StatusCode::kResourceExhausted));
  request.set_job_yaml(std::string(300 << 10, ' '));
  EXPECT_THAT(Create(request).status(),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(Roles, EveryMethodHasOne) {
  for (const auto* service : {v1::JobService::service_full_name(),
                              v1::AdminService::service_full_name(),
                              v1::WorkerService::service_full_name()}) {
    const auto* descriptor =
        google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(
            service);
    ASSERT_NE(descriptor, nullptr) << service;
    for (int i = 0; i < descriptor->method_count(); ++i) {
      EXPECT_NE(RoleFor(descriptor->method(i)->name()), Role::kNone)
          << descriptor->method(i)->full_name();
    }
  }
  EXPECT_EQ(RoleFor("Nonsense"), Role::kNone);
}

TEST(AccessList, RefusesEntriesThatCannotBeMeant) {
  config::v1::AccessList config;
  auto* token = config.add_tokens();
  token->set_name("a");
  token->set_role(config::v1::AccessList::ROLE_ADMIN);
  token->set_sha256("secret");
  EXPECT_THAT(AccessList::Make(config).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("64 hexadecimal")));
  token->set_sha256(Sha256("x"));
  ASSERT_OK_AND_ASSIGN(const AccessList list, AccessList::Make(config));
  EXPECT_EQ(list.ByToken("x")->principal, "a");
  EXPECT_FALSE(list.ByToken("y").has_value());
  *config.add_tokens() = *token;
  EXPECT_FALSE(AccessList::Make(config).ok());
}

TEST(AccessList, AWildcardCertificateSpeaksForItsOwnHostOnly) {
  config::v1::AccessList config;
  auto* entry = config.add_certificates();
  entry->set_san("*.pool.example");
  entry->set_role(config::v1::AccessList::ROLE_WORKER);
  ASSERT_OK_AND_ASSIGN(const AccessList list, AccessList::Make(config));
  const auto caller = list.ByNames({"a.pool.example"});
  ASSERT_TRUE(caller.has_value());
  EXPECT_OK(CheckWorkerId(*caller, "a.pool.example.3"));
  EXPECT_EQ(ErrorReason(CheckWorkerId(*caller, "b.pool.example.3")),
            "WORKER_ID_MISMATCH");
  EXPECT_FALSE(list.ByNames({"pool.example", "x.other"}).has_value());
}

}  // namespace
}  // namespace cadre::coordinator
