#include "worker/model/selections.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/device/transfer.h"

namespace cadre {

void Selections::Give(std::vector<Choice> choices) {
  choices_ = std::move(choices);
  given_ = true;
}

void Selections::BeginPass() {
  next_ = 0;
  if (!given_) choices_.clear();
}

absl::Status Selections::Exchange(const Exec& exec, Kind kind,
                                  const Tensor& ids) {
  if (!given_) {
    Choice& choice = choices_.emplace_back();
    choice.kind = kind;
    choice.width = ids.dim(0) > 0 ? ids.num_elements() / ids.dim(0) : 1;
    choice.values.resize(ids.num_elements());
    return CopyToHost(exec, ids, choice.values.data());
  }
  if (next_ == choices_.size() || choices_[next_].kind != kind ||
      static_cast<int64_t>(choices_[next_].values.size()) !=
          ids.num_elements()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "selections: choice ", next_, " of a pass is ", ids.DebugString(), "; ",
        choices_.size(), " were given, and not of this model or batch"));
  }
  return CopyToDevice(exec, choices_[next_++].values.data(), ids);
}

}  // namespace cadre
