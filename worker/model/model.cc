#include "worker/model/model.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/common/check.h"
#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/embedding/embedding.h"
#include "plan/pass_memory.h"
#include "worker/device/arena.h"
#include "worker/device/transfer.h"
#include "worker/model/block_factory.h"
#include "worker/model/expert_connection.h"
#include "worker/model/pass_arenas.h"
#include "worker/model/pass_counts.h"
#include "worker/model/pass_inputs.h"
#include "worker/model/pass_units.h"
#include "worker/model/stream_ends.h"
#include "worker/model/weight_store.h"

namespace cadre {
namespace {

// Rows of logits held at a time.
constexpr int64_t kLossBlockTokens = 256;
// A GPU's products need more rows to be fast; 0.3 GB of bf16 with 163,840
// words.
constexpr int64_t kLossBlockTokensCuda = 1024;

class BlockModel final : public Model {
 public:
  BlockModel(const ModelSpec& spec, ModelOptions options)
      : spec_(spec),
        options_(std::move(options)),
        weights_(options_.exec, spec_, lora(), options_.dtype, experts(),
                 options_.dense_sharding),
        phases_(options_.exec, options_.nvtx),
        arenas_(options_.exec),
        inputs_(options_.exec),
        counts_(spec_, options_) {}

  absl::Status Init();

  absl::Status Connect(const ModelGroups& groups) override;

  ParameterRegistry& parameters() override { return weights_.registry(); }
  absl::Span<const ExpertParameter> expert_parameters() const override {
    return weights_.experts();
  }
  absl::Status SetPlacement(const ExpertPlacement& placement) override;
  const ExpertParallel* expert_parallel() const override { return experts(); }
  const ModelSpec& spec() const override { return spec_; }
  const DenseUnits& units() const override { return weights_.units(); }
  absl::Status LoadWeights(const ModelDir& dir) override {
    return weights_.Load(dir);
  }
  absl::Status InitWeights(uint64_t seed) override {
    return weights_.InitBase(spec_, seed);
  }
  absl::Status InitAdapter(uint64_t seed) override {
    return weights_.InitAdapter(seed);
  }

  absl::StatusOr<ForwardResult> Forward(const Batch& batch,
                                        const ForwardCapture& capture) override;
  absl::StatusOr<ForwardResult> ForwardBackward(
      const Batch& batch, const LossScale& scale) override;

  ArenaStats arena_stats() const override { return arenas_.stats(); }
  void RestartRecentPeaks() override { arenas_.RestartRecentPeaks(); }

 private:
  const LoraPlan* lora() const {
    return options_.lora ? &*options_.lora : nullptr;
  }
  const ExpertParallel* experts() const {
    if (runtime_ != nullptr) return &runtime_->experts;
    return options_.expert_parallel ? &*options_.expert_parallel : nullptr;
  }
  absl::StatusOr<ForwardResult> RunForward(const Batch& batch,
                                           const ForwardCapture& capture);
  absl::StatusOr<ForwardResult> RunForwardBackward(const Batch& batch,
                                                   const LossScale& scale);
  absl::StatusOr<LayerContext> BeginPass(const Batch& batch, bool training,
                                         uint64_t dropout_step);
  Tensor NewState(Arena* arena, const LayerContext& ctx) const {
    return ends_.NewState(arena, ctx.dtype, ctx.num_tokens);
  }
  bool Replays(size_t block) const {
    return static_cast<int>(block) < options_.replayed_blocks;
  }
  // Fills streams_ up to the input of the final norm.
  absl::Status RunBlocks(LayerContext* ctx, const ForwardCapture& capture);
  absl::Status Embed(const LayerContext& ctx, const Tensor& state);
  absl::Status Loss(const LayerContext& ctx, const Tensor& x,
                    LinearCrossEntropyArgs args);
  absl::Status BackwardBlocks(LayerContext* ctx, Stream* grad);
  absl::Status BackwardEmbedding(const LayerContext& ctx, const Stream& grad,
                                 const Tensor& dx);
  PassRequest RequestFor(int64_t tokens) const {
    return PassRequestFor(spec_, options_, runtime_.get(), tokens);
  }

  const ModelSpec spec_;
  const ModelOptions options_;
  // Null: all experts are here, or the model is not connected yet.
  std::unique_ptr<ExpertRuntime> runtime_;
  WeightStore weights_;
  Communicator* world_ = nullptr;  // ModelGroups::world
  PassUnits units_;
  Parameter *embedding_ = nullptr, *head_ = nullptr;
  Norm final_norm_;
  StreamEnds ends_;
  std::vector<std::unique_ptr<Block>> blocks_;

  PhaseClock phases_;
  PassArenas arenas_;
  PassInputs inputs_;
  PassCounts counts_;

  // Of the pass under way.
  std::vector<Stream> streams_;  // streams_[i]: input of block i; last: output
  Tensor final_in_, final_out_;
};

absl::Status BlockModel::Init() {
  CADRE_RETURN_IF_ERROR(weights_.Allocate());
  const LayerBuilder builder(&parameters(), lora(), "");
  const std::string& prefix = spec_.tensor_prefix;
  CADRE_ASSIGN_OR_RETURN(embedding_,
                         builder.Param(prefix + "embed_tokens.weight"));
  head_ = embedding_;
  if (!spec_.tie_word_embeddings) {
    CADRE_ASSIGN_OR_RETURN(head_, builder.Param(LmHeadName(spec_)));
  }
  CADRE_ASSIGN_OR_RETURN(Parameter * norm,
                         builder.Param(prefix + "norm.weight"));
  final_norm_ = Norm(norm, spec_.norm_eps, spec_.norm_one_plus_weight);
  CADRE_ASSIGN_OR_RETURN(ends_, StreamEnds::Create(spec_, builder));
  CADRE_ASSIGN_OR_RETURN(blocks_, MakeBlocks(spec_, &parameters(), lora()));
  units_.Plan({.num_shards = options_.dense_sharding.num_shards,
               .num_blocks = static_cast<int>(blocks_.size()),
               .tied_head = spec_.tie_word_embeddings,
               .trains_embedding = embedding_->grad.present()});
  return absl::OkStatus();
}

absl::Status BlockModel::Connect(const ModelGroups& groups) {
  CADRE_ASSIGN_OR_RETURN(runtime_, ConnectExperts(options_, groups));
  CADRE_RETURN_IF_ERROR(units_.Connect(groups.units));
  world_ = groups.world;
  return absl::OkStatus();
}

absl::Status BlockModel::SetPlacement(const ExpertPlacement& placement) {
  if (runtime_ == nullptr ||
      !(placement.shape == runtime_->experts.placement.shape)) {
    return absl::InvalidArgumentError(
        "placing experts anew: the model is not connected to other ranks, or "
        "the placement has other layers, experts, ranks or slots");
  }
  runtime_->experts.placement = placement;
  ++runtime_->placements;
  for (const auto& [parameter, layer] : weights_.experts()) {
    parameter->rows = HeldExperts(runtime_->experts, layer);
  }
  return absl::OkStatus();
}

absl::StatusOr<LayerContext> BlockModel::BeginPass(const Batch& batch,
                                                   bool training,
                                                   uint64_t dropout_step) {
  CADRE_RETURN_IF_ERROR(CheckBatch(batch));
  if (options_.expert_parallel && runtime_ == nullptr) {
    return absl::FailedPreconditionError(
        "the model's experts lie on several ranks and it is not connected to "
        "them");
  }
  CADRE_RETURN_IF_ERROR(units_.Begin(training));
  arenas_.Reset();
  const int64_t T = batch.num_tokens();
  if (training) {
    arenas_.Reserve(RequestFor(std::max(T, options_.pass_tokens)),
                    counts_.top_k());
  }
  phases_.Restart();
  if (options_.selections != nullptr) options_.selections->BeginPass();
  CADRE_RETURN_IF_ERROR(inputs_.Place(batch, arenas_.kept()));
  CADRE_RETURN_IF_ERROR(counts_.Begin(batch, arenas_.kept()));
  return LayerContext{
      .exec = options_.exec,
      .dtype = options_.dtype,
      .param_dtype = ParamDType(options_.exec, options_.dtype),
      .num_tokens = T,
      .cu_seqlens = inputs_.cu_seqlens(),
      .positions = inputs_.positions(),
      .mask = batch.num_real_tokens() < T ? inputs_.mask() : Tensor(),
      .kept = arenas_.kept(),
      .saved = arenas_.saved(),
      .scratch = arenas_.scratch(),
      .training = training,
      .dropout_seed = MixSeed(options_.dropout_seed, dropout_step),
      .routers = counts_.routers(),
      .experts = runtime_.get(),
      .phases = &phases_,
      .selections = options_.selections};
}

absl::Status BlockModel::Embed(const LayerContext& ctx, const Tensor& state) {
  ArenaScope scope(ctx.scratch);
  const Tensor x =
      ends_.Flat() ? state : ctx.Scratch({ctx.num_tokens, spec_.hidden_size});
  CADRE_RETURN_IF_ERROR(EmbeddingForward(
      ctx.exec, {.ids = inputs_.ids(), .table = embedding_->value, .y = x}));
  return ends_.Begin(ctx, x, state);
}

absl::Status BlockModel::RunBlocks(LayerContext* ctx,
                                   const ForwardCapture& capture) {
  streams_.assign(blocks_.size() + 1, {});
  streams_[0].state = NewState(arenas_.kept(), *ctx);
  CADRE_RETURN_IF_ERROR(units_.Acquire());
  CADRE_RETURN_IF_ERROR(Embed(*ctx, streams_[0].state));
  CADRE_RETURN_IF_ERROR(units_.Release());
  for (size_t i = 0; i < blocks_.size(); ++i) {
    if (capture.hidden != nullptr) {
      CADRE_ASSIGN_OR_RETURN(std::vector<float> state,
                             ReadFloats(ctx->exec, streams_[i].state));
      capture.hidden->push_back(std::move(state));
    }
    streams_[i + 1].state = NewState(arenas_.kept(), *ctx);
    const Arena::Mark mark = arenas_.saved()->mark();
    CADRE_RETURN_IF_ERROR(units_.Acquire());
    CADRE_RETURN_IF_ERROR(
        Annotate(blocks_[i]->Forward(*ctx, streams_[i], &streams_[i + 1]),
                 absl::StrCat("layer ", i)));
    CADRE_RETURN_IF_ERROR(units_.Release());
    if (!ctx->training || Replays(i)) {
      arenas_.saved()->Release(mark);
    }
  }
  // The head's, until the loss (and its backward pass) is done.
  CADRE_RETURN_IF_ERROR(units_.Acquire());
  CADRE_ASSIGN_OR_RETURN(final_in_, ends_.End(*ctx, streams_.back()));
  final_out_ = ctx->Saved({ctx->num_tokens, spec_.hidden_size});
  CADRE_RETURN_IF_ERROR(final_norm_.Forward(*ctx, final_in_, final_out_));
  if (capture.hidden != nullptr) {
    CADRE_ASSIGN_OR_RETURN(std::vector<float> state,
                           ReadFloats(ctx->exec, final_out_));
    capture.hidden->push_back(std::move(state));
  }
  return absl::OkStatus();
}

// `args` brings the outputs wanted.
absl::Status BlockModel::Loss(const LayerContext& ctx, const Tensor& x,
                              LinearCrossEntropyArgs args) {
  PhaseScope phase(ctx.phases, Phase::kLoss);
  ArenaScope scope(ctx.scratch);
  const int64_t block = ctx.exec.backend == Backend::kCuda
                            ? kLossBlockTokensCuda
                            : kLossBlockTokens;
  const int64_t rows = std::max<int64_t>(1, std::min(ctx.num_tokens, block));
  args.x = x;
  args.head = head_->value;
  args.targets = inputs_.targets();
  args.workspace = ctx.Scratch({rows, spec_.vocab_size});
  args.loss_sum = counts_.loss_sum();
  return LinearCrossEntropy(ctx.exec, args);
}

absl::StatusOr<ForwardResult> BlockModel::Forward(
    const Batch& batch, const ForwardCapture& capture) {
  absl::StatusOr<ForwardResult> result = RunForward(batch, capture);
  CADRE_RETURN_IF_ERROR(arenas_.Explain(result.status()));
  return result;
}

absl::StatusOr<ForwardResult> BlockModel::ForwardBackward(
    const Batch& batch, const LossScale& scale) {
  absl::StatusOr<ForwardResult> result = RunForwardBackward(batch, scale);
  CADRE_RETURN_IF_ERROR(arenas_.Explain(result.status()));
  return result;
}

absl::StatusOr<ForwardResult> BlockModel::RunForward(
    const Batch& batch, const ForwardCapture& capture) {
  CADRE_ASSIGN_OR_RETURN(LayerContext ctx,
                         BeginPass(batch, /*training=*/false, 0));
  counts_.routers()->logits = capture.router_logits;
  CADRE_RETURN_IF_ERROR(RunBlocks(&ctx, capture));
  CADRE_RETURN_IF_ERROR(counts_.SumOverRanks(/*aux_weight=*/1.0, world_));
  LinearCrossEntropyArgs args;
  if (capture.logits != nullptr) {
    args.logits = ctx.Saved({ctx.num_tokens, spec_.vocab_size});
  }
  CADRE_RETURN_IF_ERROR(Loss(ctx, final_out_, args));
  CADRE_RETURN_IF_ERROR(units_.Release());
  if (capture.logits != nullptr) {
    CADRE_ASSIGN_OR_RETURN(*capture.logits, ReadFloats(ctx.exec, args.logits));
  }
  return counts_.Read(&phases_, runtime_.get());
}

absl::StatusOr<ForwardResult> BlockModel::RunForwardBackward(
    const Batch& batch, const LossScale& scale) {
  CADRE_ASSIGN_OR_RETURN(LayerContext ctx, BeginPass(batch, /*training=*/true,
                                                     scale.dropout_step));
  counts_.routers()->aux_coefficient =
      counts_.aux_coefficient() * scale.aux_weight;
  CADRE_RETURN_IF_ERROR(RunBlocks(&ctx, {}));
  CADRE_RETURN_IF_ERROR(counts_.SumOverRanks(scale.aux_weight, world_));
  // Gradients of the stream live below all else in scratch.
  const Tensor dx = ctx.Scratch({ctx.num_tokens, spec_.hidden_size});
  CADRE_RETURN_IF_ERROR(Loss(
      ctx, final_out_,
      {.inv_count = scale.inv_num_targets, .dx = dx, .dhead = head_->grad}));
  phases_.BeginBackward();
  CADRE_RETURN_IF_ERROR(final_norm_.Backward(ctx, final_in_, dx, dx));
  CADRE_ASSIGN_OR_RETURN(Stream grad,
                         ends_.EndBackward(ctx, streams_.back(), dx));
  CADRE_RETURN_IF_ERROR(units_.Release());
  CADRE_RETURN_IF_ERROR(BackwardBlocks(&ctx, &grad));
  CADRE_RETURN_IF_ERROR(BackwardEmbedding(ctx, grad, dx));
  CADRE_ASSIGN_OR_RETURN(ForwardResult result,
                         counts_.Read(&phases_, runtime_.get()));
  arenas_.Expect(RequestFor(ctx.num_tokens), result);
  return result;
}

absl::Status BlockModel::BackwardEmbedding(const LayerContext& ctx,
                                           const Stream& grad,
                                           const Tensor& dx) {
  if (!embedding_->grad.present()) return absl::OkStatus();
  CADRE_RETURN_IF_ERROR(units_.Acquire());
  const Tensor d_embedded = ends_.Flat() ? grad.state : dx;
  CADRE_RETURN_IF_ERROR(ends_.BeginBackward(ctx, grad.state, d_embedded));
  CADRE_RETURN_IF_ERROR(
      EmbeddingBackward(ctx.exec, {.ids = inputs_.ids(),
                                   .dy = d_embedded,
                                   .dtable = embedding_->grad,
                                   .pad_id = spec_.pad_token_id}));
  return units_.Release();
}

absl::Status BlockModel::BackwardBlocks(LayerContext* ctx, Stream* grad) {
  for (size_t i = blocks_.size(); i-- > 0;) {
    const Arena::Mark mark = arenas_.saved()->mark();
    CADRE_RETURN_IF_ERROR(units_.Acquire());
    if (Replays(i)) {
      ctx->replay = true;
      Stream again{.state = NewState(arenas_.saved(), *ctx)};
      CADRE_RETURN_IF_ERROR(blocks_[i]->Forward(*ctx, streams_[i], &again));
    }
    CADRE_RETURN_IF_ERROR(Annotate(blocks_[i]->Backward(*ctx, grad),
                                   absl::StrCat("layer ", i, " backward")));
    CADRE_RETURN_IF_ERROR(units_.Release());
    arenas_.saved()->Release(mark);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> Model::Create(const ModelSpec& spec,
                                                     ModelOptions options) {
  // Before construction: the weights are laid out by it.
  CADRE_RETURN_IF_ERROR(CheckExpertParallel(spec, options));
  auto model = std::make_unique<BlockModel>(spec, std::move(options));
  CADRE_RETURN_IF_ERROR(model->Init());
  return model;
}

}  // namespace cadre
