#ifndef CADRE_TESTS_CLUSTER_CLUSTER_H_
#define CADRE_TESTS_CLUSTER_CLUSTER_H_

// A real coordinator and real CPU workers on loopback, with a tiny model to
// train: what the cluster tests start from. Not thread-safe.

#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "cadre/v1/job_spec.pb.h"
#include "client/job_client.h"
#include "tests/cluster/process.h"

namespace cadre::testing {

class Cluster {
 public:
  // Everything is kept below `dir`, which must be empty.
  explicit Cluster(std::string dir) : dir_(std::move(dir)) {}
  ~Cluster();

  // The bodies of `timeouts` messages, for the coordinators and for the
  // workers. Before the first of them.
  void SetTimeouts(std::string coordinators, std::string workers) {
    coordinator_timeouts_ = std::move(coordinators);
    worker_timeouts_ = std::move(workers);
  }
  // From now on the coordinators share their state, and a real etcd settles
  // which of two is active. Returns once it answers. Before the first of them.
  absl::Status StartEtcd();
  // The first start picks a port, later ones take it again. Returns once it
  // serves; with etcd only if `wait`.
  absl::Status StartCoordinator(int number = 0, bool wait = true);
  // DEADLINE_EXCEEDED after half a minute.
  absl::Status WaitUntilServing(int number);
  Process& coordinator(int number) { return coordinators_[number].process; }
  void KillCoordinator() { coordinators_[0].process.Kill(); }
  // Replaces the worker of that number; the former is killed.
  absl::Status StartWorker(int number);
  Process& worker(int number) { return workers_.at(number); }
  // While slowed down, half a second is added to every step: a job lasts until
  // a test has done to it what it wants, however quick the machine is.
  absl::Status SlowDown();
  void SpeedUp();

  // Connected to this cluster; reconnects after a restart.
  client::JobClient& client() { return *client_; }

  // Writes a model directory (weights from the golden fixture, a tokenizer of
  // single bytes) and training text, and returns a LoRA job on them.
  absl::StatusOr<cadre::v1::JobSpec> MakeJob(int workers, int steps);
  std::string model_dir() const { return dir_ + "/model"; }

 private:
  struct Coordinator {
    Process process;
    int port = 0;
  };
  std::string PortsFile(int number) const;
  std::string SlowFile() const { return dir_ + "/slow"; }
  // Where clients and workers look for the active one.
  std::string Addresses() const;

  const std::string dir_;
  // A quick beat keeps a test short.
  std::string coordinator_timeouts_ = "sync_interval: \"100ms\"";
  std::string worker_timeouts_;
  Process etcd_;
  std::string etcd_dir_, etcd_address_;  // empty: one coordinator
  std::array<Coordinator, 2> coordinators_;
  std::vector<Process> workers_;
  std::unique_ptr<client::JobClient> client_;
};

}  // namespace cadre::testing

#endif  // CADRE_TESTS_CLUSTER_CLUSTER_H_
