#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "kernels/common/check.h"
#include "kernels/common/exec.h"
#include "kernels/common/tensor.h"
#include "kernels/gdn/gdn.h"
#include "kernels/linear_attention/decay.h"
#include "kernels/linear_attention/delta_rule.h"

namespace cadre {
namespace {

using linear_attention::DecayGate;
using linear_attention::DeltaGradients;
using linear_attention::DeltaSequence;
using linear_attention::LogDecay;

// Where one document and value head lie in the tensors.
struct Place {
  Place(const GdnInputs& in, int64_t doc, int64_t head)
      : key_heads(in.q.dim(1)),
        value_heads(in.v.dim(1)),
        key_dim(in.q.dim(2)),
        value_dim(in.v.dim(2)),
        doc(doc),
        head(head) {
    const int32_t* cu = in.cu_seqlens.data<int32_t>();
    begin = cu[doc];
    num_tokens = cu[doc + 1] - begin;
  }
  // Offsets of the first token in [T,Hk,K], [T,Hv,V] and [T,Hv]; of the state.
  int64_t key() const {
    return (begin * key_heads + head / (value_heads / key_heads)) * key_dim;
  }
  int64_t value() const { return (begin * value_heads + head) * value_dim; }
  int64_t scalar() const { return begin * value_heads + head; }
  int64_t state() const {
    return (doc * value_heads + head) * key_dim * value_dim;
  }

  int64_t key_heads, value_heads, key_dim, value_dim;
  int64_t doc, head, begin, num_tokens;
};

template <typename S>
S* Offset(const Tensor& tensor, int64_t offset) {
  return tensor.present() ? tensor.data<S>() + offset : nullptr;
}

// One decay a token, repeated for the key channels.
template <typename S>
class Gate : public DecayGate<S> {
 public:
  // da: first token of the head, pitch as a; null in a forward. da_log [1] and
  // ddt_bias [1] are added to where not null.
  Gate(const GdnInputs& in, const Place& place, S* da, S* da_log, S* ddt_bias)
      : log_decay_(in.a_log.data<S>()[place.head], std::nullopt),
        key_dim_(place.key_dim),
        pitch_(place.value_heads),
        a_(in.a.data<S>() + place.scalar()),
        dt_bias_(in.dt_bias.data<S>()[place.head]),
        da_(da),
        da_log_(da_log),
        ddt_bias_(ddt_bias) {}

  void Decays(int64_t begin, int64_t end, S* decay) override {
    for (int64_t t = begin; t < end; ++t, decay += key_dim_)
      std::fill_n(decay, key_dim_, std::exp(log_decay_(Logit(t))));
  }

  void Backward(int64_t begin, int64_t end, const S* dlog) override {
    for (int64_t t = begin; t < end; ++t, dlog += key_dim_) {
      S sum = 0;
      for (int64_t i = 0; i < key_dim_; ++i) sum += dlog[i];
      const S logit = Logit(t);
      const S da = sum * log_decay_.Slope(logit);
      da_[t * pitch_] = da;
      if (da_log_ != nullptr) *da_log_ += sum * log_decay_.RateSlope(logit);
      if (ddt_bias_ != nullptr) *ddt_bias_ += da;
    }
  }

 private:
  S Logit(int64_t t) const { return a_[t * pitch_] + dt_bias_; }

  const LogDecay<S> log_decay_;
  const int64_t key_dim_;
  const int64_t pitch_;
  const S* const a_;
  const S dt_bias_;
  S* const da_;
  S* const da_log_;
  S* const ddt_bias_;
};

template <typename S>
DeltaSequence<S> Sequence(const GdnInputs& in, const Place& place) {
  return {.num_tokens = place.num_tokens,
          .key_dim = place.key_dim,
          .value_dim = place.value_dim,
          .q = in.q.data<S>() + place.key(),
          .k = in.k.data<S>() + place.key(),
          .qk_pitch = place.key_heads * place.key_dim,
          .v = in.v.data<S>() + place.value(),
          .v_pitch = place.value_heads * place.value_dim,
          .beta = in.beta.data<S>() + place.scalar(),
          .beta_pitch = place.value_heads,
          .initial_state = Offset<S>(in.initial_state, place.state())};
}

// Rows behind the last document.
template <typename S>
void ZeroPadding(const GdnInputs& in, const Tensor& tensor) {
  const int64_t docs = in.cu_seqlens.dim(0) - 1;
  const Tensor rows =
      tensor.Rows(in.cu_seqlens.data<int32_t>()[docs], tensor.dim(0));
  std::fill_n(rows.data<S>(), rows.num_elements(), S(0));
}

template <typename S>
absl::Status Forward(const Exec& exec, const GdnForwardArgs& args) {
  const GdnInputs& in = args.in;
  const int64_t docs = in.cu_seqlens.dim(0) - 1;
  const int64_t value_heads = in.v.dim(1);
  ZeroPadding<S>(in, args.o);
  ParallelFor(exec, docs * value_heads, 1, [&](int64_t first, int64_t last) {
    for (int64_t item = first; item < last; ++item) {
      const Place place(in, item / value_heads, item % value_heads);
      Gate<S> gate(in, place, nullptr, nullptr, nullptr);
      DeltaForward(Sequence<S>(in, place), gate,
                   args.o.data<S>() + place.value(),
                   Offset<S>(args.final_state, place.state()));
    }
  });
  return absl::OkStatus();
}

template <typename S>
absl::Status Backward(const Exec& exec, const GdnBackwardArgs& args) {
  const GdnInputs& in = args.in;
  const int64_t docs = in.cu_seqlens.dim(0) - 1;
  const int64_t key_heads = in.q.dim(1);
  const int64_t value_heads = in.v.dim(1);
  const int64_t repeats = key_heads == 0 ? 0 : value_heads / key_heads;
  for (const Tensor& gradient :
       {args.dq, args.dk, args.dv, args.da, args.dbeta})
    ZeroPadding<S>(in, gradient);
  if (repeats == 0) {
    // Keys that no value head reads.
    for (const Tensor& gradient : {args.dq, args.dk})
      std::fill_n(gradient.data<S>(), gradient.num_elements(), S(0));
    return absl::OkStatus();
  }
  // One sum for each document, added up in the order of the documents.
  std::vector<S> da_log(docs * value_heads, S(0));
  std::vector<S> ddt_bias(docs * value_heads, S(0));
  // By key heads, so that the value heads which share dq and dk stay together.
  ParallelFor(exec, docs * key_heads, 1, [&](int64_t first, int64_t last) {
    for (int64_t value_item = first * repeats; value_item < last * repeats;
         ++value_item) {
      const Place place(in, value_item / value_heads, value_item % value_heads);
      Gate<S> gate(in, place, args.da.data<S>() + place.scalar(),
                   &da_log[value_item], &ddt_bias[value_item]);
      DeltaBackward(
          Sequence<S>(in, place), gate,
          DeltaGradients<S>{
              .d_o = args.d_o.data<S>() + place.value(),
              .d_final_state = Offset<S>(args.d_final_state, place.state()),
              .dq = args.dq.data<S>() + place.key(),
              .dk = args.dk.data<S>() + place.key(),
              .accumulate_qk = value_item % repeats != 0,
              .dv = args.dv.data<S>() + place.value(),
              .dbeta = args.dbeta.data<S>() + place.scalar(),
              .d_initial_state =
                  Offset<S>(args.d_initial_state, place.state())});
    }
  });
  for (int64_t item = 0; item < docs * value_heads; ++item) {
    const int64_t head = item % value_heads;
    if (args.da_log.present()) args.da_log.data<S>()[head] += da_log[item];
    if (args.ddt_bias.present())
      args.ddt_bias.data<S>()[head] += ddt_bias[item];
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status GdnForwardCpu(const Exec& exec, const GdnForwardArgs& args) {
  return DispatchCpu(args.in.q.dtype(), [&](auto scalar) {
    return Forward<decltype(scalar)>(exec, args);
  });
}

absl::Status GdnBackwardCpu(const Exec& exec, const GdnBackwardArgs& args) {
  return DispatchCpu(args.in.q.dtype(), [&](auto scalar) {
    return Backward<decltype(scalar)>(exec, args);
  });
}

}  // namespace cadre
