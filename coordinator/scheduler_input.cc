#include "coordinator/scheduler_input.h"

#include <utility>

#include "coordinator/job.h"
#include "coordinator/job_table.h"
#include "coordinator/ledger.h"

namespace cadre::coordinator {
std::string LinkDomainOf(const v1::Device& device) {
  return device.link_domain().empty() ? device.hostname()
                                      : device.link_domain();
}

WaitingJob ToWaiting(const state::v1::JobRecord& record) {
  const v1::Job& job = record.job();
  const v1::ResourcesSpec& need = job.config_snapshot().resources();
  WaitingJob waiting{
      .id = JobId(job.name()),
      .owner = job.owner(),
      .priority = job.priority(),
      .sequence = record.create_sequence(),
      .recovering = job.state() == v1::JOB_STATE_RECOVERING,
      .requeued = record.requeued(),
      .num_workers = need.workers(),
      .backend = need.backend(),
      .min_memory_bytes = need.min_device_memory_bytes(),
      .max_link_domains = need.max_link_domains(),
      .selector = {need.selector().begin(), need.selector().end()}};
  for (const auto& member : record.members()) {
    waiting.former_workers.push_back(member.worker_id());
  }
  // Only on the way back: a job begins with all that it asks for.
  for (const v1::Plan& plan : record.plans()) {
    if (job.attempts_size() > 0 && plan.world_size() < need.workers()) {
      waiting.smaller.push_back(plan.world_size());
    }
  }
  return waiting;
}

HoldingJob ToHolding(const state::v1::JobRecord& record) {
  const v1::Job& job = record.job();
  HoldingJob holding{.id = JobId(job.name()),
                     .owner = job.owner(),
                     .priority = job.priority(),
                     .start = FromProto(job.start_time()),
                     .running = job.state() == v1::JOB_STATE_RUNNING,
                     .leaving = job.state() == v1::JOB_STATE_PAUSING ||
                                job.state() == v1::JOB_STATE_CANCELLING};
  for (const auto& member : record.members()) {
    holding.workers.push_back(member.worker_id());
  }
  return holding;
}

std::vector<WorkerSlot> MakeSlots(const WorkerRegistry& registry,
                                  absl::Duration now,
                                  const std::map<std::string, WorkerRow>& rows,
                                  const std::set<std::string>& held) {
  std::vector<WorkerSlot> slots;
  registry.ForEach(now, [&](const WorkerView& view, bool lease_live) {
    const v1::Device& device = view.last.device();
    WorkerSlot slot{.id = view.id,
                    .backend = device.backend(),
                    .memory_bytes = device.memory_bytes(),
                    .link_domain = LinkDomainOf(device),
                    .hostname = device.hostname(),
                    .labels = {device.labels().begin(), device.labels().end()}};
    const auto row = rows.find(view.id);
    if (!lease_live) {
      slot.use = WorkerSlot::Use::kUnreachable;
    } else if (held.contains(view.id) || !view.last.has_idle()) {
      slot.use = WorkerSlot::Use::kBusy;
    } else if (view.last.draining() ||
               (row != rows.end() && row->second.admin_state !=
                                         v1::Worker::ADMIN_STATE_SCHEDULABLE)) {
      slot.use = WorkerSlot::Use::kCordoned;
    }
    slots.push_back(std::move(slot));
  });
  return slots;
}

}  // namespace cadre::coordinator
