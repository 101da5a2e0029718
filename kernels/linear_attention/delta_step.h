#ifndef CADRE_KERNELS_LINEAR_ATTENTION_DELTA_STEP_H_
#define CADRE_KERNELS_LINEAR_ATTENTION_DELTA_STEP_H_

// One token of the gated delta rule for one head on the CPU: the loops over the
// state, which take nearly all of the time of KDA and Gated DeltaNet. Private
// to kernels/{linear_attention,kda,gdn}.
//
// State layout. Columns of the K x V state never mix, so it is stored as tiles
// of kLanes columns, [V/kLanes][K][kLanes], V rounded up and zero-filled: a
// tile of one token's work stays in the first-level cache, and no loop has a
// tail. Vectors over V are padded likewise.
//
// Results do not depend on the processor: every sum over lanes has the same
// order whatever vector width the code is compiled for.

#include <cstdint>

namespace cadre::linear_attention {

template <typename S>
inline constexpr int64_t kLanes = 64 / static_cast<int64_t>(sizeof(S));

template <typename S>
constexpr int64_t NumTiles(int64_t value_dim) {
  return (value_dim + kLanes<S> - 1) / kLanes<S>;
}

// With P the state of the previous token without its write, which is done here
// (so that a token costs one pass over the state):
//   to = diag(decay) (from + write e^T) ;  read_k = to^T k ;  read_q = to^T q
template <typename S>
struct AdvanceArgs {
  int64_t num_tiles;
  int64_t key_dim;
  const S* from;   // state
  S* to;           // state; may be `from`
  const S* write;  // [K], beta k of the previous token
  const S* e;      // [V padded], of the previous token
  const S* decay;  // [K], of this token
  const S* k;      // [K]
  const S* q;      // [K]; null = read_q is not wanted
  S* read_k;       // [V padded]
  S* read_q;       // [V padded]
};
void Advance(const AdvanceArgs<float>& args);
void Advance(const AdvanceArgs<double>& args);

// The reverse of one token. With D the decayed state of this token and dS the
// gradient of the state it leaves behind, in place:
//   dS += q do^T ;  u = dS^T k ;  de = beta u
//   dk = beta dS e - D de ;  dS -= k de^T
//   dq = D do ;  dlog = rowsum(D dS) ;  dS *= diag(decay)
template <typename S>
struct ReverseArgs {
  int64_t num_tiles;
  int64_t key_dim;
  S* d_state;        // state
  const S* decayed;  // state, D
  const S* decay;    // [K]
  const S* k;        // [K]
  const S* q;        // [K], times the output scale
  S beta;
  const S* e;    // [V padded]
  const S* d_o;  // [V padded]
  S* u;          // [V padded]
  S* d_e;        // [V padded]
  S* dq;         // [K]
  S* dk;         // [K]
  S* dlog;       // [K]
  S* lanes;      // scratch, 3 K kLanes
};
void Reverse(const ReverseArgs<float>& args);
void Reverse(const ReverseArgs<double>& args);

}  // namespace cadre::linear_attention

#endif  // CADRE_KERNELS_LINEAR_ATTENTION_DELTA_STEP_H_
