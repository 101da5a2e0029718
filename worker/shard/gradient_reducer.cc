#include "worker/shard/gradient_reducer.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace cadre {
namespace {

// A stretch of one gradient inside the flat buffer.
struct Piece {
  float* data = nullptr;
  int64_t n = 0;
};

}  // namespace

GradientReducer::GradientReducer(ParameterRegistry* registry,
                                 const GradientGroups& groups,
                                 int64_t max_elements)
    : registry_(registry), groups_(groups), max_elements_(max_elements) {
  int64_t total = 0;
  for (const Parameter* parameter : registry->Trainable()) {
    total += parameter->grad.num_elements();
  }
  if (groups.dense != nullptr || groups.expert != nullptr) {
    flat_.resize(std::min(total, max_elements_));
  }
}

absl::Status GradientReducer::Reduce() {
  CADRE_RETURN_IF_ERROR(ReduceDomain(ParamDomain::kDense, groups_.dense));
  return ReduceDomain(ParamDomain::kExpert, groups_.expert);
}

absl::Status GradientReducer::ReduceDomain(ParamDomain domain,
                                           Communicator* group) {
  if (group == nullptr || group->size() == 1) return absl::OkStatus();
  std::vector<Piece> pieces;
  int64_t filled = 0;
  const auto flush = [&]() -> absl::Status {
    if (filled == 0) return absl::OkStatus();
    float* at = flat_.data();
    for (const Piece& piece : pieces) {
      at = std::copy_n(piece.data, piece.n, at);
    }
    CADRE_RETURN_IF_ERROR(
        group->AllReduceSum(absl::MakeSpan(flat_.data(), filled)));
    at = flat_.data();
    for (const Piece& piece : pieces) {
      std::copy_n(at, piece.n, piece.data);
      at += piece.n;
    }
    pieces.clear();
    filled = 0;
    return absl::OkStatus();
  };
  for (const Parameter* parameter : registry_->Trainable()) {
    if (parameter->domain != domain) continue;
    if (parameter->grad.dtype() != DType::kF32) {
      return absl::UnimplementedError(absl::StrCat(
          "summing the gradient of ", parameter->name, " over ranks: it is ",
          parameter->grad.DebugString(), ", only f32 is reduced"));
    }
    float* grad = parameter->grad.data<float>();
    for (int64_t left = parameter->grad.num_elements(); left > 0;) {
      const int64_t n = std::min(left, max_elements_ - filled);
      pieces.push_back({grad, n});
      grad += n;
      left -= n;
      filled += n;
      if (filled == max_elements_) CADRE_RETURN_IF_ERROR(flush());
    }
  }
  return flush();
}

}  // namespace cadre
