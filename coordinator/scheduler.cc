#include "coordinator/scheduler.h"

#include <algorithm>
#include <optional>
#include <set>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace cadre::coordinator {

bool Fits(const WaitingJob& job, const WorkerSlot& worker) {
  if (worker.backend != job.backend ||
      worker.memory_bytes < job.min_memory_bytes) {
    return false;
  }
  return std::all_of(
      job.selector.begin(), job.selector.end(), [&worker](const auto& want) {
        const auto it = worker.labels.find(want.first);
        return it != worker.labels.end() && it->second == want.second;
      });
}

namespace {

using Use = WorkerSlot::Use;

std::string Needs(const WaitingJob& job) {
  std::string text =
      absl::StrCat("needs ", job.num_workers, " ", job.backend,
                   job.num_workers == 1 ? " worker" : " workers");
  if (job.min_memory_bytes > 0) {
    absl::StrAppend(&text, " with at least ", job.min_memory_bytes, " bytes");
  }
  if (!job.selector.empty()) {
    absl::StrAppend(
        &text, " labelled ",
        absl::StrJoin(job.selector, ", ", absl::PairFormatter("=")));
  }
  if (!job.smaller.empty()) {
    absl::StrAppend(&text, ", now at least ", job.smaller.back());
  }
  if (job.max_link_domains > 0) {
    absl::StrAppend(&text, " in at most ", job.max_link_domains,
                    " link domains");
  }
  return text;
}

// Takes whole link domains, the fullest first, unless one alone is enough: then
// the smallest such, so that large sets stay whole.
std::optional<std::vector<const WorkerSlot*>> ChooseGang(
    const WaitingJob& job, const std::vector<const WorkerSlot*>& free) {
  std::map<std::string, std::vector<const WorkerSlot*>> domains;
  for (const WorkerSlot* worker : free) {
    domains[worker->link_domain].push_back(worker);
  }
  std::vector<std::vector<const WorkerSlot*>> sets;
  for (auto& [name, set] : domains) sets.push_back(std::move(set));
  std::stable_sort(sets.begin(), sets.end(), [](const auto& a, const auto& b) {
    return a.size() > b.size();
  });
  const size_t want = job.num_workers;
  for (size_t i = sets.size(); i-- > 0;) {
    if (sets[i].size() >= want) {
      // Of equal sizes the first by name.
      while (i > 0 && sets[i - 1].size() == sets[i].size()) --i;
      sets = {sets[i]};
      break;
    }
  }
  const std::set<std::string> former(job.former_workers.begin(),
                                     job.former_workers.end());
  std::vector<const WorkerSlot*> gang;
  int used_domains = 0;
  for (auto& set : sets) {
    if (gang.size() == want) break;
    // Former members have the base model in memory.
    std::stable_sort(set.begin(), set.end(),
                     [&former](const WorkerSlot* a, const WorkerSlot* b) {
                       return std::make_tuple(!former.contains(a->id), a->id) <
                              std::make_tuple(!former.contains(b->id), b->id);
                     });
    ++used_domains;
    for (const WorkerSlot* worker : set) {
      if (gang.size() < want) gang.push_back(worker);
    }
  }
  if (gang.size() < want ||
      (job.max_link_domains > 0 && used_domains > job.max_link_domains)) {
    return std::nullopt;
  }
  std::sort(gang.begin(), gang.end(),
            [](const WorkerSlot* a, const WorkerSlot* b) {
              return std::tie(a->link_domain, a->hostname, a->id) <
                     std::tie(b->link_domain, b->hostname, b->id);
            });
  return gang;
}

// The workers that fit a job, whatever their use. Jobs are many and kinds of
// needs few: each kind is compared with the workers once.
class FittingWorkers {
 public:
  explicit FittingWorkers(const std::vector<WorkerSlot>& workers)
      : workers_(workers) {}
  // In the order of the workers.
  const std::vector<const WorkerSlot*>& For(const WaitingJob& job) {
    const auto [it, fresh] =
        of_need_.try_emplace({job.backend, job.min_memory_bytes, job.selector});
    if (fresh) {
      for (const WorkerSlot& worker : workers_) {
        if (Fits(job, worker)) it->second.push_back(&worker);
      }
    }
    return it->second;
  }

 private:
  using Need =
      std::tuple<std::string, int64_t, std::map<std::string, std::string>>;
  const std::vector<WorkerSlot>& workers_;
  std::map<Need, std::vector<const WorkerSlot*>> of_need_;
};

WaitReason Explain(const WaitingJob& job,
                   const std::vector<const WorkerSlot*>& fitting,
                   size_t num_workers) {
  int free = 0, busy = 0, cordoned = 0, unreachable = 0;
  std::map<std::string, int> free_by_domain;
  for (const WorkerSlot* worker : fitting) {
    free += worker->use == Use::kFree;
    busy += worker->use == Use::kBusy;
    cordoned += worker->use == Use::kCordoned;
    unreachable += worker->use == Use::kUnreachable;
    if (worker->use == Use::kFree) ++free_by_domain[worker->link_domain];
  }
  int largest = 0;
  for (const auto& [domain, count] : free_by_domain) {
    largest = std::max(largest, count);
  }
  std::string message = absl::StrCat(Needs(job), "; ");
  if (std::ssize(fitting) < job.num_workers) {
    absl::StrAppend(&message, "only ", fitting.size(), " of the ", num_workers,
                    " registered workers fit");
    return {job.id, "NO_ELIGIBLE_WORKERS", message};
  }
  absl::StrAppend(&message, free, " free (largest link domain ", largest, "), ",
                  busy, " busy, ", cordoned, " cordoned, ", unreachable,
                  " unreachable");
  return {job.id,
          job.recovering || job.requeued ? "WAITING_FOR_REPLACEMENT"
                                         : "WAITING_FOR_WORKERS",
          message};
}

std::vector<std::string> BusyIds(
    const std::vector<const WorkerSlot*>& workers) {
  std::vector<std::string> ids;
  for (const WorkerSlot* worker : workers) {
    if (worker->use == Use::kBusy) ids.push_back(worker->id);
  }
  return ids;
}

// What stops every job, or all but the first.
std::optional<WaitReason> Held(const SchedulerInput& input,
                               const WaitingJob& job, size_t candidate) {
  if (input.warming_up) {
    return WaitReason{job.id, "COORDINATOR_WARMING_UP",
                      "the coordinator has just started and lets the workers "
                      "report first"};
  }
  if (input.disk_full) {
    return WaitReason{job.id, "STATE_DISK_FULL",
                      "the disk of the coordinator's state is full; nothing "
                      "new begins until space is freed"};
  }
  if (candidate > kMaxCandidates) {
    return FarBehind(job.id);
  }
  return std::nullopt;
}

// What each owner's jobs hold, against the quota.
class Usage {
 public:
  Usage(const std::vector<HoldingJob>& holding, const Quota& quota)
      : quota_(quota) {
    for (const HoldingJob& job : holding) {
      Add(job.owner, static_cast<int>(job.workers.size()));
    }
  }
  void Add(const std::string& owner, int workers) {
    ++of_[owner].running_jobs;
    of_[owner].running_workers += workers;
  }
  std::optional<WaitReason> Exceeded(const WaitingJob& job) {
    const Quota& used = of_[job.owner];
    if (quota_.running_jobs > 0 && used.running_jobs >= quota_.running_jobs) {
      return WaitReason{
          job.id, "QUOTA_RUNNING_JOBS",
          absl::StrCat(job.owner, " has ", used.running_jobs,
                       " jobs on workers, the limit is ", quota_.running_jobs)};
    }
    if (quota_.running_workers > 0 &&
        used.running_workers + job.num_workers > quota_.running_workers) {
      return WaitReason{job.id, "QUOTA_RUNNING_WORKERS",
                        absl::StrCat(Needs(job), "; ", job.owner, " holds ",
                                     used.running_workers, ", the limit is ",
                                     quota_.running_workers)};
    }
    return std::nullopt;
  }

 private:
  const Quota quota_;
  std::map<std::string, Quota> of_;
};

}  // namespace

QueueRank RankInQueue(bool recovering, int priority, absl::Duration waited,
                      bool requeued, int64_t sequence) {
  const int aged = priority + static_cast<int>(waited / kAgeing);
  return {!recovering, -aged, !requeued, sequence};
}

WaitReason FarBehind(const std::string& job) {
  return {job, "WAITING_FOR_WORKERS",
          absl::StrCat("more than ", kMaxCandidates,
                       " jobs are ahead in the queue")};
}

std::vector<std::string> ChooseVictims(int priority, int needs, int free,
                                       const std::vector<std::string>& fitting,
                                       std::vector<HoldingJob> holding) {
  const std::set<std::string> wanted(fitting.begin(), fitting.end());
  const auto frees = [&wanted](const HoldingJob& job) {
    return static_cast<int>(std::count_if(
        job.workers.begin(), job.workers.end(),
        [&wanted](const std::string& id) { return wanted.contains(id); }));
  };
  std::sort(holding.begin(), holding.end(),
            [](const HoldingJob& a, const HoldingJob& b) {
              return std::make_tuple(a.priority, b.start, a.id) <
                     std::make_tuple(b.priority, a.start, b.id);
            });
  for (const HoldingJob& job : holding) {
    if (job.leaving) free += frees(job);
  }
  std::vector<std::string> victims;
  for (const HoldingJob& job : holding) {
    if (free >= needs) break;
    if (!job.running || job.priority > priority - kPreemptionGap ||
        frees(job) == 0) {
      continue;
    }
    victims.push_back(job.id);
    free += frees(job);
  }
  // Half a gang is of no use.
  if (free < needs) victims.clear();
  return victims;
}

SchedulerPass Schedule(SchedulerInput input) {
  SchedulerPass pass;
  std::vector<WaitingJob>& jobs = input.waiting;
  std::vector<WorkerSlot>& workers = input.workers;
  Usage usage(input.holding, input.quota);
  const auto rank = [](const WaitingJob& job) {
    return RankInQueue(job.recovering, job.priority, job.waited, job.requeued,
                       job.sequence);
  };
  std::sort(jobs.begin(), jobs.end(),
            [&rank](const WaitingJob& a, const WaitingJob& b) {
              return rank(a) < rank(b);
            });
  std::sort(
      workers.begin(), workers.end(),
      [](const WorkerSlot& a, const WorkerSlot& b) { return a.id < b.id; });
  FittingWorkers fitting_workers(workers);
  std::map<std::string, std::string> kept_for;  // worker -> job
  const WaitingJob* blocked = nullptr;          // the first one of the pass
  size_t candidates = 0;
  for (const WaitingJob& job : jobs) {
    if (auto reason = Held(input, job, ++candidates)) {
      pass.reasons.push_back(*std::move(reason));
      continue;
    }
    if (auto reason = usage.Exceeded(job)) {
      pass.reasons.push_back(*std::move(reason));
      continue;
    }
    if (job.backoff_left > absl::ZeroDuration()) {
      pass.reasons.push_back(
          {job.id, "RETRY_BACKOFF",
           absl::StrCat("next attempt in ",
                        absl::FormatDuration(
                            absl::Ceil(job.backoff_left, absl::Seconds(1))))});
      continue;
    }
    const std::vector<const WorkerSlot*>& fitting = fitting_workers.For(job);
    std::vector<const WorkerSlot*> free;
    int kept = 0;
    std::string keeper;
    for (const WorkerSlot* worker : fitting) {
      if (worker->use != Use::kFree) continue;
      const auto it = kept_for.find(worker->id);
      if (it == kept_for.end()) {
        free.push_back(worker);
      } else {
        ++kept;
        keeper = it->second;
      }
    }
    auto gang = ChooseGang(job, free);
    for (const int size : job.smaller) {
      if (gang.has_value()) break;
      WaitingJob less = job;
      less.num_workers = size;
      gang = ChooseGang(less, free);
    }
    if (gang.has_value()) {
      Placement& placement = pass.placements.emplace_back();
      placement.job = job.id;
      std::set<std::string> taken;
      for (const WorkerSlot* worker : *gang) {
        placement.workers.push_back(worker->id);
        taken.insert(worker->id);
      }
      for (WorkerSlot& worker : workers) {
        if (taken.contains(worker.id)) worker.use = Use::kBusy;
      }
      usage.Add(job.owner, static_cast<int>(gang->size()));
      continue;
    }
    WaitReason reason = Explain(job, fitting, workers.size());
    if (kept > 0 && static_cast<int>(free.size()) + kept >= job.num_workers) {
      reason.code = "HELD_FOR_LARGER_JOB";
      absl::StrAppend(&reason.message, "; ", kept, " are kept for ", keeper);
    } else if (reason.code == "WAITING_FOR_WORKERS" && blocked != nullptr &&
               blocked->priority > job.priority) {
      reason.code = "BEHIND_HIGHER_PRIORITY";
      absl::StrAppend(&reason.message, "; ", blocked->id, " (priority ",
                      blocked->priority, ") waits too");
    }
    // A job that no registered pool can hold must not starve the others.
    if (reason.code != "NO_ELIGIBLE_WORKERS") {
      // Only the first blocked job: else several would push out the same.
      if (blocked == nullptr && input.preemption) {
        pass.preempt = ChooseVictims(job.priority, job.num_workers,
                                     static_cast<int>(free.size()),
                                     BusyIds(fitting), input.holding);
      }
      if (blocked == nullptr) blocked = &job;
      if (job.recovering) {
        for (const std::string& id : job.former_workers) {
          kept_for.emplace(id, job.id);
        }
      }
      if (job.waited > kMayBePassedFor) {
        for (const WorkerSlot* worker : fitting) {
          kept_for.emplace(worker->id, job.id);
        }
      }
    }
    pass.reasons.push_back(std::move(reason));
  }
  return pass;
}

}  // namespace cadre::coordinator
