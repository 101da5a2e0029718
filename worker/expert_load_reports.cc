#include "worker/expert_load_reports.h"

namespace cadre {
namespace {

using Matrix = std::vector<std::vector<int64_t>>;

// sums += step; sums takes the shape of the first.
void AddTo(const Matrix& step, Matrix* sums) {
  if (sums->empty()) {
    for (const auto& row : step) sums->emplace_back(row.size(), 0);
  }
  for (size_t l = 0; l < sums->size(); ++l) {
    for (size_t i = 0; i < (*sums)[l].size(); ++i) {
      (*sums)[l][i] += step[l][i];
    }
  }
}

}  // namespace

void ExpertLoadReports::Add(const StepMetrics& step) {
  if (step.expert_tokens.empty()) return;
  if (experts_.empty()) {
    first_step_ = step.step;
    totals_.assign(step.moe_layers.size(), {});
  }
  for (size_t l = 0; l < totals_.size(); ++l) {
    totals_[l].dropped += step.moe_layers[l].dropped;
    totals_[l].remapped += step.moe_layers[l].remapped;
    totals_[l].padding_rows += step.moe_layers[l].padding_rows;
  }
  last_step_ = step.step;
  steps_left_ = step.total_steps - step.step;
  expert_seconds_ += step.expert_seconds;
  AddTo(step.rank_tokens, &ranks_);
  AddTo(step.expert_tokens, &experts_);
  if (last_step_ - first_step_ + 1 >= every_ || step.step == step.total_steps) {
    Flush();
  }
}

void ExpertLoadReports::Flush() {
  if (experts_.empty()) return;
  v1::Report report;
  auto* loads = report.mutable_expert_loads();
  loads->set_first_step(first_step_);
  loads->set_last_step(last_step_);
  for (size_t l = 0; l < experts_.size(); ++l) {
    auto* layer = loads->add_layers();
    layer->set_index(l < moe_layers_.size() ? moe_layers_[l]
                                            : static_cast<int>(l));
    for (const int64_t tokens : experts_[l]) layer->add_tokens(tokens);
    if (l < totals_.size()) {
      layer->set_dropped(totals_[l].dropped);
      layer->set_remapped(totals_[l].remapped);
      layer->set_padding_rows(totals_[l].padding_rows);
    }
    if (l >= ranks_.size()) continue;
    for (const int64_t tokens : ranks_[l]) layer->add_rank_tokens(tokens);
  }
  loads->set_steps_left(steps_left_);
  if (placement_ != nullptr) {
    loads->set_plan_epoch(placement_->plan_epoch);
    loads->set_slots_per_rank(
        static_cast<int32_t>(placement_->shape.slots_per_rank));
    loads->set_expert_seconds(
        expert_seconds_ / static_cast<double>(last_step_ - first_step_ + 1));
    loads->set_expert_bytes(expert_size_.bytes);
    loads->set_expert_state_bytes(expert_size_.state_bytes);
  }
  link_->AddReport(std::move(report));
  experts_.clear();
  ranks_.clear();
  expert_seconds_ = 0.0;
}

}  // namespace cadre
