#include "worker/moe_series.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>

#include <cstddef>
#include <limits>

#include "worker/train/trainer.h"

namespace cadre {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Steps that the balance gauges look back on.
constexpr int64_t kBalanceWindow = 50;

}  // namespace

MoeSeries::MoeSeries(MetricsRegistry* r)
    : expert_balance_{r->Gauge(metric::kMoeExpertBalancedness,
                               {{"stat", "step"}}),
                      r->Gauge(metric::kMoeExpertBalancedness,
                               {{"stat", "worst_layer"}})},
      rank_balance_{
          r->Gauge(metric::kMoeRankBalancedness, {{"stat", "step"}}),
          r->Gauge(metric::kMoeRankBalancedness, {{"stat", "worst_layer"}})},
      plan_epoch_(r->Gauge(metric::kMoePlanEpoch)),
      cv_mean_(r->Gauge(metric::kMoeExpertLoadCv, {{"stat", "mean"}})),
      cv_max_(r->Gauge(metric::kMoeExpertLoadCv, {{"stat", "max"}})),
      dead_mean_(r->Gauge(metric::kMoeDeadExperts, {{"stat", "mean"}})),
      dead_max_(r->Gauge(metric::kMoeDeadExperts, {{"stat", "max"}})),
      aux_loss_(r->Gauge(metric::kMoeAuxLoss)),
      z_loss_(r->Gauge(metric::kMoeZLoss)),
      rebalance_seconds_(r->Histogram(metric::kMoeRebalanceSeconds)),
      dispatch_seconds_(r->Histogram(metric::kMoeAllToAllSeconds,
                                     {{"direction", "dispatch"}})),
      combine_seconds_(r->Histogram(metric::kMoeAllToAllSeconds,
                                    {{"direction", "combine"}})),
      routed_(r->Counter(metric::kMoeRoutedTokens)),
      dropped_(r->Counter(metric::kMoeDroppedTokens)),
      remapped_(r->Counter(metric::kMoeRemappedTokens)),
      padding_rows_(r->Counter(metric::kMoePaddingRows)),
      exposed_seconds_(r->Counter(metric::kMoeAllToAllExposed)),
      expert_window_(kBalanceWindow),
      rank_window_(kBalanceWindow) {
  for (size_t i = 0; i < kNumLinkTiers; ++i) {
    const char* const tier = LinkTierName(static_cast<LinkTier>(i));
    dispatch_bytes_[i] = &r->Counter(
        metric::kMoeAllToAllBytes, {{"direction", "dispatch"}, {"tier", tier}});
    combine_bytes_[i] = &r->Counter(metric::kMoeAllToAllBytes,
                                    {{"direction", "combine"}, {"tier", tier}});
  }
  Clear();
}

void MoeSeries::Observe(const StepMetrics& step, const Own& own) {
  if (!step.expert_tokens.empty()) {
    ObserveExperts(step);
    routed_.Increment(static_cast<double>(own.routed));
    dropped_.Increment(static_cast<double>(own.dropped));
    remapped_.Increment(static_cast<double>(own.remapped));
    padding_rows_.Increment(static_cast<double>(own.padding_rows));
  }
  if (!step.rank_tokens.empty()) {
    ObserveRanks(step);
  } else if (!step.expert_tokens.empty()) {
    rank_balance_.step.Set(1);  // one rank has all experts
    rank_balance_.worst.Set(1);
  }
}

void MoeSeries::ObserveExperts(const StepMetrics& step) {
  ExpertBalance balance;
  {
    absl::MutexLock lock(&mutex_);
    balance = MeasureBalance(expert_window_.Add(step.expert_tokens));
  }
  expert_balance_.step.Set(balance.balancedness_step);
  expert_balance_.worst.Set(balance.balancedness_worst);
  cv_mean_.Set(balance.cv_mean);
  cv_max_.Set(balance.cv_max);
  dead_mean_.Set(balance.dead_mean);
  dead_max_.Set(balance.dead_max);
  aux_loss_.Set(step.aux_loss);
  z_loss_.Set(step.z_loss);
  dispatch_seconds_.Observe(step.exchanges.dispatch_seconds);
  combine_seconds_.Observe(step.exchanges.combine_seconds);
  exposed_seconds_.Increment(step.exchanges.exposed_seconds);
  for (size_t i = 0; i < kNumLinkTiers; ++i) {
    dispatch_bytes_[i]->Increment(
        static_cast<double>(step.exchanges.dispatch_bytes[i]));
    combine_bytes_[i]->Increment(
        static_cast<double>(step.exchanges.combine_bytes[i]));
  }
}

void MoeSeries::ObserveRanks(const StepMetrics& step) {
  ExpertBalance balance;
  {
    absl::MutexLock lock(&mutex_);
    // What another placement made of the ranks says nothing of this one.
    if (step.plan_epoch != window_epoch_) rank_window_.Clear();
    window_epoch_ = step.plan_epoch;
    balance = MeasureBalance(rank_window_.Add(step.rank_tokens));
  }
  rank_balance_.step.Set(balance.balancedness_step);
  rank_balance_.worst.Set(balance.balancedness_worst);
}

void MoeSeries::SetPlanEpoch(int64_t plan_epoch) {
  plan_epoch_.Set(static_cast<double>(plan_epoch));
}

void MoeSeries::ObserveRebalance(int64_t plan_epoch, double seconds) {
  rebalance_seconds_.Observe(seconds);
  SetPlanEpoch(plan_epoch);
}

void MoeSeries::Clear() {
  for (prometheus::Gauge* gauge :
       {&expert_balance_.step, &expert_balance_.worst, &rank_balance_.step,
        &rank_balance_.worst, &plan_epoch_, &cv_mean_, &cv_max_, &dead_mean_,
        &dead_max_, &aux_loss_, &z_loss_}) {
    gauge->Set(kNan);
  }
  absl::MutexLock lock(&mutex_);
  expert_window_.Clear();
  rank_window_.Clear();
}

}  // namespace cadre
