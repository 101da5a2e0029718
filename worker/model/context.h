#ifndef CADRE_WORKER_MODEL_CONTEXT_H_
#define CADRE_WORKER_MODEL_CONTEXT_H_

// What every layer of one forward or backward pass shares.
//
// Shape letters in worker/model: T packed tokens of the micro-batch, D hidden,
// n heads, E experts, k experts per token, R token rows in expert order, F
// expert width, r adapter rank.

#include <cstdint>
#include <vector>

#include "kernels/common/exec.h"
#include "kernels/common/tensor.h"
#include "kernels/router/router.h"
#include "kernels/router/router_overflow.h"
#include "worker/device/arena.h"
#include "worker/device/phase_clock.h"
#include "worker/model/selections.h"

namespace cadre {

// What routers report to the model, over all layers of one micro-batch.
struct RouterTap {
  // Tables of the auxiliary loss (kernels/router); absent: the model has none.
  RouterAuxStatistics aux;
  // d(total loss)/d(aux): the model's coefficient times the micro-batch's
  // weight.
  double aux_coefficient = 0.0;
  // f64 [1]: sum of the z-losses of this rank's tokens; absent: not wanted.
  Tensor z_sum;
  double z_coefficient = 0.0;  // d(total loss)/d(z_sum)
  // What an expert takes; capacity 0: everything.
  OverflowPolicy overflow = OverflowPolicy::kDropless;
  int64_t capacity = 0;
  // i64 [kNumOverflowCounts] for each MoE layer with a capacity, kept.
  std::vector<Tensor> overflow_counts;
  // i64 [E] for each MoE layer, kept; appended in the forward pass, never in a
  // replay. Read when the pass is over: until then nothing waits for a GPU.
  std::vector<Tensor> expert_tokens;
  // Groups of the batches that went through grouped products, kept and appended
  // likewise.
  struct ExpertBatch {
    size_t layer = 0;  // counts MoE layers
    Tensor offsets;    // i32 [experts here + 1]
  };
  std::vector<ExpertBatch> expert_batches;
  std::vector<std::vector<float>>* logits = nullptr;  // null: not wanted
};

struct ExpertRuntime;  // worker/moe/expert_runtime.h

struct LayerContext {
  Exec exec;
  // Of activations and weight matrices.
  DType dtype = DType::kF32;
  // Of norm weights, gates' logits, router logits and weights, softmax
  // statistics and gradients: f32 beside bf16, else as dtype.
  DType param_dtype = DType::kF32;
  int64_t num_tokens = 0;  // T, padding included
  Tensor cu_seqlens;       // i32 [docs + 1]
  Tensor positions;        // i32 [T], from 0 in each document
  Tensor mask;             // i32 [T], 0 for padding; absent without padding

  // Lives for the whole step even when blocks are replayed: block inputs and
  // routing decisions.
  Arena* kept = nullptr;
  // What one block needs for its backward pass.
  Arena* saved = nullptr;
  // Within one call.
  Arena* scratch = nullptr;

  // False for a forward pass without a backward pass.
  bool training = false;
  // True while a block is run again in the backward pass: decisions that were
  // kept (experts, selected keys) are used, not made again.
  bool replay = false;
  // Of this micro-batch; 0 and unused without dropout.
  uint64_t dropout_seed = 0;
  RouterTap* routers = nullptr;
  // Exchanges rows with other ranks' experts; null: all experts are here.
  ExpertRuntime* experts = nullptr;
  PhaseClock* phases = nullptr;  // may be null
  // For comparisons: choices recorded or given; null: neither.
  Selections* selections = nullptr;

  Tensor Saved(std::initializer_list<int64_t> dims) const {
    return saved->Allocate(dtype, dims);
  }
  Tensor Scratch(std::initializer_list<int64_t> dims) const {
    return scratch->Allocate(dtype, dims);
  }
  Tensor SavedParam(std::initializer_list<int64_t> dims) const {
    return saved->Allocate(param_dtype, dims);
  }
  Tensor ScratchParam(std::initializer_list<int64_t> dims) const {
    return scratch->Allocate(param_dtype, dims);
  }
  // Workspace of an op; absent for 0.
  Tensor ScratchBytes(int64_t bytes) const {
    return bytes == 0 ? Tensor() : scratch->Allocate(DType::kU8, {bytes});
  }
};

}  // namespace cadre

#endif  // CADRE_WORKER_MODEL_CONTEXT_H_
