#include "tests/cluster/cluster.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "coordinator/etcd.h"

namespace cadre::testing {
namespace {

namespace fs = std::filesystem;

constexpr char kCoordinator[] = "coordinator/cadre-coordinator";
constexpr char kEtcd[] = "/usr/bin/etcd";  // Debian's etcd-server
constexpr char kWorker[] = "worker/cadre-worker";
constexpr char kGoldenModel[] = "tests/golden/kimi_linear/model";

// A byte-level tokenizer of the printable ASCII bytes, blank and newline: small
// enough for the fixture's vocabulary.
std::string TokenizerJson() {
  std::string vocab;
  int id = 0;
  const auto add = [&](const std::string& token) {
    absl::StrAppend(&vocab, id == 0 ? "" : ",", "\"", token, "\":", id);
    ++id;
  };
  for (char c = '!'; c <= '~'; ++c) {
    add(c == '"' || c == '\\' ? std::string("\\") + c : std::string(1, c));
  }
  add("\u0120");  // blank
  add("\u010a");  // newline
  return absl::StrCat(
      R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":[)",
      R"({"id":)", id, R"(,"content":"<|end|>","single_word":false,)",
      R"("lstrip":false,"rstrip":false,"normalized":false,"special":true}],)",
      R"("normalizer":null,"pre_tokenizer":{"type":"ByteLevel",)",
      R"("add_prefix_space":false,"trim_offsets":true,"use_regex":true},)",
      R"("post_processor":null,"decoder":{"type":"ByteLevel",)",
      R"("add_prefix_space":false,"trim_offsets":true,"use_regex":true},)",
      R"("model":{"type":"BPE","dropout":null,"unk_token":null,)",
      R"("continuing_subword_prefix":null,"end_of_word_suffix":null,)",
      R"("fuse_unk":false,"byte_fallback":false,"ignore_merges":false,)",
      R"("vocab":{)", vocab, R"(},"merges":[]}})");
}

absl::Status WriteModelDir(const std::string& dir) {
  fs::create_directories(dir);
  for (const char* file : {"config.json", "model.safetensors"}) {
    std::error_code error;
    fs::copy_file(fs::path(kGoldenModel) / file, fs::path(dir) / file,
                  fs::copy_options::overwrite_existing, error);
    if (error) {
      return absl::InternalError(
          absl::StrCat("copying ", file, ": ", error.message()));
    }
  }
  CADRE_RETURN_IF_ERROR(
      WriteFileAtomic(dir + "/tokenizer.json", TokenizerJson()));
  return WriteFileAtomic(dir + "/tokenizer_config.json",
                         R"({"eos_token":"<|end|>"})");
}

absl::Status WriteData(const std::string& path) {
  std::string text;
  for (int i = 0; i < 64; ++i) {
    absl::StrAppend(&text, "{\"text\":\"line ", i, " of ", 64,
                    ": the quick brown fox jumps over the lazy dog ", i % 7,
                    " times\"}\n");
  }
  return WriteFileAtomic(path, text);
}

// The value of `key` in a ports file, once the process has written it.
absl::StatusOr<int> ReadPort(const std::string& path, const std::string& key) {
  for (int tries = 0; tries < 3000; ++tries) {
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
      if (line.rfind(key + "=", 0) == 0) {
        return std::stoi(line.substr(key.size() + 1));
      }
    }
    // Another process is awaited: there is nothing to be notified by.
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return absl::DeadlineExceededError(
      absl::StrCat("no ", key, " in ", path, " after 30 s"));
}

// Free at this moment: etcd cannot pick a port by itself, and peers must know
// those of the coordinators beforehand.
absl::StatusOr<int> FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* plain = reinterpret_cast<sockaddr*>(&address);
  const bool bound = fd >= 0 && bind(fd, plain, size) == 0 &&
                     getsockname(fd, plain, &size) == 0;
  if (fd >= 0) close(fd);
  if (!bound) return absl::InternalError("no free port");
  return ntohs(address.sin_port);
}

// In memory where there is room: etcd syncs every write, and a disk that is
// busy with something else can hold one up for longer than a lease lives.
std::string EtcdDir(const std::string& fallback) {
  constexpr uintmax_t kRoom = 512 << 20;  // its log alone takes 2 * 64 MB
  std::error_code error;
  const fs::space_info shm = fs::space("/dev/shm", error);
  if (!error && shm.available >= kRoom) {
    std::string dir = "/dev/shm/cadre-etcd-XXXXXX";
    if (mkdtemp(dir.data()) != nullptr) return dir;
  }
  return fallback + "/etcd";
}

absl::Status WaitForEtcd(const std::string& address) {
  CADRE_ASSIGN_OR_RETURN(const auto etcd,
                         coordinator::Etcd::Connect({.endpoints = {address}}));
  const absl::Time deadline = absl::Now() + absl::Minutes(2);
  absl::Status status;
  do {
    status = etcd->GrantLease(absl::Seconds(1), absl::Seconds(5)).status();
    if (status.ok()) return status;
    absl::SleepFor(absl::Milliseconds(10));
  } while (absl::Now() < deadline);
  return status;
}

}  // namespace

Cluster::~Cluster() {
  etcd_.Kill();
  std::error_code ignored;
  if (!etcd_dir_.empty()) fs::remove_all(etcd_dir_, ignored);
}

std::string Cluster::PortsFile(int number) const {
  return absl::StrCat(dir_, "/coordinator-", number, ".ports");
}

std::string Cluster::Addresses() const {
  std::vector<std::string> addresses;
  for (const Coordinator& coordinator : coordinators_) {
    if (coordinator.port == 0) continue;
    addresses.push_back(absl::StrCat("127.0.0.1:", coordinator.port));
  }
  return absl::StrJoin(addresses, ",");
}

absl::Status Cluster::StartEtcd() {
  etcd_dir_ = EtcdDir(dir_);
  CADRE_ASSIGN_OR_RETURN(const int client, FreePort());
  CADRE_ASSIGN_OR_RETURN(const int peer, FreePort());
  etcd_address_ = absl::StrCat("127.0.0.1:", client);
  const std::string client_url = "http://" + etcd_address_;
  const std::string peer_url = absl::StrCat("http://127.0.0.1:", peer);
  CADRE_ASSIGN_OR_RETURN(
      etcd_,
      Process::Start(
          {kEtcd, "--name", "one", "--data-dir", etcd_dir_,
           "--listen-client-urls", client_url, "--advertise-client-urls",
           client_url, "--listen-peer-urls", peer_url,
           "--initial-advertise-peer-urls", peer_url, "--initial-cluster",
           "one=" + peer_url, "--logger", "zap", "--log-level", "warn"}));
  CADRE_RETURN_IF_ERROR(WaitForEtcd(etcd_address_));
  // Others must know the addresses before the coordinators serve.
  for (Coordinator& coordinator : coordinators_) {
    CADRE_ASSIGN_OR_RETURN(coordinator.port, FreePort());
  }
  return absl::OkStatus();
}

absl::Status Cluster::WaitUntilServing(int number) {
  CADRE_ASSIGN_OR_RETURN(coordinators_[number].port,
                         ReadPort(PortsFile(number), "api"));
  return absl::OkStatus();
}

absl::Status Cluster::StartCoordinator(int number, bool wait) {
  Coordinator& coordinator = coordinators_[number];
  const std::string config = dir_ + "/coordinator.textproto";
  fs::remove(PortsFile(number));
  std::string election;
  if (!etcd_address_.empty()) {
    election = absl::StrCat("election { endpoints: \"", etcd_address_,
                            "\" lease_ttl: \"3s\" }\n");
  }
  CADRE_RETURN_IF_ERROR(WriteFileAtomic(
      config, absl::StrCat("timeouts { ", coordinator_timeouts_,
                           " }\nshrink_after: \"3s\"\n", election)));
  CADRE_ASSIGN_OR_RETURN(
      coordinator.process,
      Process::Start({kCoordinator, "--config", config, "--insecure",
                      "--listen", absl::StrCat("127.0.0.1:", coordinator.port),
                      "--metrics-listen", "off", "--health-listen", "off",
                      "--state-dir", dir_ + "/state", "--ports-file",
                      PortsFile(number)}));
  if (wait) CADRE_RETURN_IF_ERROR(WaitUntilServing(number));
  if (client_ == nullptr) {
    CADRE_ASSIGN_OR_RETURN(
        client_, client::JobClient::Connect({.address = Addresses()}));
  }
  return absl::OkStatus();
}

absl::Status Cluster::StartWorker(int number) {
  if (number >= static_cast<int>(workers_.size())) workers_.resize(number + 1);
  const std::string config = dir_ + "/worker.textproto";
  CADRE_RETURN_IF_ERROR(WriteFileAtomic(
      config, absl::StrCat("timeouts { ", worker_timeouts_, " }\n")));
  CADRE_ASSIGN_OR_RETURN(
      workers_[number],
      Process::Start({"/usr/bin/env",
                      "CADRE_FAILPOINTS=worker.step=slow:" + SlowFile(),
                      kWorker, "--config", config, "--insecure",
                      "--coordinator", Addresses(), "--device", "cpu",
                      "--worker-id", absl::StrCat("test.", number),
                      "--metrics-listen", "off", "--health-listen", "off"}));
  return absl::OkStatus();
}

absl::Status Cluster::SlowDown() { return WriteFileAtomic(SlowFile(), ""); }

void Cluster::SpeedUp() { fs::remove(SlowFile()); }

absl::StatusOr<cadre::v1::JobSpec> Cluster::MakeJob(int workers, int steps) {
  CADRE_RETURN_IF_ERROR(WriteModelDir(model_dir()));
  const std::string data = dir_ + "/train.jsonl";
  CADRE_RETURN_IF_ERROR(WriteData(data));
  cadre::v1::JobSpec spec;
  spec.set_version(1);
  spec.mutable_model()->set_path(model_dir());
  spec.mutable_model()->set_dtype("fp32");
  spec.mutable_data()->add_train(data);
  spec.mutable_data()->set_max_seq_len(128);
  auto* tuning = spec.mutable_tuning();
  tuning->set_lora_rank(4);
  tuning->add_lora_target_modules("q_proj");
  tuning->add_lora_target_modules("experts");
  spec.mutable_training()->set_max_steps(steps);
  spec.mutable_training()->set_global_batch_size(4);
  spec.mutable_training()->set_micro_batch_size(1);
  spec.mutable_training()->set_learning_rate(1e-2);
  spec.mutable_checkpoint()->set_every_steps(5);
  spec.mutable_resources()->set_backend("cpu");
  spec.mutable_resources()->set_workers(workers);
  return spec;
}

}  // namespace cadre::testing
