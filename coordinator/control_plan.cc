// Control's part that says what would become of a job, and changes nothing.

#include <algorithm>
#include <functional>
#include <limits>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/config/yaml_proto.h"
#include "base/rpc/error.h"
#include "coordinator/api_error.h"
#include "coordinator/control.h"
#include "coordinator/scheduler_input.h"
#include "plan/path_roots.h"
#include "plan/validate.h"

namespace cadre::coordinator {
namespace {

constexpr int kMaxDiagnostics = 50;
constexpr int kMaxCandidatesShown = 32;
constexpr int kMaxWorkers = 1024;

// Workers as a plan sees them.
struct Pool {
  std::vector<WorkerSlot> eligible;
  int free = 0;
  int64_t memory_bytes = 0;  // of those that would be taken; 0: unknown
  int link_domain_size = 0;
};

Pool PoolOf(const WaitingJob& job, const std::vector<WorkerSlot>& slots) {
  Pool pool;
  std::map<std::string, int> domains;
  std::vector<int64_t> memory;
  for (const WorkerSlot& slot : slots) {
    if (!Fits(job, slot)) continue;
    pool.eligible.push_back(slot);
    pool.free += slot.use == WorkerSlot::Use::kFree;
    pool.link_domain_size =
        std::max(pool.link_domain_size, ++domains[slot.link_domain]);
    memory.push_back(slot.memory_bytes);
  }
  // The least of the largest: a gang may be picked so that none has less.
  std::sort(memory.rbegin(), memory.rend());
  if (!memory.empty()) {
    const int taken =
        std::clamp(job.num_workers, 1, static_cast<int>(memory.size()));
    pool.memory_bytes = memory[taken - 1];
  }
  return pool;
}

// A number of workers that does not suit the job is an answer, not an error.
bool OnlyTheSize(const v1::Diagnostics& diagnostics) {
  return std::all_of(diagnostics.items().begin(), diagnostics.items().end(),
                     [](const v1::Diagnostic& item) {
                       return item.severity() !=
                                  v1::Diagnostic::SEVERITY_ERROR ||
                              absl::StartsWith(item.field(), "parallelism") ||
                              item.field() == "training.global_batch_size" ||
                              item.field() == "training.micro_batch_size";
                     });
}

void Describe(const Validated& validated, int max_candidates,
              v1::PlanJobResponse* response) {
  *response->mutable_plan() = validated.plan;
  for (const Layout& layout : validated.layouts) {
    if (response->candidates_size() == max_candidates) break;
    auto* candidate = response->add_candidates();
    candidate->set_fsdp_shard_group_size(layout.mesh.fsdp_shard_group_size);
    candidate->set_expert_parallel_size(layout.mesh.expert_parallel_size);
    candidate->set_recompute(layout.recompute);
    candidate->set_memory_bytes(layout.budget.total);
    candidate->set_fits(layout.budget.total <= validated.rank_bytes);
  }
  response->set_fits(!validated.layouts.empty() &&
                     validated.layouts[0].budget.total <= validated.rank_bytes);
  if (response->fits()) return;
  const v1::MemoryTerm* largest = nullptr;
  for (const v1::MemoryTerm& term : validated.plan.memory()) {
    if (largest == nullptr || term.bytes() > largest->bytes()) largest = &term;
  }
  if (largest != nullptr) response->set_limiting_term(largest->name());
}

}  // namespace

SchedulerPass Control::TryPlacing(const WaitingJob& job,
                                  std::vector<WorkerSlot> workers) const {
  SchedulerInput input{.workers = std::move(workers),
                       .quota = options_.quota,
                       .warming_up = WarmingUp(),
                       .disk_full = journal_->disk_full()};
  std::vector<std::pair<QueueRank, WaitingJob>> queue;
  const auto add = [&queue](WaitingJob waiting) {
    const QueueRank rank =
        RankInQueue(waiting.recovering, waiting.priority, waiting.waited,
                    waiting.requeued, waiting.sequence);
    queue.emplace_back(rank, std::move(waiting));
  };
  for (const RecordPtr& record : table_.All()) {
    const v1::JobState state = record->job().state();
    if (state == v1::JOB_STATE_QUEUED || state == v1::JOB_STATE_RECOVERING) {
      WaitingJob waiting = ToWaiting(*record);
      waiting.waited =
          options_.clock->Now() - FromProto(record->job().queue_time());
      waiting.smaller.clear();
      add(std::move(waiting));
    } else if (IsActive(state)) {
      input.holding.push_back(ToHolding(*record));
    }
  }
  add(job);
  std::sort(queue.begin(), queue.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  for (auto& [rank, waiting] : queue) {
    if (input.waiting.size() == kMaxCandidates) break;
    input.waiting.push_back(std::move(waiting));
  }
  SchedulerPass pass = Schedule(std::move(input));
  const auto is_it = [&job](const auto& item) { return item.job == job.id; };
  std::erase_if(pass.placements, std::not_fn(is_it));
  std::erase_if(pass.reasons, std::not_fn(is_it));
  if (pass.placements.empty() && pass.reasons.empty()) {
    pass.reasons.push_back(FarBehind(job.id));
  }
  return pass;
}

absl::StatusOr<v1::PlanJobResponse> Control::MakePlanFor(
    const Caller& caller, const v1::PlanJobRequest& request) {
  v1::JobSpec spec = request.spec();
  YamlMarks marks;
  if (request.has_job_yaml()) {
    v1::Diagnostics diagnostics;
    if (!ParseYaml(request.job_yaml(), &spec, &marks, &diagnostics)) {
      PlaceDiagnostics(marks, kMaxDiagnostics, &diagnostics);
      return Refusal("JOB_FILE_INVALID", diagnostics);
    }
  }
  const v1::PlanJobRequest::Hypothetical& wish = request.hypothetical();
  if (request.has_hypothetical()) {
    if (wish.workers() < 1 || wish.workers() > kMaxWorkers ||
        wish.device_memory_bytes() < 0 || wish.link_domain_size() < 0) {
      return Error(
          absl::StatusCode::kInvalidArgument, "JOB_FILE_INVALID",
          absl::StrCat("hypothetical: ", wish.workers(), " workers with ",
                       wish.device_memory_bytes(), " bytes in link domains of ",
                       wish.link_domain_size(), "; 1 to ", kMaxWorkers,
                       " workers can be planned for, and nothing "
                       "negative"));
    }
    auto& resources = *spec.mutable_resources();
    resources.set_workers(wish.workers());
    if (resources.min_workers() > wish.workers()) {
      resources.clear_min_workers();
    }
    if (wish.device_memory_bytes() > 0) {
      resources.set_min_device_memory_bytes(wish.device_memory_bytes());
    }
  }
  const v1::JobSpec resolved = ResolveJob(spec, request.base_dir());

  state::v1::JobRecord record;
  record.mutable_job()->set_owner(caller.principal);
  record.mutable_job()->set_priority(resolved.priority());
  *record.mutable_job()->mutable_config_snapshot() = resolved;
  record.set_create_sequence(std::numeric_limits<int64_t>::max());
  const WaitingJob job = ToWaiting(record);
  Pool pool;
  std::vector<WorkerSlot> slots;
  if (request.has_hypothetical()) {
    pool.memory_bytes = wish.device_memory_bytes();
    pool.link_domain_size = wish.link_domain_size();
  } else {
    std::set<std::string> held;
    for (const RecordPtr& other : table_.All()) {
      if (!IsActive(other->job().state())) continue;
      for (const auto& member : other->members()) {
        held.insert(member.worker_id());
      }
    }
    absl::MutexLock lock(&workers_mutex_);
    slots = MakeSlots(registry_, options_.clock->Monotonic(),
                      committed_workers_, held);
    pool = PoolOf(job, slots);
  }

  // Before anything is opened: a refusal must not tell what is where.
  const absl::Status inside = CheckJobPaths(resolved, options_.allowed_roots);
  if (!inside.ok()) {
    AuditDenial(caller, "PlanJob", ErrorReason(inside));
    return inside;
  }
  const std::shared_ptr<const ModelFacts> facts = facts_.Load(resolved.model());
  Validated validated = ValidateJob(spec,
                                    {.base_dir = request.base_dir(),
                                     .allowed_roots = options_.allowed_roots,
                                     .device_memory_bytes = pool.memory_bytes,
                                     .link_domain_size = pool.link_domain_size,
                                     .memory_is_advice = true,
                                     .list_layouts = true},
                                    facts.get());
  PlaceDiagnostics(marks, kMaxDiagnostics, &validated.diagnostics);
  if (!validated.ok() &&
      !(request.has_hypothetical() && OnlyTheSize(validated.diagnostics))) {
    return Refusal("JOB_FILE_INVALID", validated.diagnostics);
  }
  if (request.sample_dataset()) {
    DataVerdict data = options_.data->CheckHead(validated.spec);
    validated.diagnostics.MergeFrom(data.diagnostics);
    if (!data.status.ok()) {
      PlaceDiagnostics(marks, kMaxDiagnostics, &data.diagnostics);
      return Refusal("DATASET_INVALID", data.diagnostics);
    }
  }

  v1::PlanJobResponse response;
  Describe(validated,
           std::clamp(request.max_candidates(), 0, kMaxCandidatesShown),
           &response);
  *response.mutable_diagnostics() = validated.diagnostics;
  if (!validated.ok()) {
    response.set_fits(false);
    response.set_limiting_term("workers");
  }
  if (request.has_hypothetical()) {
    response.set_eligible_workers(wish.workers());
    response.set_free_workers(wish.workers());
    return response;
  }
  response.set_eligible_workers(static_cast<int>(pool.eligible.size()));
  response.set_free_workers(pool.free);
  if (response.eligible_workers() < job.num_workers) {
    response.set_fits(false);
    response.set_limiting_term("workers");
  }
  const SchedulerPass pass = TryPlacing(job, std::move(slots));
  for (const Placement& placement : pass.placements) {
    for (const std::string& worker : placement.workers) {
      response.add_workers(absl::StrCat("workers/", worker));
    }
  }
  for (const WaitReason& reason : pass.reasons) {
    response.mutable_queue_reason()->set_code(reason.code);
    response.mutable_queue_reason()->set_message(reason.message);
  }
  return response;
}

void Control::PlanJob(const Caller& caller, const v1::PlanJobRequest& request,
                      Done<v1::PlanJobResponse> done) {
  if (request.source_case() == v1::PlanJobRequest::SOURCE_NOT_SET) {
    return done(Error(absl::StatusCode::kInvalidArgument, "JOB_FILE_INVALID",
                      "neither job_yaml nor spec is set"));
  }
  request_pool_->Add(
      [this, caller, request, done] { done(MakePlanFor(caller, request)); },
      [done] { done(ShuttingDown()); });
}

}  // namespace cadre::coordinator
