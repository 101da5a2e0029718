#ifndef CADRE_WORKER_MODEL_STREAM_ENDS_H_
#define CADRE_WORKER_MODEL_STREAM_ENDS_H_

// How the residual stream begins at the embedding and ends at the final norm,
// for each kind of residual.

#include "absl/status/statusor.h"
#include "model/model_spec.h"
#include "worker/model/block.h"
#include "worker/model/residual_mix.h"

namespace cadre {

class StreamEnds {
 public:
  StreamEnds() = default;
  static absl::StatusOr<StreamEnds> Create(const ModelSpec& spec,
                                           const LayerBuilder& builder);

  // Room for a stream's state of T tokens.
  Tensor NewState(Arena* arena, DType dtype, int64_t num_tokens) const;

  // x [T, D] -> state; x is `state` itself where they are the same (Flat()).
  absl::Status Begin(const LayerContext& ctx, const Tensor& x,
                     const Tensor& state) const;
  absl::Status BeginBackward(const LayerContext& ctx, const Tensor& d_state,
                             const Tensor& dx) const;
  // The stream's end -> what the final norm reads: a tensor of ctx.saved, or
  // the state itself.
  absl::StatusOr<Tensor> End(const LayerContext& ctx, const Stream& stream);
  // dx [T, D] -> gradient of the stream, in ctx.scratch or dx itself.
  absl::StatusOr<Stream> EndBackward(const LayerContext& ctx,
                                     const Stream& stream, const Tensor& dx);

  // True where a state is one [T, D] tensor.
  bool Flat() const { return multiplicity_ == 0; }

 private:
  int64_t hidden_ = 0;
  int64_t multiplicity_ = 0;  // > 0: hyper-connections
  bool mixes_ = false;        // attention residuals
  ResidualMix mix_;
};

}  // namespace cadre

#endif  // CADRE_WORKER_MODEL_STREAM_ENDS_H_
