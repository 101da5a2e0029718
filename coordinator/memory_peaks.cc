#include "coordinator/memory_peaks.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "plan/memory_budget.h"

namespace cadre::coordinator {
namespace {

// What a peak is measured by; 0: there is no plan.
int64_t Planned(const v1::MemoryPeak& peak) {
  return peak.expected_bytes() > 0 ? peak.expected_bytes()
                                   : peak.planned_bytes();
}

// Over the plan; of ranks without a plan the fullest is the worst.
double OverPlan(const v1::MemoryPeak& peak) {
  const auto bytes = static_cast<double>(peak.peak_bytes());
  const int64_t planned = Planned(peak);
  return planned > 0 ? bytes / static_cast<double>(planned) : bytes;
}

const v1::MemoryPeak* WorstPeak(const v1::Attempt& attempt) {
  const v1::MemoryPeak* worst = nullptr;
  for (const v1::MemoryPeak& peak : attempt.memory_peaks()) {
    if (worst == nullptr || OverPlan(peak) > OverPlan(*worst)) worst = &peak;
  }
  return worst;
}

}  // namespace

void KeepWorstPeak(int index, v1::Job* job) {
  v1::Attempt& attempt = *job->mutable_attempts(index);
  const v1::MemoryPeak* const worst = WorstPeak(attempt);
  if (worst == nullptr || attempt.memory_peaks_size() == 1) return;
  const v1::MemoryPeak kept = *worst;
  attempt.clear_memory_peaks();
  *attempt.add_memory_peaks() = kept;
}

void TakeMemoryPeak(const v1::MemoryPeak& told, int rank, v1::Job* job) {
  if (job->attempts_size() == 0) return;
  auto* const peaks =
      job->mutable_attempts(job->attempts_size() - 1)->mutable_memory_peaks();
  int at = 0;
  while (at < peaks->size() && peaks->Get(at).rank() < rank) ++at;
  if (at == peaks->size() || peaks->Get(at).rank() != rank) {
    peaks->Add();
    for (int i = peaks->size() - 1; i > at; --i) peaks->SwapElements(i, i - 1);
  }
  *peaks->Mutable(at) = told;
  peaks->Mutable(at)->set_rank(rank);
}

void TellMemory(const v1::Attempt& attempt, JobChange* change) {
  const v1::MemoryPeak* const worst = WorstPeak(attempt);
  if (worst == nullptr) return;
  const auto peak = static_cast<double>(worst->peak_bytes());
  std::string message = absl::StrCat("peak ", HumanBytes(worst->peak_bytes()));
  if (const int64_t planned = Planned(*worst); planned > 0) {
    absl::StrAppendFormat(&message, " of planned %s (%.1f %%)",
                          HumanBytes(planned),
                          100 * peak / static_cast<double>(planned));
    if (worst->expected_bytes() > 0 &&
        worst->planned_bytes() != worst->expected_bytes()) {
      absl::StrAppend(&message, " for what was routed, ",
                      HumanBytes(worst->planned_bytes()), " at worst");
    }
  }
  absl::StrAppend(&message, ", rank ", worst->rank(), " of ",
                  attempt.workers_size());
  change->AddEvent(v1::Event::SEVERITY_INFO, "MEMORY_PEAK", message,
                   {{"rank", absl::StrCat(worst->rank())},
                    {"peak_bytes", absl::StrCat(worst->peak_bytes())},
                    {"planned_bytes", absl::StrCat(worst->planned_bytes())},
                    {"expected_bytes", absl::StrCat(worst->expected_bytes())}});
}

}  // namespace cadre::coordinator
