#ifndef CADRE_COORDINATOR_FAKE_WORKER_H_
#define CADRE_COORDINATOR_FAKE_WORKER_H_

// A worker's side of Sync by script, for tests: it does what it is told in no
// time and trains on nothing. Not thread-safe.

#include <grpcpp/grpcpp.h>

#include <filesystem>
#include <functional>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/rpc/grpc_status.h"
#include "cadre/v1/worker_service.grpc.pb.h"
#include "model/sha256.h"

namespace cadre::coordinator {

class FakeWorker {
 public:
  FakeWorker(const std::string& id, const std::string& incarnation) {
    state_.set_worker_id(id);
    state_.set_incarnation(incarnation);
    state_.set_protocol_version(1);
    state_.mutable_device()->set_backend("cpu");
    state_.mutable_device()->set_hostname("host");
    state_.mutable_idle();
  }

  // Steps between saves; 0: never.
  int64_t save_every = 4;
  // Stops advancing at this step; -1: never.
  int64_t hold_at_step = -1;
  // Holds back the phase change after READY.
  bool hold_prepare = false;
  bool hold_export = false;
  bool seals = true;
  bool seals_fail = false;
  // Leaves the adapter and the sealed checkpoints on disk, each a manifest and
  // one file with `content`.
  bool writes_files = false;
  std::string content = "weights";
  int64_t claimed_bytes = 0;  // instead of its size, in manifests; 0: its size
  // Reports loss and expert loads of each step.
  bool values = true;
  // Of a step, where the default will not do.
  std::function<v1::ExpertLoads(int64_t step)> expert_loads;

  // One call, then what the answer asks for.
  absl::Status Sync(v1::WorkerService::Stub* stub) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() +
                         std::chrono::seconds(100));
    v1::SyncResponse reply;
    const absl::Status status =
        FromGrpcStatus(stub->Sync(&context, state_, &reply));
    if (!status.ok()) return status;
    last_reply = reply;
    Obey(reply);
    return status;
  }

  void Fail(v1::FailureCause cause, const std::string& message,
            bool secondary = false) {
    v1::EndedState ended;
    ended.set_result(v1::EndedState::RESULT_ERROR);
    ended.set_cause(cause);
    ended.set_secondary(secondary);
    ended.mutable_status()->set_code(13);
    ended.mutable_status()->set_message(message);
    ended.set_step(step_);
    *state_.mutable_ended() = ended;
  }
  void Drain() { state_.set_draining(true); }

  // The experts move to the placement that this rank has prepared.
  void MoveExperts() {
    v1::RunningState* running = state_.mutable_running();
    running->set_plan_epoch(running->prepared_plan_epoch());
    if (assignment_.rank() != 0) return;
    v1::ExpertsPlaced* placed = AddReport()->mutable_experts_placed();
    placed->set_plan_epoch(running->plan_epoch());
    placed->set_step(step_);
  }

  const v1::SyncRequest& state() const { return state_; }
  v1::SyncRequest& mutable_state() { return state_; }
  const v1::Assignment& assignment() const { return assignment_; }
  int64_t step() const { return step_; }
  v1::SyncResponse last_reply;

 private:
  v1::Report* AddReport() {
    v1::Report* report = state_.add_reports();
    report->set_report_seq(++report_seq_);
    report->set_attempt_epoch(state_.attempt_epoch());
    return report;
  }

  void Obey(const v1::SyncResponse& reply) {
    while (state_.reports_size() > 0 &&
           state_.reports(0).report_seq() <= reply.accepted_report_seq()) {
      state_.mutable_reports()->DeleteSubrange(0, 1);
    }
    state_.set_cluster_uuid(reply.cluster_uuid());
    state_.set_generation(reply.generation());
    if (reply.seal_checkpoint() > sealed_ && seals) Seal(reply);
    switch (reply.desired_case()) {
      case v1::SyncResponse::kRun:
        Run(reply);
        break;
      case v1::SyncResponse::kStop:
        if (state_.has_ended()) break;
        state_.mutable_ended()->set_result(
            reply.stop().mode() == v1::STOP_MODE_NOW
                ? v1::EndedState::RESULT_ABORTED
                : v1::EndedState::RESULT_STOPPED);
        state_.mutable_ended()->set_step(step_);
        break;
      case v1::SyncResponse::kIdle:
        state_.mutable_idle();
        state_.clear_attempt_epoch();
        state_.clear_job();
        state_.clear_assignment_digest();
        break;
      default:
        break;
    }
  }

  void Seal(const v1::SyncResponse& reply) {
    sealed_ = reply.seal_checkpoint();
    if (seals_fail) {
      auto* failed = AddReport()->mutable_checkpoint_failed();
      failed->set_step(sealed_);
      failed->set_reason("no such file");
      return;
    }
    auto* sealed = AddReport()->mutable_checkpoint_sealed();
    sealed->set_step(sealed_);
    sealed->set_storage_path(Folder(sealed_));
    sealed->set_manifest_sha256(
        writes_files ? WriteFolder(Folder(sealed_), "manifest.json") : "m");
    sealed->set_bytes(reply.seal_files_size());
  }

  std::string Folder(int64_t step) const {
    return absl::StrCat(assignment_.checkpoint_dir(), "/step-", step,
                        ".attempt-", assignment_.attempt_epoch());
  }

  static std::string Digest(const std::string& text) {
    Sha256 sha;
    sha.Update(text);
    return sha.HexDigest();
  }
  // Returns the manifest's digest.
  std::string WriteFolder(const std::string& folder, const char* manifest) {
    std::filesystem::create_directories(absl::StrCat(folder, "/part"));
    const std::string text =
        absl::StrCat(R"({"files": [{"path": "part/data.bin", "bytes": )",
                     claimed_bytes > 0 ? claimed_bytes
                                       : static_cast<int64_t>(content.size()),
                     R"(, "sha256": ")", Digest(content), R"("}]})");
    const bool written =
        WriteFileAtomic(absl::StrCat(folder, "/part/data.bin"), content).ok() &&
        WriteFileAtomic(absl::StrCat(folder, "/", manifest), text).ok();
    return written ? Digest(text) : "";
  }

  void Run(const v1::SyncResponse& reply) {
    const v1::DesiredRun& run = reply.run();
    if (run.has_assignment()) {
      assignment_ = run.assignment();
      state_.set_attempt_epoch(run.attempt_epoch());
      state_.set_job(assignment_.job());
      state_.set_assignment_digest(run.assignment_digest());
      step_ = assignment_.resume_step();
      sealed_ = step_;
      (*state_.mutable_preparing()
            ->mutable_published())[absl::StrCat("rank", assignment_.rank())] =
          state_.incarnation();
      return;
    }
    if (reply.has_placement() && state_.has_running()) {
      state_.mutable_running()->set_prepared_plan_epoch(
          reply.placement().plan_epoch());
    }
    switch (run.target()) {
      case v1::DesiredRun::TARGET_PREPARE:
        if (!hold_prepare && state_.has_preparing() &&
            reply.rendezvous().values_size() == assignment_.workers_size()) {
          const auto published = state_.preparing().published();
          *state_.mutable_ready()->mutable_published() = published;
        }
        break;
      case v1::DesiredRun::TARGET_TRAIN:
        Train();
        break;
      case v1::DesiredRun::TARGET_EXPORT:
        if (state_.has_ended() || hold_export) break;
        if (assignment_.rank() == 0) {
          auto* artifact = AddReport()->mutable_artifact();
          artifact->set_kind("adapter");
          artifact->set_storage_path(assignment_.output_dir());
          artifact->set_bytes(9);
          if (writes_files) {
            artifact->set_manifest_sha256(
                WriteFolder(assignment_.output_dir(), "cadre_manifest.json"));
          }
        }
        state_.mutable_ended()->set_result(v1::EndedState::RESULT_DONE);
        state_.mutable_ended()->set_step(step_);
        break;
      default:
        break;
    }
  }

  void AddValues() {
    auto* scalars = AddReport()->mutable_scalars();
    scalars->set_step(step_);
    (*scalars->mutable_values())["loss"] = 1.0 / static_cast<double>(step_);
    auto* loads = AddReport()->mutable_expert_loads();
    if (expert_loads) {
      *loads = expert_loads(step_);
      return;
    }
    loads->set_first_step(step_);
    loads->set_last_step(step_);
    loads->add_layers()->set_index(1);
    for (const int64_t tokens : {3, 1}) {
      loads->mutable_layers(0)->add_tokens(tokens);
    }
    loads->mutable_layers(0)->set_dropped(1);
    loads->mutable_layers(0)->set_remapped(2);
    loads->mutable_layers(0)->set_padding_rows(12);
  }

  void Train() {
    if (state_.has_ended() || state_.running().steps_done()) return;
    if (!state_.has_running()) {
      state_.mutable_running()->set_phase("train");
      state_.mutable_running()->set_step(step_);
      return;
    }
    if (step_ == hold_at_step) return;
    v1::RunningState* running = state_.mutable_running();
    running->set_step(++step_);
    running->set_collective_seq(10 * step_);
    if (assignment_.rank() == 0) {
      running->mutable_progress()->set_step(step_);
      running->mutable_progress()->set_loss(1.0 / static_cast<double>(step_));
      if (values) AddValues();
    }
    // The last step is always saved, as a trainer does it.
    if (save_every > 0 &&
        (step_ % save_every == 0 || step_ == assignment_.total_steps())) {
      auto* saved = AddReport()->mutable_files_saved();
      saved->set_step(step_);
      saved->set_storage_path(Folder(step_));
      saved->add_files()->set_path(absl::StrCat("rank", assignment_.rank()));
    }
    running->set_steps_done(step_ == assignment_.total_steps());
  }

  v1::SyncRequest state_;
  v1::Assignment assignment_;
  int64_t report_seq_ = 0;
  int64_t step_ = 0;
  int64_t sealed_ = 0;
};

}  // namespace cadre::coordinator

#endif  // CADRE_COORDINATOR_FAKE_WORKER_H_
