#include "kernels/linear_attention/delta_rule.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/common/scalar_math.h"
#include "kernels/linear_attention/delta_step.h"

namespace cadre::linear_attention {
namespace {

constexpr int64_t kChunk = 64;

// Uninitialised memory: the states of a chunk are megabytes that the steps
// write before they read.
template <typename S>
std::unique_ptr<S[]> Uninitialised(int64_t size) {
  return std::make_unique_for_overwrite<S[]>(size);
}

template <typename S>
struct Sizes {
  explicit Sizes(const DeltaSequence<S>& sequence)
      : tiles(NumTiles<S>(sequence.value_dim)),
        padded(tiles * kLanes<S>),
        state(padded * sequence.key_dim) {}
  int64_t tiles;
  int64_t padded;  // V with its padding
  int64_t state;   // elements of a tiled state
};

// Plain [K,V] to the tiled layout of delta_step.h; null gives zeros.
template <typename S>
void ToTiles(const DeltaSequence<S>& sequence, const S* plain, S* tiled) {
  std::fill_n(tiled, Sizes<S>(sequence).state, S(0));
  if (plain == nullptr) return;
  const int64_t key_dim = sequence.key_dim;
  for (int64_t i = 0; i < key_dim; ++i) {
    for (int64_t j = 0; j < sequence.value_dim; ++j) {
      tiled[(j / kLanes<S> * key_dim + i) * kLanes<S> + j % kLanes<S>] =
          plain[i * sequence.value_dim + j];
    }
  }
}

template <typename S>
void FromTiles(const DeltaSequence<S>& sequence, const S* tiled, S* plain) {
  const int64_t key_dim = sequence.key_dim;
  for (int64_t i = 0; i < key_dim; ++i) {
    for (int64_t j = 0; j < sequence.value_dim; ++j) {
      plain[i * sequence.value_dim + j] =
          tiled[(j / kLanes<S> * key_dim + i) * kLanes<S> + j % kLanes<S>];
    }
  }
}

// Steps through a document. Between tokens `state` lacks the last write, which
// is pending in `write` and `e`.
template <typename S>
class Walker {
 public:
  explicit Walker(const DeltaSequence<S>& sequence)
      : sequence_(sequence),
        sizes_(sequence),
        write_(sequence.key_dim, S(0)),
        no_decay_(sequence.key_dim, S(1)),
        e_(sizes_.padded, S(0)),
        read_k_(sizes_.padded),
        read_q_(sizes_.padded) {}

  // Nothing is pending: `state` is complete.
  void Restart() {
    std::fill(write_.begin(), write_.end(), S(0));
    std::fill(e_.begin(), e_.end(), S(0));
  }

  // Token t: writes its decayed state to `to`, its error to e() and, unless o
  // is null, its output.
  void Step(int64_t t, const S* decay, const S* from, S* to, S* o) {
    const S* k = sequence_.k + t * sequence_.qk_pitch;
    const S* q = sequence_.q + t * sequence_.qk_pitch;
    const S* v = sequence_.v + t * sequence_.v_pitch;
    Advance(AdvanceArgs<S>{.num_tiles = sizes_.tiles,
                           .key_dim = sequence_.key_dim,
                           .from = from,
                           .to = to,
                           .write = write_.data(),
                           .e = e_.data(),
                           .decay = decay,
                           .k = k,
                           .q = o == nullptr ? nullptr : q,
                           .read_k = read_k_.data(),
                           .read_q = read_q_.data()});
    const S beta = Sigmoid(sequence_.beta[t * sequence_.beta_pitch]);
    for (int64_t i = 0; i < sequence_.key_dim; ++i) write_[i] = beta * k[i];
    for (int64_t j = 0; j < sequence_.value_dim; ++j) e_[j] = v[j] - read_k_[j];
    if (o == nullptr) return;
    const S scale = 1 / std::sqrt(static_cast<S>(sequence_.key_dim));
    S qk = 0;  // what q reads of this token's own write
    for (int64_t i = 0; i < sequence_.key_dim; ++i) qk += q[i] * write_[i];
    for (int64_t j = 0; j < sequence_.value_dim; ++j)
      o[j] = scale * (read_q_[j] + qk * e_[j]);
  }

  // Adds the pending write, so that `state` is complete.
  void Finish(S* state) {
    Advance(AdvanceArgs<S>{.num_tiles = sizes_.tiles,
                           .key_dim = sequence_.key_dim,
                           .from = state,
                           .to = state,
                           .write = write_.data(),
                           .e = e_.data(),
                           .decay = no_decay_.data(),
                           .k = write_.data(),
                           .q = nullptr,
                           .read_k = read_k_.data(),
                           .read_q = read_q_.data()});
    Restart();
  }

  const std::vector<S>& e() const { return e_; }

 private:
  const DeltaSequence<S>& sequence_;
  const Sizes<S> sizes_;
  std::vector<S> write_;     // [K], beta k of the last token
  std::vector<S> no_decay_;  // [K], ones
  std::vector<S> e_;         // [V padded], of the last token
  std::vector<S> read_k_;
  std::vector<S> read_q_;
};

// The reverse pass over one chunk.
template <typename S>
class ChunkReverser {
 public:
  ChunkReverser(const DeltaSequence<S>& sequence,
                const DeltaGradients<S>& gradients)
      : sequence_(sequence),
        gradients_(gradients),
        sizes_(sequence),
        scale_(1 / std::sqrt(static_cast<S>(sequence.key_dim))),
        scaled_q_(sequence.key_dim),
        dq_(sequence.key_dim),
        dk_(sequence.key_dim),
        d_o_(sizes_.padded, S(0)),
        u_(sizes_.padded),
        d_e_(sizes_.padded),
        lanes_(3 * sequence.key_dim * kLanes<S>) {}

  // Token t, with its decayed state and error, moves d_state to the token
  // before and writes the gradients; dlog is that of its log-decay, [K].
  void Step(int64_t t, const S* decay, const S* decayed, const S* e, S* d_state,
            S* dlog) {
    const int64_t key_dim = sequence_.key_dim;
    const int64_t value_dim = sequence_.value_dim;
    const S* q = sequence_.q + t * sequence_.qk_pitch;
    const S* k = sequence_.k + t * sequence_.qk_pitch;
    const S beta = Sigmoid(sequence_.beta[t * sequence_.beta_pitch]);
    for (int64_t i = 0; i < key_dim; ++i) scaled_q_[i] = scale_ * q[i];
    std::copy_n(gradients_.d_o + t * sequence_.v_pitch, value_dim,
                d_o_.begin());
    Reverse(ReverseArgs<S>{.num_tiles = sizes_.tiles,
                           .key_dim = key_dim,
                           .d_state = d_state,
                           .decayed = decayed,
                           .decay = decay,
                           .k = k,
                           .q = scaled_q_.data(),
                           .beta = beta,
                           .e = e,
                           .d_o = d_o_.data(),
                           .u = u_.data(),
                           .d_e = d_e_.data(),
                           .dq = dq_.data(),
                           .dk = dk_.data(),
                           .dlog = dlog,
                           .lanes = lanes_.data()});
    S e_do = 0;
    S dbeta = 0;
    for (int64_t j = 0; j < value_dim; ++j) {
      e_do += e[j] * d_o_[j];
      dbeta += u_[j] * e[j];
    }
    // The output reads the token's own write too: S = D + beta k e^T.
    S* dq = gradients_.dq + t * sequence_.qk_pitch;
    S* dk = gradients_.dk + t * sequence_.qk_pitch;
    for (int64_t i = 0; i < key_dim; ++i) {
      const S full = scale_ * (dq_[i] + beta * k[i] * e_do);
      dq[i] = gradients_.accumulate_qk ? dq[i] + full : full;
      dk[i] = gradients_.accumulate_qk ? dk[i] + dk_[i] : dk_[i];
    }
    std::copy_n(d_e_.begin(), value_dim, gradients_.dv + t * sequence_.v_pitch);
    gradients_.dbeta[t * sequence_.beta_pitch] = dbeta * beta * (1 - beta);
  }

 private:
  const DeltaSequence<S>& sequence_;
  const DeltaGradients<S>& gradients_;
  const Sizes<S> sizes_;
  const S scale_;
  std::vector<S> scaled_q_, dq_, dk_;  // [K]
  std::vector<S> d_o_, u_, d_e_;       // [V padded]
  std::vector<S> lanes_;
};

}  // namespace

template <typename S>
void DeltaForward(const DeltaSequence<S>& sequence, DecayGate<S>& gate, S* o,
                  S* final_state) {
  const Sizes<S> sizes(sequence);
  std::vector<S> state(sizes.state);
  std::vector<S> decay(std::min(kChunk, sequence.num_tokens) *
                       sequence.key_dim);
  ToTiles(sequence, sequence.initial_state, state.data());
  Walker<S> walker(sequence);
  for (int64_t begin = 0; begin < sequence.num_tokens; begin += kChunk) {
    const int64_t end = std::min(begin + kChunk, sequence.num_tokens);
    gate.Decays(begin, end, decay.data());
    for (int64_t t = begin; t < end; ++t) {
      walker.Step(t, decay.data() + (t - begin) * sequence.key_dim,
                  state.data(), state.data(), o + t * sequence.v_pitch);
    }
  }
  if (final_state == nullptr) return;
  walker.Finish(state.data());
  FromTiles(sequence, state.data(), final_state);
}

template <typename S>
void DeltaBackward(const DeltaSequence<S>& sequence, DecayGate<S>& gate,
                   const DeltaGradients<S>& gradients) {
  const Sizes<S> sizes(sequence);
  const int64_t num_tokens = sequence.num_tokens;
  const int64_t key_dim = sequence.key_dim;
  const int64_t chunks = (num_tokens + kChunk - 1) / kChunk;
  const int64_t longest = std::min(kChunk, num_tokens);
  std::vector<S> decay(longest * key_dim);

  // Complete states at the start of every chunk.
  auto starts = Uninitialised<S>(chunks * sizes.state);
  Walker<S> walker(sequence);
  if (chunks > 0) ToTiles(sequence, sequence.initial_state, starts.get());
  for (int64_t chunk = 0; chunk + 1 < chunks; ++chunk) {
    const S* from = starts.get() + chunk * sizes.state;
    S* next = starts.get() + (chunk + 1) * sizes.state;
    const int64_t begin = chunk * kChunk;
    gate.Decays(begin, begin + kChunk, decay.data());
    for (int64_t i = 0; i < kChunk; ++i) {
      walker.Step(begin + i, decay.data() + i * key_dim, from, next, nullptr);
      from = next;
    }
    walker.Finish(next);
  }

  auto decayed = Uninitialised<S>(longest * sizes.state);
  std::vector<S> e(longest * sizes.padded);
  std::vector<S> dlog(longest * key_dim);
  std::vector<S> d_state(sizes.state);
  ToTiles(sequence, gradients.d_final_state, d_state.data());
  ChunkReverser<S> reverser(sequence, gradients);
  for (int64_t chunk = chunks - 1; chunk >= 0; --chunk) {
    const int64_t begin = chunk * kChunk;
    const int64_t end = std::min(begin + kChunk, num_tokens);
    gate.Decays(begin, end, decay.data());
    walker.Restart();
    const S* from = starts.get() + chunk * sizes.state;
    for (int64_t i = 0; i < end - begin; ++i) {
      S* to = decayed.get() + i * sizes.state;
      walker.Step(begin + i, decay.data() + i * key_dim, from, to, nullptr);
      std::copy(walker.e().begin(), walker.e().end(),
                e.begin() + i * sizes.padded);
      from = to;
    }
    for (int64_t i = end - begin - 1; i >= 0; --i) {
      reverser.Step(begin + i, decay.data() + i * key_dim,
                    decayed.get() + i * sizes.state,
                    e.data() + i * sizes.padded, d_state.data(),
                    dlog.data() + i * key_dim);
    }
    gate.Backward(begin, end, dlog.data());
  }
  if (gradients.d_initial_state != nullptr)
    FromTiles(sequence, d_state.data(), gradients.d_initial_state);
}

template void DeltaForward(const DeltaSequence<float>&, DecayGate<float>&,
                           float*, float*);
template void DeltaForward(const DeltaSequence<double>&, DecayGate<double>&,
                           double*, double*);
template void DeltaBackward(const DeltaSequence<float>&, DecayGate<float>&,
                            const DeltaGradients<float>&);
template void DeltaBackward(const DeltaSequence<double>&, DecayGate<double>&,
                            const DeltaGradients<double>&);

}  // namespace cadre::linear_attention
