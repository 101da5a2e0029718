#include "tests/parity/guided_model.h"

#include <algorithm>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace cadre::parity {
namespace {

using Choice = Selections::Choice;
using Kind = Selections::Kind;

// Entries of row `t`; keys behind the valid ones are none.
std::set<int32_t> RowOf(const Choice& choice, const Choice* num_valid,
                        int64_t t) {
  const auto begin = choice.values.begin() + t * choice.width;
  const int64_t n = num_valid == nullptr ? choice.width : num_valid->values[t];
  std::set<int32_t> row(begin, begin + std::min(n, choice.width));
  row.erase(-1);
  return row;
}

}  // namespace

absl::StatusOr<GuidedModel> LoadModel(const ModelDir& dir, const Exec& exec,
                                      const RunOptions& options,
                                      const LoraPlan* lora) {
  GuidedModel made{.exec = exec};
  const bool guided = options.tolerances.guided;
  if (guided) {
    made.selections = std::make_unique<Selections>();
    made.guide_selections = std::make_unique<Selections>();
  }
  ModelOptions model_options{.exec = exec,
                             .dtype = options.dtype,
                             .replayed_blocks = options.replayed_blocks};
  if (lora != nullptr) model_options.lora = *lora;
  model_options.selections = made.selections.get();
  CADRE_ASSIGN_OR_RETURN(made.model, Model::Create(dir.spec(), model_options));
  CADRE_RETURN_IF_ERROR(made.model->LoadWeights(dir));
  if (!guided) return made;
  model_options.exec = Exec();
  model_options.dtype = DType::kF32;
  model_options.selections = made.guide_selections.get();
  CADRE_ASSIGN_OR_RETURN(made.guide, Model::Create(dir.spec(), model_options));
  CADRE_RETURN_IF_ERROR(made.guide->LoadWeights(dir));
  return made;
}

void CompareChoices(const Selections& ours, const Selections& theirs,
                    const Tolerances& tolerances, Report* report) {
  const std::vector<Choice>& a = ours.choices();
  const std::vector<Choice>& b = theirs.choices();
  if (a.size() != b.size()) {
    report->Fail("choices", absl::StrCat(a.size(), " against ", b.size()));
    return;
  }
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].kind == Kind::kNumKeys) continue;
    const bool keys = a[i].kind == Kind::kKeys;
    const auto tokens = static_cast<int64_t>(a[i].values.size()) / a[i].width;
    int64_t chosen = 0, other = 0;
    for (int64_t t = 0; t < tokens; ++t) {
      const auto mine = RowOf(a[i], keys ? &a[i + 1] : nullptr, t);
      const auto reference = RowOf(b[i], keys ? &b[i + 1] : nullptr, t);
      chosen += std::ssize(mine);
      for (const int32_t id : mine) other += !reference.contains(id);
    }
    report->Add(keys ? "other keys chosen" : "other experts chosen",
                chosen == 0
                    ? 0.0
                    : static_cast<double>(other) / static_cast<double>(chosen),
                keys ? tolerances.other_keys : tolerances.other_experts,
                absl::StrCat("choice ", i));
  }
}

}  // namespace cadre::parity
