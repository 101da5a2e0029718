#include "coordinator/attempt.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace cadre::coordinator {
namespace {

using state::v1::JobRecord;

bool EndedWith(const RankView& rank, v1::EndedState::Result result) {
  return rank.holds && rank.last.has_ended() &&
         rank.last.ended().result() == result;
}

template <typename Predicate>
bool All(const GangView& gang, Predicate predicate) {
  return !gang.ranks.empty() &&
         std::all_of(gang.ranks.begin(), gang.ranks.end(), predicate);
}

std::string WorkerOf(const JobRecord& record, int rank) {
  return absl::StrCat("rank ", rank, " (worker ",
                      record.members(rank).worker_id(), ")");
}

std::string SilentFor(const RankView& rank) {
  return absl::StrCat(
      "has not called for ",
      absl::FormatDuration(absl::Trunc(rank.silent, absl::Seconds(1))));
}

// Of the ranks that have missed a call and have not said that they ended; -1:
// none.
int LongestSilent(const GangView& gang, const Timeouts& timeouts) {
  int longest = -1;
  for (size_t i = 0; i < gang.ranks.size(); ++i) {
    const RankView& rank = gang.ranks[i];
    if (rank.silent <= timeouts.sync_interval + timeouts.sync_deadline ||
        (rank.holds && rank.last.has_ended())) {
      continue;
    }
    if (longest < 0 || rank.silent > gang.ranks[longest].silent) {
      longest = static_cast<int>(i);
    }
  }
  return longest;
}

// A rank's own words about its end. Of several, the one that is not the echo of
// a peer's failure, then the lowest rank: the first cause must not be hidden.
// For the same reason an echo alone waits abort_grace for its cause.
std::optional<Verdict> JudgeEnds(const JobRecord& record, const GangView& gang,
                                 const Timeouts& timeouts) {
  int blamed = -1;
  for (size_t i = 0; i < gang.ranks.size(); ++i) {
    if (!EndedWith(gang.ranks[i], v1::EndedState::RESULT_ERROR)) continue;
    if (blamed < 0 || (gang.ranks[blamed].last.ended().secondary() &&
                       !gang.ranks[i].last.ended().secondary())) {
      blamed = static_cast<int>(i);
    }
  }
  if (blamed < 0) return std::nullopt;
  const v1::EndedState& ended = gang.ranks[blamed].last.ended();
  const bool others_work = !All(gang, [](const RankView& rank) {
    return rank.holds && rank.last.has_ended();
  });
  if (ended.secondary() && others_work &&
      gang.ranks[blamed].stalled < timeouts.abort_grace) {
    return std::nullopt;
  }
  Verdict verdict{.trigger = Trigger::kAttemptFailed,
                  .cause = ended.cause(),
                  .rank = blamed};
  if (verdict.cause == v1::FAILURE_CAUSE_UNSPECIFIED) {
    verdict.cause = v1::FAILURE_CAUSE_INTERNAL;
  }
  verdict.status = ended.status();
  verdict.evidence = ended.evidence();
  verdict.detail =
      absl::StrCat(WorkerOf(record, blamed), " failed: ",
                   ended.status().message().empty() ? CauseName(verdict.cause)
                                                    : ended.status().message());
  if (!ended.secondary()) return verdict;
  // The fault of a peer: of the one that is heard of no more, if there is one.
  // What the echo says may be about a peer that only gave up before it.
  if (const int silent = LongestSilent(gang, timeouts); silent >= 0) {
    verdict.rank = silent;
    verdict.detail =
        absl::StrCat(WorkerOf(record, silent), " ",
                     SilentFor(gang.ranks[silent]), "; ", verdict.detail);
    verdict.status.set_message(verdict.detail);
  }
  return verdict;
}

Verdict Lost(const JobRecord& record, int rank, const std::string& why) {
  return {.trigger = Trigger::kAttemptFailed,
          .cause = v1::FAILURE_CAUSE_WORKER_LOST,
          .rank = rank,
          .detail = absl::StrCat(WorkerOf(record, rank), " ", why)};
}

// Leases: unreachable is not dead while the peers still advance, since a rank
// that takes part in their collectives must be alive.
std::optional<Verdict> JudgeLeases(const JobRecord& record,
                                   const GangView& gang,
                                   const Timeouts& timeouts,
                                   std::vector<int>* unreachable) {
  if (gang.warming_up) return std::nullopt;
  const bool nobody =
      All(gang, [](const RankView& rank) { return !rank.lease_live; });
  for (size_t i = 0; i < gang.ranks.size(); ++i) {
    const RankView& rank = gang.ranks[i];
    if (rank.lease_live) continue;
    unreachable->push_back(static_cast<int>(i));
    const std::string silent = SilentFor(rank);
    if (nobody) {
      if (rank.silent >= kNobodyReachable) {
        return Lost(record, static_cast<int>(i), silent);
      }
      continue;
    }
    if (gang.suspect_self) continue;
    if (record.job().state() != v1::JOB_STATE_RUNNING) {
      return Lost(record, static_cast<int>(i), silent);
    }
    const bool peers_stall = All(gang, [&](const RankView& peer) {
      return !peer.lease_live || peer.stalled >= timeouts.abort_grace;
    });
    if (peers_stall &&
        rank.silent >= timeouts.lease_ttl + timeouts.abort_grace) {
      return Lost(record, static_cast<int>(i),
                  absl::StrCat(silent, " and its peers make no progress"));
    }
  }
  return std::nullopt;
}

// Everybody calls but nobody advances. A save may take longer than a step.
std::optional<Verdict> JudgeHang(const JobRecord& record, const GangView& gang,
                                 const Timeouts& timeouts) {
  const v1::JobState state = record.job().state();
  if (gang.warming_up ||
      (state != v1::JOB_STATE_RUNNING && state != v1::JOB_STATE_FINALIZING)) {
    return std::nullopt;
  }
  absl::Duration limit = timeouts.step_timeout;
  int slowest = 0;
  absl::Duration least = absl::InfiniteDuration();
  for (size_t i = 0; i < gang.ranks.size(); ++i) {
    const RankView& rank = gang.ranks[i];
    // A rank that has done its part waits for orders, not for progress.
    if (!rank.lease_live || !rank.holds || !rank.last.has_running() ||
        rank.last.running().steps_done()) {
      return std::nullopt;
    }
    const std::string& phase = rank.last.running().phase();
    limit = std::max(limit, 5 * rank.longest_gap);
    if (phase != "train") limit = std::max(limit, timeouts.checkpoint_timeout);
    least = std::min(least, rank.stalled);
    if (rank.last.running().collective_seq() <
        gang.ranks[slowest].last.running().collective_seq()) {
      slowest = static_cast<int>(i);
    }
  }
  if (gang.ranks.empty() || least < limit) return std::nullopt;
  return Verdict{.trigger = Trigger::kAttemptFailed,
                 .cause = v1::FAILURE_CAUSE_COMMUNICATION,
                 .rank = slowest,
                 .detail = absl::StrCat(
                     "no rank has advanced for ",
                     absl::FormatDuration(absl::Trunc(least, absl::Seconds(1))),
                     " (limit ", absl::FormatDuration(limit), "); ",
                     WorkerOf(record, slowest), " is behind, at step ",
                     gang.ranks[slowest].last.running().step())};
}

std::optional<Verdict> JudgeFailure(const JobRecord& record,
                                    const GangView& gang,
                                    const Timeouts& timeouts,
                                    std::vector<int>* unreachable) {
  if (auto verdict = JudgeEnds(record, gang, timeouts)) return verdict;
  for (size_t i = 0; i < gang.ranks.size(); ++i) {
    const RankView& rank = gang.ranks[i];
    if (rank.replaced) {
      return Lost(record, static_cast<int>(i),
                  "was restarted: a new process speaks for it");
    }
    if (rank.let_go || (EndedWith(rank, v1::EndedState::RESULT_ABORTED) ||
                        EndedWith(rank, v1::EndedState::RESULT_STOPPED))) {
      Verdict verdict = Lost(record, static_cast<int>(i),
                             "gave its assignment up without being asked to");
      // With a save and unasked: it has not heard of a coordinator for
      // orphan_limit.
      verdict.cause = EndedWith(rank, v1::EndedState::RESULT_STOPPED)
                          ? v1::FAILURE_CAUSE_COORDINATOR
                          : v1::FAILURE_CAUSE_INTERNAL;
      return verdict;
    }
  }
  if (auto verdict = JudgeHang(record, gang, timeouts)) return verdict;
  if (auto verdict = JudgeLeases(record, gang, timeouts, unreachable)) {
    return verdict;
  }
  if (record.job().state() == v1::JOB_STATE_STARTING &&
      gang.in_state > timeouts.start_timeout + timeouts.rendezvous_timeout) {
    return Verdict{.trigger = Trigger::kAttemptFailed,
                   .cause = v1::FAILURE_CAUSE_COMMUNICATION,
                   .detail = absl::StrCat("the ranks were not ready after ",
                                          absl::FormatDuration(gang.in_state))};
  }
  return std::nullopt;
}

// Nobody works on the attempt any more, as far as can be known.
bool AllStopped(const GangView& gang) {
  return std::all_of(gang.ranks.begin(), gang.ranks.end(),
                     [](const RankView& rank) {
                       return rank.replaced || (rank.known && !rank.holds) ||
                              (rank.holds && rank.last.has_ended());
                     });
}

}  // namespace

GangView MakeGangView(const JobRecord& record, const WorkerRegistry& registry,
                      absl::Duration now, absl::Duration started) {
  GangView gang;
  for (const auto& member : record.members()) {
    RankView& rank = gang.ranks.emplace_back();
    const auto view = registry.Find(member.worker_id(), now);
    if (!view.has_value()) {
      rank.silent = now - started;
      rank.stalled = rank.silent;
      continue;
    }
    rank.replaced = view->incarnation != member.incarnation();
    rank.known = !rank.replaced;
    rank.lease_live = rank.known && view->lease_live;
    rank.silent = now - view->last_sync;
    rank.stalled = now - view->last_progress;
    rank.longest_gap = view->longest_gap;
    rank.last = view->last;
    rank.reporting = view->reporting;
    rank.holds = rank.known &&
                 view->last.attempt_epoch() == record.job().attempt_epoch() &&
                 view->last.job() == record.job().name();
    // Before a job has run, Idle may only mean that the assignment is still on
    // its way.
    rank.let_go = rank.known && !rank.holds &&
                  ((view->taken_epoch == record.job().attempt_epoch() &&
                    view->taken_job == record.job().name()) ||
                   record.job().state() == v1::JOB_STATE_RUNNING ||
                   record.job().state() == v1::JOB_STATE_FINALIZING);
  }
  gang.suspect_self = registry.AllSilent(now);
  return gang;
}

Verdict Judge(const JobRecord& record, const GangView& gang,
              const Timeouts& timeouts) {
  Verdict verdict;
  const v1::JobState state = record.job().state();
  switch (state) {
    case v1::JOB_STATE_STARTING:
    case v1::JOB_STATE_RUNNING:
    case v1::JOB_STATE_FINALIZING: {
      if (auto failure =
              JudgeFailure(record, gang, timeouts, &verdict.unreachable)) {
        failure->unreachable = std::move(verdict.unreachable);
        return *std::move(failure);
      }
      const bool running = All(gang, [](const RankView& rank) {
        return rank.holds && (rank.last.has_running() || rank.last.has_ended());
      });
      const bool steps_done = All(gang, [](const RankView& rank) {
        return (rank.holds && rank.last.running().steps_done()) ||
               EndedWith(rank, v1::EndedState::RESULT_DONE);
      });
      const bool done = All(gang, [](const RankView& rank) {
        return EndedWith(rank, v1::EndedState::RESULT_DONE);
      });
      if (state == v1::JOB_STATE_STARTING && running) {
        verdict.trigger = Trigger::kAllRunning;
      } else if (state == v1::JOB_STATE_RUNNING && steps_done) {
        verdict.trigger = Trigger::kStepsDone;
      } else if (state == v1::JOB_STATE_FINALIZING && done) {
        if (record.job().artifacts_size() > 0) {
          verdict.trigger = Trigger::kResultCommitted;
        } else if (!gang.ranks[0].reporting) {
          // (Otherwise the result may be among what is being committed.)
          verdict.trigger = Trigger::kAttemptFailed;
          verdict.cause = v1::FAILURE_CAUSE_INTERNAL;
          verdict.rank = 0;
          verdict.detail =
              absl::StrCat(WorkerOf(record, 0),
                           " says it is done but has reported no result");
        }
      }
      return verdict;
    }
    case v1::JOB_STATE_PAUSING:
      // Without one of the ranks there is no save to wait for.
      if (JudgeLeases(record, gang, timeouts, &verdict.unreachable) ||
          JudgeEnds(record, gang, timeouts)) {
        verdict.trigger = Trigger::kStopped;
        verdict.detail = "a rank was lost or failed before its save";
        return verdict;
      }
      // A save that is being reported must count before the job is let go.
      if ((AllStopped(gang) && !Reporting(gang)) ||
          gang.in_state > timeouts.checkpoint_timeout) {
        verdict.trigger = Trigger::kStopped;
      }
      return verdict;
    case v1::JOB_STATE_CANCELLING:
      if (AllStopped(gang) ||
          gang.in_state > timeouts.abort_grace + timeouts.lease_ttl) {
        verdict.trigger = Trigger::kStopped;
      }
      return verdict;
    case v1::JOB_STATE_RECOVERING:
      if (!gang.warming_up && gang.in_state >= kReplacementWait) {
        verdict.trigger = Trigger::kNoReplacement;
      }
      return verdict;
    default:
      return verdict;
  }
}

v1::DesiredRun::Target TargetOf(const JobRecord& record, const GangView& gang,
                                int rank) {
  if (record.job().state() == v1::JOB_STATE_FINALIZING) {
    return v1::DesiredRun::TARGET_EXPORT;
  }
  if (record.job().state() == v1::JOB_STATE_RUNNING) {
    return v1::DesiredRun::TARGET_TRAIN;
  }
  const auto past_ready = [](const RankView& view) {
    return view.holds && (view.last.has_ready() || view.last.has_running() ||
                          view.last.has_ended());
  };
  const RankView& own = gang.ranks[rank];
  if ((own.holds && own.last.has_running()) || All(gang, past_ready)) {
    return v1::DesiredRun::TARGET_TRAIN;
  }
  return v1::DesiredRun::TARGET_PREPARE;
}

bool Reporting(const GangView& gang) {
  return std::any_of(
      gang.ranks.begin(), gang.ranks.end(),
      [](const RankView& rank) { return rank.holds && rank.reporting; });
}

int64_t HighestStep(const GangView& gang) {
  int64_t step = 0;
  for (const RankView& rank : gang.ranks) {
    if (!rank.holds) continue;
    step =
        std::max({step, rank.last.running().step(), rank.last.ended().step()});
  }
  return step;
}

}  // namespace cadre::coordinator
