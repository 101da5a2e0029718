#ifndef CADRE_WORKER_MODEL_GLU_ACTIVATION_H_
#define CADRE_WORKER_MODEL_GLU_ACTIVATION_H_

#include "kernels/glu/glu.h"
#include "model/model_spec.h"

namespace cadre {

// The op's form of a spec's activation.
inline GluActivation ToGluActivation(const ActivationSpec& spec) {
  GluActivation out;
  switch (spec.kind) {
    case ActivationSpec::Kind::kSwiGlu:
      out.kind = GluActivation::Kind::kSwiGlu;
      break;
    case ActivationSpec::Kind::kClampedSwiGlu:
      out.kind = GluActivation::Kind::kClampedSwiGlu;
      break;
    case ActivationSpec::Kind::kSiTu:
      out.kind = GluActivation::Kind::kSiTu;
      break;
  }
  out.limit = spec.limit;
  out.beta = spec.beta;
  out.linear_beta = spec.linear_beta;
  return out;
}

}  // namespace cadre

#endif  // CADRE_WORKER_MODEL_GLU_ACTIVATION_H_
