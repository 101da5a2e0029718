#ifndef CADRE_PLAN_ACTIVATION_BYTES_H_
#define CADRE_PLAN_ACTIVATION_BYTES_H_

// Bytes per token that a block of a model keeps for its backward pass, and that
// are live while it runs. Pure; thread-safe.
//
// In bf16, with D hidden, H heads, d head width, F expert or MLP width, Dr
// width that routed experts see, R/T rows per token in the experts:
//
//   part            kept                           live in the backward, more
//   residual        2 D n (n streams)              4 D n
//   KDA             2 D + 10 H d + 12 H            16 H d + 17 d x head group
//   GDN             2 D + 4 Hk dk + 6 H d + 12 H   the same
//   dense MLA       2 D + 2 H (2 qk + 2 v) + 2 c   as much again
//   sparse MLA      2 D + H (2 c + 2 v + 4) + 2 c  7 c H + 4 c
//                   + 2 q_lora + idx
//   GQA             2 D + 2 (2 H + 2 Hkv) d + 4 H  as much again
//   MoE             (4 Dr + 6 F) R/T               (2 Dr + 6 F) R/T
//   shared expert   2 D + 6 Fs                     6 Fs
//   dense MLP       2 D + 6 F                      6 F
//
// An output gate keeps another 2 H v. qk and v are the head widths of keys and
// values, c is the width of a latent key (kv_lora + rope). KDA's backward needs
// 6 H d (after the convolution) and 10 H d (gradients) at once, and the
// workspace of one head group; a replay needs 12 H d at once (GDN: 4 Hk dk + 8
// H d), since chunk states are made group by group. Where keys or values are 64
// wide the group's workspace is that of 128, and copies of all heads with rows
// of 128 lie beside it: 2,304 H for KDA. Source: section 9 of the design of the
// memory model; docs/memory_model.md says what each part is.

#include <cstdint>

#include "model/model_spec.h"

namespace cadre {

struct ActivationShape {
  int64_t longest_document = 0;        // tokens; sizes the kept sparse indices
  double expert_rows_per_token = 0.0;  // R/T = rho x k
  int64_t kda_head_group = 8;  // heads per pass of the KDA and GDN backward
};

// One block, bytes per token at 2 bytes per element.
struct BlockActivations {
  double residual_kept = 0.0;  // the block's input
  double residual_live = 0.0;  // gradient streams while the block runs
  double mixer_kept = 0.0;     // without recompute
  double mixer_replay = 0.0;   // what a replay brings back for the backward
  double mixer_live = 0.0;     // more, in the mixer's backward
  double ffn_kept = 0.0;
  double ffn_live = 0.0;  // more, in the backward
  double routing = 0.0;   // ids, weights, indices: kept under every policy
};
BlockActivations ActivationsOf(const ModelSpec& model, const BlockSpec& block,
                               const ActivationShape& shape);

// Indices of sparse attention per token, the smallest encoding for documents of
// that length: a bitmap (t / 8), 16-bit ids up to 65536 tokens, 32-bit ids.
double SparseIndexBytes(const IndexerSpec& indexer, int64_t longest_document);

// Earlier block outputs that attention residuals keep over the whole pass
// (kimi_k3), bytes per token at 2 bytes per element; 0 for other models.
double ResidualBankBytes(const ModelSpec& model);

}  // namespace cadre

#endif  // CADRE_PLAN_ACTIVATION_BYTES_H_
