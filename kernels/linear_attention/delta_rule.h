#ifndef CADRE_KERNELS_LINEAR_ATTENTION_DELTA_RULE_H_
#define CADRE_KERNELS_LINEAR_ATTENTION_DELTA_RULE_H_

// The gated delta rule over one document of one head on the CPU: what KDA and
// Gated DeltaNet share. They differ in where the decay comes from (DecayGate)
// and in which heads share keys. Private to kernels/{kda,gdn}. Stateless, so
// sequences may run on several threads at once.

#include <cstdint>

namespace cadre::linear_attention {

// Decays of one document and head, asked for in ranges of tokens.
template <typename S>
class DecayGate {
 public:
  virtual ~DecayGate() = default;
  // decay[t - begin, K] = exp(log-decay), for document-relative tokens
  // [begin, end).
  virtual void Decays(int64_t begin, int64_t end, S* decay) = 0;
  // Takes the gradient of the log-decays, [end - begin, K]. Called once for
  // each range, the last range first.
  virtual void Backward(int64_t begin, int64_t end, const S* dlog) = 0;
};

// Tensors of one document and head: pointers to its first token, and the
// distance in elements from one token to the next.
template <typename S>
struct DeltaSequence {
  int64_t num_tokens;
  int64_t key_dim;
  int64_t value_dim;
  const S* q;
  const S* k;
  int64_t qk_pitch;
  const S* v;
  int64_t v_pitch;  // of o and d_o too
  const S* beta;    // logits
  int64_t beta_pitch;
  const S* initial_state;  // [K,V]; null = zeros
};

// o and final_state (null = not wanted) are written.
template <typename S>
void DeltaForward(const DeltaSequence<S>& sequence, DecayGate<S>& gate, S* o,
                  S* final_state);

template <typename S>
struct DeltaGradients {
  const S* d_o;
  const S* d_final_state;  // [K,V]; null = zeros
  S* dq;                   // pitch qk_pitch
  S* dk;
  bool accumulate_qk;  // add to dq and dk, which another value head wrote
  S* dv;               // pitch v_pitch
  S* dbeta;            // of the logits, pitch beta_pitch
  S* d_initial_state;  // null = not wanted
};

// Runs forward once, keeping the state at the start of every chunk of 64
// tokens; then walks the chunks backwards, repeating the states of one chunk
// at a time.
template <typename S>
void DeltaBackward(const DeltaSequence<S>& sequence, DecayGate<S>& gate,
                   const DeltaGradients<S>& gradients);

}  // namespace cadre::linear_attention

#endif  // CADRE_KERNELS_LINEAR_ATTENTION_DELTA_RULE_H_
