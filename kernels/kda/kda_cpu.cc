#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "kernels/common/check.h"
#include "kernels/common/exec.h"
#include "kernels/common/tensor.h"
#include "kernels/kda/kda.h"
#include "kernels/linear_attention/decay.h"
#include "kernels/linear_attention/delta_rule.h"

namespace cadre {
namespace {

using linear_attention::DecayGate;
using linear_attention::DeltaGradients;
using linear_attention::DeltaSequence;
using linear_attention::LogDecay;

// Where one document and head lie in the tensors.
struct Place {
  Place(const KdaInputs& in, int64_t item)
      : heads(in.q.dim(1)),
        key_dim(in.q.dim(2)),
        value_dim(in.v.dim(2)),
        head(item % heads),
        item(item) {
    const int32_t* cu = in.cu_seqlens.data<int32_t>();
    begin = cu[item / heads];
    num_tokens = cu[item / heads + 1] - begin;
  }
  // Offsets of the first token in [T,H,K], [T,H,V] and [T,H]; of the state.
  int64_t key() const { return (begin * heads + head) * key_dim; }
  int64_t value() const { return (begin * heads + head) * value_dim; }
  int64_t scalar() const { return begin * heads + head; }
  int64_t state() const { return item * key_dim * value_dim; }

  int64_t heads, key_dim, value_dim, head, item, begin, num_tokens;
};

template <typename S>
S* Offset(const Tensor& tensor, int64_t offset) {
  return tensor.present() ? tensor.data<S>() + offset : nullptr;
}

template <typename S>
class Gate : public DecayGate<S> {
 public:
  // dz: first token of the head, pitch as z; null in a forward. da_log [1] and
  // ddt_bias [K] are added to where not null.
  Gate(const KdaInputs& in, const Place& place, S* dz, S* da_log, S* ddt_bias)
      : log_decay_(in.a_log.data<S>()[place.head], in.lower_bound),
        key_dim_(place.key_dim),
        pitch_(place.heads * place.key_dim),
        z_(in.z.data<S>() + place.key()),
        dt_bias_(in.dt_bias.data<S>() + place.head * place.key_dim),
        dz_(dz),
        da_log_(da_log),
        ddt_bias_(ddt_bias) {}

  void Decays(int64_t begin, int64_t end, S* decay) override {
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t i = 0; i < key_dim_; ++i)
        *decay++ = std::exp(log_decay_(Logit(t, i)));
    }
  }

  void Backward(int64_t begin, int64_t end, const S* dlog) override {
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t i = 0; i < key_dim_; ++i, ++dlog) {
        const S logit = Logit(t, i);
        const S dz = *dlog * log_decay_.Slope(logit);
        dz_[t * pitch_ + i] = dz;
        if (da_log_ != nullptr) *da_log_ += *dlog * log_decay_.RateSlope(logit);
        if (ddt_bias_ != nullptr) ddt_bias_[i] += dz;
      }
    }
  }

 private:
  S Logit(int64_t t, int64_t i) const {
    return z_[t * pitch_ + i] + dt_bias_[i];
  }

  const LogDecay<S> log_decay_;
  const int64_t key_dim_;
  const int64_t pitch_;
  const S* const z_;
  const S* const dt_bias_;
  S* const dz_;
  S* const da_log_;
  S* const ddt_bias_;
};

template <typename S>
DeltaSequence<S> Sequence(const KdaInputs& in, const Place& place) {
  return {.num_tokens = place.num_tokens,
          .key_dim = place.key_dim,
          .value_dim = place.value_dim,
          .q = in.q.data<S>() + place.key(),
          .k = in.k.data<S>() + place.key(),
          .qk_pitch = place.heads * place.key_dim,
          .v = in.v.data<S>() + place.value(),
          .v_pitch = place.heads * place.value_dim,
          .beta = in.beta.data<S>() + place.scalar(),
          .beta_pitch = place.heads,
          .initial_state = Offset<S>(in.initial_state, place.state())};
}

// Rows behind the last document.
template <typename S>
void ZeroPadding(const KdaInputs& in, const Tensor& tensor) {
  const int64_t docs = in.cu_seqlens.dim(0) - 1;
  const Tensor rows =
      tensor.Rows(in.cu_seqlens.data<int32_t>()[docs], tensor.dim(0));
  std::fill_n(rows.data<S>(), rows.num_elements(), S(0));
}

int64_t NumItems(const KdaInputs& in) {
  return (in.cu_seqlens.dim(0) - 1) * in.q.dim(1);
}

template <typename S>
absl::Status Forward(const Exec& exec, const KdaForwardArgs& args) {
  const KdaInputs& in = args.in;
  ZeroPadding<S>(in, args.o);
  ParallelFor(exec, NumItems(in), 1, [&](int64_t first, int64_t last) {
    for (int64_t item = first; item < last; ++item) {
      const Place place(in, item);
      Gate<S> gate(in, place, nullptr, nullptr, nullptr);
      DeltaForward(Sequence<S>(in, place), gate,
                   args.o.data<S>() + place.value(),
                   Offset<S>(args.final_state, place.state()));
    }
  });
  return absl::OkStatus();
}

template <typename S>
absl::Status Backward(const Exec& exec, const KdaBackwardArgs& args) {
  const KdaInputs& in = args.in;
  const int64_t items = NumItems(in);
  const int64_t heads = in.q.dim(1);
  const int64_t key_dim = in.q.dim(2);
  for (const Tensor& gradient :
       {args.dq, args.dk, args.dv, args.dz, args.dbeta})
    ZeroPadding<S>(in, gradient);
  // One sum for each document, added up in the order of the documents.
  std::vector<S> da_log(args.da_log.present() ? items : 0, S(0));
  std::vector<S> ddt_bias(args.ddt_bias.present() ? items * key_dim : 0, S(0));
  ParallelFor(exec, items, 1, [&](int64_t first, int64_t last) {
    for (int64_t item = first; item < last; ++item) {
      const Place place(in, item);
      Gate<S> gate(
          in, place, args.dz.data<S>() + place.key(),
          da_log.empty() ? nullptr : &da_log[item],
          ddt_bias.empty() ? nullptr : ddt_bias.data() + item * key_dim);
      DeltaBackward(
          Sequence<S>(in, place), gate,
          DeltaGradients<S>{
              .d_o = args.d_o.data<S>() + place.value(),
              .d_final_state = Offset<S>(args.d_final_state, place.state()),
              .dq = args.dq.data<S>() + place.key(),
              .dk = args.dk.data<S>() + place.key(),
              .accumulate_qk = false,
              .dv = args.dv.data<S>() + place.value(),
              .dbeta = args.dbeta.data<S>() + place.scalar(),
              .d_initial_state =
                  Offset<S>(args.d_initial_state, place.state())});
    }
  });
  for (size_t i = 0; i < da_log.size(); ++i)
    args.da_log.data<S>()[i % heads] += da_log[i];
  for (size_t i = 0; i < ddt_bias.size(); ++i)
    args.ddt_bias.data<S>()[i % (heads * key_dim)] += ddt_bias[i];
  return absl::OkStatus();
}

}  // namespace

absl::Status KdaForwardCpu(const Exec& exec, const KdaForwardArgs& args) {
  return DispatchCpu(args.in.q.dtype(), [&](auto scalar) {
    return Forward<decltype(scalar)>(exec, args);
  });
}

absl::Status KdaBackwardCpu(const Exec& exec, const KdaBackwardArgs& args) {
  return DispatchCpu(args.in.q.dtype(), [&](auto scalar) {
    return Backward<decltype(scalar)>(exec, args);
  });
}

}  // namespace cadre
