#include "worker/model/model.h"

#include <cstring>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/common/check.h"
#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/embedding/embedding.h"
#include "kernels/grouped_gemm/grouped_gemm.h"
#include "plan/capacity.h"
#include "plan/pass_memory.h"
#include "worker/device/arena.h"
#include "worker/device/buffer.h"
#include "worker/device/side_stream.h"
#include "worker/device/transfer.h"
#include "worker/model/block_factory.h"
#include "worker/model/stream_ends.h"
#include "worker/model/weight_store.h"

namespace cadre {
namespace {

// Rows of logits held at a time.
constexpr int64_t kLossBlockTokens = 256;
// A GPU's products need more rows to be fast; 0.3 GB of bf16 with 163,840
// words.
constexpr int64_t kLossBlockTokensCuda = 1024;
// Of an arena, beyond what the plan says.
constexpr int64_t kArenaSlack = int64_t{64} << 10;

absl::Status CheckBatch(const Batch& batch) {
  const int64_t T = batch.num_tokens();
  const auto& cu = batch.cu_seqlens;
  if (static_cast<int64_t>(batch.targets.size()) != T || cu.empty() ||
      cu.front() != 0 || cu.back() > T) {
    return absl::InternalError(absl::StrCat(
        "batch of ", T, " ids, ", batch.targets.size(), " targets and ",
        cu.size(), " document bounds does not fit together"));
  }
  return absl::OkStatus();
}

// Position of each token in its document; padding counts on from 0.
std::vector<int32_t> Positions(const Batch& batch) {
  std::vector<int32_t> out(batch.ids.size());
  const auto& cu = batch.cu_seqlens;
  for (size_t d = 0; d + 1 < cu.size(); ++d) {
    for (int32_t t = cu[d]; t < cu[d + 1]; ++t) out[t] = t - cu[d];
  }
  for (size_t t = cu.back(); t < out.size(); ++t) {
    out[t] = static_cast<int32_t>(t) - cu.back();
  }
  return out;
}

Tensor HostView(const std::vector<int32_t>& v) {
  return Tensor(const_cast<int32_t*>(v.data()), DType::kI32,
                {static_cast<int64_t>(v.size())});
}

class BlockModel final : public Model {
 public:
  BlockModel(const ModelSpec& spec, ModelOptions options)
      : spec_(spec),
        options_(std::move(options)),
        weights_(options_.exec, spec_, lora(), options_.dtype, experts(),
                 options_.dense_sharding),
        phases_(options_.exec, options_.nvtx),
        kept_(options_.exec, "kept activations"),
        saved_(options_.exec, "activations"),
        scratch_(options_.exec, "temporaries") {}

  // Before construction: the weights are laid out by it.
  static absl::Status CheckExpertParallel(const ModelSpec& spec,
                                          const ModelOptions& options);
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

  ArenaStats arena_stats() const override {
    ArenaStats stats;
    for (const Arena* arena : {&kept_, &saved_, &scratch_}) {
      stats.allocations += arena->num_allocations();
      stats.peak_bytes += arena->peak_bytes();
      stats.reserved_bytes += arena->reserved_bytes();
    }
    stats.expected_bytes = expected_bytes_;
    return stats;
  }

 private:
  const LoraPlan* lora() const {
    return options_.lora ? &*options_.lora : nullptr;
  }
  const ExpertParallel* experts() const {
    if (runtime_ != nullptr) return &runtime_->experts;
    return options_.expert_parallel ? &*options_.expert_parallel : nullptr;
  }
  absl::Status Reserve(int64_t bytes, absl::string_view what,
                       PinnedBuffer* buffer);
  // The batch's tables where the exec is, with positions and padding mask.
  absl::Status PlaceInputs(const Batch& batch);
  absl::StatusOr<ForwardResult> RunForward(const Batch& batch,
                                           const ForwardCapture& capture);
  absl::StatusOr<ForwardResult> RunForwardBackward(const Batch& batch,
                                                   const LossScale& scale);
  // An op's error, or the lack of memory behind it.
  absl::Status Explain(const absl::Status& status);
  absl::StatusOr<LayerContext> BeginPass(const Batch& batch, bool training,
                                         uint64_t dropout_step);
  Tensor NewState(Arena* arena, const LayerContext& ctx) const {
    return ends_.NewState(arena, ctx.dtype, ctx.num_tokens);
  }
  // Fills inputs_ and streams_ up to the input of the final norm.
  absl::Status RunBlocks(LayerContext* ctx, const ForwardCapture& capture);
  absl::Status Embed(const LayerContext& ctx, const Tensor& state);
  absl::Status Loss(const LayerContext& ctx, const Tensor& x,
                    LinearCrossEntropyArgs args);
  absl::Status SumRouterStatistics(double aux_weight);
  absl::Status BackwardBlocks(LayerContext* ctx, Stream* grad);
  absl::Status BackwardEmbedding(const LayerContext& ctx, const Stream& grad,
                                 const Tensor& dx);
  void PlanUnits();
  absl::Status AcquireUnit() {
    return groups_.units == nullptr ? absl::OkStatus()
                                    : groups_.units->Acquire();
  }
  absl::Status ReleaseUnit() {
    return groups_.units == nullptr ? absl::OkStatus()
                                    : groups_.units->Release();
  }
  PassRequest RequestFor(int64_t tokens) const;
  void ReserveArenas(int64_t tokens);
  // What the plan says of the memory of the training passes so far.
  void ExpectMemory(int64_t tokens, const ForwardResult& result);
  // Waits for the pass and reads what it counted.
  absl::StatusOr<ForwardResult> Result(const LayerContext& ctx);

  const ModelSpec spec_;
  const ModelOptions options_;
  // Null: all experts are here, or the model is not connected yet.
  std::unique_ptr<ExpertRuntime> runtime_;
  WeightStore weights_;
  ModelGroups groups_;
  // The units of a pass without and with a backward pass, in order of use.
  std::vector<UnitStep> forward_units_, training_units_;
  Parameter *embedding_ = nullptr, *head_ = nullptr;
  Norm final_norm_;
  StreamEnds ends_;
  std::vector<std::unique_ptr<Block>> blocks_;

  PhaseClock phases_;
  Arena kept_, saved_, scratch_;
  RouterTap routers_;
  double aux_coef_ = 0;  // of the model; 0: no auxiliary loss
  int64_t num_experts_ = 0, top_k_ = 0;

  // Of the pass under way.
  std::vector<int32_t> positions_, mask_;
  Tensor ids_, targets_, cu_seqlens_, positions_view_, mask_view_;
  PinnedBuffer inputs_, results_;  // CUDA: on the way to and from the device
  Tensor totals_;  // f64 [3]: sum of the loss, auxiliary loss, sum of z-losses
  SeenRows seen_rows_;  // of training passes
  int64_t most_tokens_ = -1, expected_bytes_ = 0, reserved_tokens_ = 0;
  int64_t num_real_tokens_ = 0;
  double inv_tokens_ = 0;        // 1 / real tokens of all ranks
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
  for (const BlockSpec& block : spec_.blocks) {
    if (const auto* moe = std::get_if<MoeSpec>(&block.ffn)) {
      num_experts_ = moe->num_experts;
      top_k_ = moe->top_k;
      aux_coef_ =
          options_.moe.aux_loss_coef.value_or(moe->router.aux_loss_coef);
    }
  }
  PlanUnits();
  return absl::OkStatus();
}

void BlockModel::PlanUnits() {
  if (options_.dense_sharding.num_shards <= 1) return;
  const int layers = static_cast<int>(blocks_.size());
  // A head that is the embedding lies in its unit, as the final norm does then.
  const int head = spec_.tie_word_embeddings ? 0 : layers + 1;
  for (int unit = 0; unit <= layers; ++unit) {
    forward_units_.push_back({unit, UnitUse::kValues});
  }
  training_units_ = forward_units_;
  forward_units_.push_back({head, UnitUse::kValues});
  training_units_.push_back({head, UnitUse::kValuesAndGradients});
  for (int unit = layers; unit > 0; --unit) {
    training_units_.push_back({unit, UnitUse::kValuesAndGradients});
  }
  if (embedding_->grad.present()) {
    training_units_.push_back({0, UnitUse::kGradients});
  }
}

absl::Status BlockModel::CheckExpertParallel(const ModelSpec& spec,
                                             const ModelOptions& options) {
  if (!options.expert_parallel) return absl::OkStatus();
  const PlacementShape& shape = options.expert_parallel->placement.shape;
  int64_t layers = 0;
  for (const BlockSpec& block : spec.blocks) {
    const auto* moe = std::get_if<MoeSpec>(&block.ffn);
    if (moe == nullptr) continue;
    ++layers;
    if (moe->num_experts != shape.num_experts) {
      return absl::InvalidArgumentError(
          absl::StrCat("a layer of the model has ", moe->num_experts,
                       " experts, their placement is for ", shape.num_experts));
    }
  }
  if (layers == shape.num_layers) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the model has ", layers, " MoE layers, the placement of ",
                   "its experts ", shape.num_layers));
}

absl::Status BlockModel::Connect(const ModelGroups& groups) {
  const int size =
      options_.expert_parallel ? options_.expert_parallel->size() : 1;
  const Communicator* const ep = groups.expert_dispatch;
  if ((ep == nullptr) != (size == 1) ||
      (ep != nullptr &&
       (ep->size() != size || ep->rank() != options_.expert_parallel->rank))) {
    return absl::InternalError(
        absl::StrCat("the model's experts lie on ", size,
                     " ranks, the communicator of their dispatch has ",
                     ep == nullptr ? 1 : ep->size(), " and is rank ",
                     ep == nullptr ? 0 : ep->rank()));
  }
  if ((groups.units == nullptr) != forward_units_.empty()) {
    return absl::InternalError(absl::StrCat(
        "the dense parameters of the model are in ",
        options_.dense_sharding.num_shards, " shards and units are ",
        groups.units == nullptr ? "not brought" : "brought"));
  }
  groups_ = groups;
  if (options_.expert_parallel) {
    runtime_ = std::make_unique<ExpertRuntime>(
        *options_.expert_parallel, groups.expert_dispatch,
        options_.dispatch_chunks, options_.overlap_dispatch);
    CADRE_ASSIGN_OR_RETURN(runtime_->side, SideStream::Create(options_.exec));
    if (runtime_->side != nullptr && groups.expert_dispatch != nullptr) {
      groups.expert_dispatch->OrderBehind(runtime_->side->stream());
    }
  }
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

// The statistics of auxiliary losses over all ranks; sums of probabilities and
// of z-losses stay this rank's, so that the losses of the ranks add up.
absl::Status BlockModel::SumRouterStatistics(double aux_weight) {
  const bool aux = routers_.aux.counts.present();
  if (!aux && !routers_.z_sum.present()) return absl::OkStatus();
  const Exec& exec = options_.exec;
  std::vector<int64_t> sums(num_experts_ + 2, 0);  // counts, rows, tokens
  if (aux && groups_.world != nullptr) {
    CADRE_RETURN_IF_ERROR(CopyToHost(exec, routers_.aux.counts, sums.data()));
    CADRE_RETURN_IF_ERROR(
        CopyToHost(exec, routers_.aux.num_rows, &sums[num_experts_]));
  }
  sums.back() = num_real_tokens_;
  if (groups_.world != nullptr) {
    CADRE_RETURN_IF_ERROR(groups_.world->AllReduceSum(absl::MakeSpan(sums)));
  }
  inv_tokens_ = sums.back() > 0 ? 1.0 / static_cast<double>(sums.back()) : 0.0;
  routers_.z_coefficient = options_.moe.z_loss_coef * aux_weight * inv_tokens_;
  if (!aux || groups_.world == nullptr) return absl::OkStatus();
  CADRE_RETURN_IF_ERROR(CopyToDevice(exec, sums.data(), routers_.aux.counts));
  return CopyToDevice(exec, &sums[num_experts_], routers_.aux.num_rows);
}

absl::Status BlockModel::Reserve(int64_t bytes, absl::string_view what,
                                 PinnedBuffer* buffer) {
  if (buffer->num_bytes() >= bytes) return absl::OkStatus();
  *buffer = PinnedBuffer();
  CADRE_ASSIGN_OR_RETURN(*buffer,
                         PinnedBuffer::Create(options_.exec, 2 * bytes, what));
  return absl::OkStatus();
}

absl::Status BlockModel::PlaceInputs(const Batch& batch) {
  positions_ = Positions(batch);
  mask_.assign(batch.ids.size(), 1);
  std::fill(mask_.begin() + batch.num_real_tokens(), mask_.end(), 0);
  const std::pair<const std::vector<int32_t>*, Tensor*> tables[] = {
      {&batch.ids, &ids_},
      {&batch.targets, &targets_},
      {&batch.cu_seqlens, &cu_seqlens_},
      {&positions_, &positions_view_},
      {&mask_, &mask_view_}};
  if (options_.exec.backend == Backend::kCpu) {
    for (const auto& [table, view] : tables) *view = HostView(*table);
    return absl::OkStatus();
  }
  // One copy; the last pass has read the staging memory, its results are here.
  const auto padded = [](const std::vector<int32_t>& v) {
    return (static_cast<int64_t>(v.size()) + 63) / 64 * 64;
  };
  int64_t elements = 0;
  for (const auto& [table, view] : tables) elements += padded(*table);
  CADRE_RETURN_IF_ERROR(
      Reserve(elements * SizeOf(DType::kI32), "inputs of a pass", &inputs_));
  const Tensor all = kept_.Allocate(DType::kI32, {elements});
  CADRE_RETURN_IF_ERROR(kept_.status());
  int64_t at = 0;
  for (const auto& [table, view] : tables) {
    const auto size = static_cast<int64_t>(table->size());
    std::memcpy(inputs_.data() + at * SizeOf(DType::kI32), table->data(),
                size * SizeOf(DType::kI32));
    *view = all.Rows(at, at + size);
    at += padded(*table);
  }
  return CopyToDeviceAsync(options_.exec, inputs_.data(), all);
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
  if (groups_.units != nullptr) {
    CADRE_RETURN_IF_ERROR(
        groups_.units->BeginPass(training ? training_units_ : forward_units_));
  } else if (!forward_units_.empty()) {
    return absl::FailedPreconditionError(
        "the model's dense parameters are in shards and it is not connected "
        "to the other ranks");
  }
  kept_.Reset();
  saved_.Reset();
  scratch_.Reset();
  const int64_t T = batch.num_tokens();
  if (training) ReserveArenas(T);
  phases_.Restart();
  if (options_.selections != nullptr) options_.selections->BeginPass();
  CADRE_RETURN_IF_ERROR(PlaceInputs(batch));
  totals_ = kept_.AllocateZero(DType::kF64, {3});
  routers_ = {};
  num_real_tokens_ = batch.num_real_tokens();
  if (options_.moe.z_loss_coef > 0 && num_experts_ > 0) {
    routers_.z_sum = totals_.Rows(2, 3);
  }
  if (options_.moe.overflow != OverflowPolicy::kDropless && T > 0 &&
      num_experts_ > 0) {
    routers_.overflow = options_.moe.overflow;
    CADRE_ASSIGN_OR_RETURN(
        routers_.capacity,
        ExpertCapacity({.tokens = T,
                        .top_k = top_k_,
                        .num_experts = num_experts_,
                        .capacity_factor = options_.moe.capacity_factor}));
  }
  if (aux_coef_ > 0) {
    routers_.aux = {.counts = kept_.AllocateZero(DType::kI64, {num_experts_}),
                    .prob_sum = kept_.AllocateZero(DType::kF64, {num_experts_}),
                    .num_rows = kept_.AllocateZero(DType::kI64, {1})};
  }
  return LayerContext{
      .exec = options_.exec,
      .dtype = options_.dtype,
      .param_dtype = ParamDType(options_.exec, options_.dtype),
      .num_tokens = T,
      .cu_seqlens = cu_seqlens_,
      .positions = positions_view_,
      .mask = batch.num_real_tokens() < T ? mask_view_ : Tensor(),
      .kept = &kept_,
      .saved = &saved_,
      .scratch = &scratch_,
      .training = training,
      .dropout_seed = MixSeed(options_.dropout_seed, dropout_step),
      .routers = &routers_,
      .experts = runtime_.get(),
      .phases = &phases_,
      .selections = options_.selections};
}

absl::Status BlockModel::Embed(const LayerContext& ctx, const Tensor& state) {
  ArenaScope scope(ctx.scratch);
  const Tensor x =
      ends_.Flat() ? state : ctx.Scratch({ctx.num_tokens, spec_.hidden_size});
  CADRE_RETURN_IF_ERROR(EmbeddingForward(
      ctx.exec, {.ids = ids_, .table = embedding_->value, .y = x}));
  return ends_.Begin(ctx, x, state);
}

absl::Status BlockModel::RunBlocks(LayerContext* ctx,
                                   const ForwardCapture& capture) {
  streams_.assign(blocks_.size() + 1, {});
  streams_[0].state = NewState(&kept_, *ctx);
  CADRE_RETURN_IF_ERROR(AcquireUnit());
  CADRE_RETURN_IF_ERROR(Embed(*ctx, streams_[0].state));
  CADRE_RETURN_IF_ERROR(ReleaseUnit());
  for (size_t i = 0; i < blocks_.size(); ++i) {
    if (capture.hidden != nullptr) {
      CADRE_ASSIGN_OR_RETURN(std::vector<float> state,
                             ReadFloats(ctx->exec, streams_[i].state));
      capture.hidden->push_back(std::move(state));
    }
    streams_[i + 1].state = NewState(&kept_, *ctx);
    const Arena::Mark mark = saved_.mark();
    CADRE_RETURN_IF_ERROR(AcquireUnit());
    CADRE_RETURN_IF_ERROR(
        Annotate(blocks_[i]->Forward(*ctx, streams_[i], &streams_[i + 1]),
                 absl::StrCat("layer ", i)));
    CADRE_RETURN_IF_ERROR(ReleaseUnit());
    if (!ctx->training || options_.activation_checkpointing) {
      saved_.Release(mark);
    }
  }
  // The head's, until the loss (and its backward pass) is done.
  CADRE_RETURN_IF_ERROR(AcquireUnit());
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
  args.targets = targets_;
  args.workspace = ctx.Scratch({rows, spec_.vocab_size});
  args.loss_sum = totals_.Rows(0, 1);
  return LinearCrossEntropy(ctx.exec, args);
}

absl::StatusOr<ForwardResult> BlockModel::Result(const LayerContext& ctx) {
  if (routers_.aux.counts.present()) {
    CADRE_RETURN_IF_ERROR(
        RouterAuxLoss(ctx.exec, routers_.aux, totals_.Rows(1, 2)));
  }
  // All in one go: the pass's only wait for the device.
  std::vector<Tensor> parts = {totals_};
  parts.insert(parts.end(), routers_.expert_tokens.begin(),
               routers_.expert_tokens.end());
  parts.insert(parts.end(), routers_.overflow_counts.begin(),
               routers_.overflow_counts.end());
  for (const auto& batch : routers_.expert_batches) {
    parts.push_back(batch.offsets);
  }
  int64_t bytes = 0;
  for (const Tensor& part : parts) bytes += part.num_bytes();
  CADRE_RETURN_IF_ERROR(Reserve(bytes, "results of a pass", &results_));
  char* at = results_.data();
  for (const Tensor& part : parts) {
    CADRE_RETURN_IF_ERROR(CopyToHostAsync(ctx.exec, part, at));
    at += part.num_bytes();
  }
  // Ends the last phase.
  phases_.Enter(Phase::kLoss);
  CADRE_RETURN_IF_ERROR(Synchronize(ctx.exec));
  ForwardResult result;
  result.phases = phases_.Seconds();
  std::memcpy(&result.loss_sum, results_.data(), sizeof(double));
  std::memcpy(&result.aux_loss, results_.data() + sizeof(double),
              sizeof(double));
  std::memcpy(&result.z_loss, results_.data() + 2 * sizeof(double),
              sizeof(double));
  result.z_loss *= inv_tokens_;
  at = results_.data() + totals_.num_bytes();
  const auto read = [&at](const Tensor& part, auto number) {
    std::vector<decltype(number)> numbers(part.num_elements());
    std::memcpy(numbers.data(), at, part.num_bytes());
    at += part.num_bytes();
    return numbers;
  };
  const auto take = [&read](const Tensor& part) {
    return read(part, int64_t{});
  };
  for (const Tensor& part : routers_.expert_tokens) {
    result.expert_tokens.push_back(take(part));
    MoeLayerCounts& counts = result.moe_counts.emplace_back();
    counts.capacity = routers_.capacity;
    for (int64_t n : result.expert_tokens.back()) counts.routed += n;
  }
  for (size_t layer = 0; layer < routers_.overflow_counts.size(); ++layer) {
    const auto counts = take(routers_.overflow_counts[layer]);
    result.moe_counts[layer].dropped = counts[kDroppedPairs];
    std::copy_n(counts.begin() + kRemappedPairs, kRemapRounds,
                result.moe_counts[layer].remapped.begin());
  }
  const int64_t tile = GroupedGemmTileRows(ctx.exec, ctx.dtype);
  for (const auto& [layer, offsets] : routers_.expert_batches) {
    const std::vector<int32_t> begins = read(offsets, int32_t{});
    int64_t& padding = result.moe_counts[layer].padding_rows;
    for (size_t e = 1; e < begins.size(); ++e) {
      const int64_t rows = begins[e] - begins[e - 1];
      padding += (rows + tile - 1) / tile * tile - rows;
    }
  }
  if (runtime_ != nullptr) {
    result.traffic = std::exchange(runtime_->traffic, {});
    result.traffic.exposed_seconds = runtime_->queue.TakeExposedSeconds();
    const auto busy = runtime_->queue.TakeBusySeconds();
    result.traffic.dispatch_seconds =
        busy[static_cast<size_t>(ExchangeKind::kDispatch)];
    result.traffic.combine_seconds =
        busy[static_cast<size_t>(ExchangeKind::kCombine)];
  }
  if (ctx.training) ExpectMemory(ctx.num_tokens, result);
  return result;
}

PassRequest BlockModel::RequestFor(int64_t tokens) const {
  PassRequest request{
      .model = &spec_,
      .lora = lora(),
      .tokens = tokens,
      .element_bytes = SizeOf(options_.dtype),
      .replays_blocks = options_.activation_checkpointing,
      .has_capacity = options_.moe.overflow != OverflowPolicy::kDropless};
  if (runtime_ != nullptr) {
    const PlacementShape& shape = runtime_->experts.placement.shape;
    request.dispatch = {
        .ranks = runtime_->experts.size(),
        .slots_per_rank = runtime_->experts.slots_per_rank(),
        .has_copies =
            runtime_->experts.size() * shape.slots_per_rank > shape.num_experts,
        .chunks = runtime_->chunks};
  }
  return request;
}

// The arenas of a training pass in one piece each, so that none grows in a
// later step unless a rank is sent more rows than were planned for.
void BlockModel::ReserveArenas(int64_t tokens) {
  tokens = std::max(tokens, options_.pass_tokens);
  if (options_.exec.backend != Backend::kCpu || tokens <= reserved_tokens_) {
    return;
  }
  reserved_tokens_ = tokens;
  PassRequest request = RequestFor(tokens);
  request.rows =
      PlannedRows(tokens, top_k_, request.dispatch.ranks, kUnmeasuredImbalance);
  const PassMemory memory = MeasurePass(request);
  // The plan may be a little low.
  const auto reserve = [](int64_t bytes, Arena* arena) {
    arena->Reserve(bytes + bytes / 32 + kArenaSlack);
  };
  reserve(memory.kept, &kept_);
  reserve(memory.saved, &saved_);
  reserve(memory.temporary, &scratch_);
}

void BlockModel::ExpectMemory(int64_t tokens, const ForwardResult& result) {
  // A GPU's kernels ask for workspaces that the plan does not follow.
  if (options_.exec.backend != Backend::kCpu) return;
  std::vector<ExpertRows> rows;
  for (size_t layer = 0; layer < result.moe_counts.size(); ++layer) {
    const MoeLayerCounts& counts = result.moe_counts[layer];
    rows.push_back({.pairs = counts.routed - counts.dropped});
    if (layer < result.traffic.computed_pairs.size()) {
      rows.back() = {.pairs = result.traffic.computed_pairs[layer],
                     .sent = result.traffic.sent_rows[layer],
                     .received = result.traffic.received_rows[layer]};
    }
  }
  const bool longer = tokens > most_tokens_;
  most_tokens_ = std::max(tokens, most_tokens_);
  if (!seen_rows_.Add(rows) && !longer) return;
  expected_bytes_ = seen_rows_.Measure(RequestFor(most_tokens_)).total();
}

absl::Status BlockModel::Explain(const absl::Status& status) {
  for (Arena* arena : {&kept_, &saved_, &scratch_}) {
    const absl::Status memory = arena->TakeStatus();
    if (!memory.ok()) return memory;
  }
  return status;
}

absl::StatusOr<ForwardResult> BlockModel::Forward(
    const Batch& batch, const ForwardCapture& capture) {
  absl::StatusOr<ForwardResult> result = RunForward(batch, capture);
  CADRE_RETURN_IF_ERROR(Explain(result.status()));
  return result;
}

absl::StatusOr<ForwardResult> BlockModel::ForwardBackward(
    const Batch& batch, const LossScale& scale) {
  absl::StatusOr<ForwardResult> result = RunForwardBackward(batch, scale);
  CADRE_RETURN_IF_ERROR(Explain(result.status()));
  return result;
}

absl::StatusOr<ForwardResult> BlockModel::RunForward(
    const Batch& batch, const ForwardCapture& capture) {
  CADRE_ASSIGN_OR_RETURN(LayerContext ctx,
                         BeginPass(batch, /*training=*/false, 0));
  routers_.logits = capture.router_logits;
  CADRE_RETURN_IF_ERROR(RunBlocks(&ctx, capture));
  CADRE_RETURN_IF_ERROR(SumRouterStatistics(/*aux_weight=*/1.0));
  LinearCrossEntropyArgs args;
  if (capture.logits != nullptr) {
    args.logits = ctx.Saved({ctx.num_tokens, spec_.vocab_size});
  }
  CADRE_RETURN_IF_ERROR(Loss(ctx, final_out_, args));
  CADRE_RETURN_IF_ERROR(ReleaseUnit());
  if (capture.logits != nullptr) {
    CADRE_ASSIGN_OR_RETURN(*capture.logits, ReadFloats(ctx.exec, args.logits));
  }
  return Result(ctx);
}

absl::StatusOr<ForwardResult> BlockModel::RunForwardBackward(
    const Batch& batch, const LossScale& scale) {
  CADRE_ASSIGN_OR_RETURN(LayerContext ctx, BeginPass(batch, /*training=*/true,
                                                     scale.dropout_step));
  routers_.aux_coefficient = aux_coef_ * scale.aux_weight;
  CADRE_RETURN_IF_ERROR(RunBlocks(&ctx, {}));
  CADRE_RETURN_IF_ERROR(SumRouterStatistics(scale.aux_weight));
  // Gradients of the stream live below all else in scratch.
  const Tensor dx = ctx.Scratch({ctx.num_tokens, spec_.hidden_size});
  CADRE_RETURN_IF_ERROR(Loss(
      ctx, final_out_,
      {.inv_count = scale.inv_num_targets, .dx = dx, .dhead = head_->grad}));
  CADRE_RETURN_IF_ERROR(final_norm_.Backward(ctx, final_in_, dx, dx));
  CADRE_ASSIGN_OR_RETURN(Stream grad,
                         ends_.EndBackward(ctx, streams_.back(), dx));
  CADRE_RETURN_IF_ERROR(ReleaseUnit());
  CADRE_RETURN_IF_ERROR(BackwardBlocks(&ctx, &grad));
  CADRE_RETURN_IF_ERROR(BackwardEmbedding(ctx, grad, dx));
  return Result(ctx);
}

absl::Status BlockModel::BackwardEmbedding(const LayerContext& ctx,
                                           const Stream& grad,
                                           const Tensor& dx) {
  if (!embedding_->grad.present()) return absl::OkStatus();
  CADRE_RETURN_IF_ERROR(AcquireUnit());
  const Tensor d_embedded = ends_.Flat() ? grad.state : dx;
  CADRE_RETURN_IF_ERROR(ends_.BeginBackward(ctx, grad.state, d_embedded));
  CADRE_RETURN_IF_ERROR(
      EmbeddingBackward(ctx.exec, {.ids = ids_,
                                   .dy = d_embedded,
                                   .dtable = embedding_->grad,
                                   .pad_id = spec_.pad_token_id}));
  return ReleaseUnit();
}

absl::Status BlockModel::BackwardBlocks(LayerContext* ctx, Stream* grad) {
  for (size_t i = blocks_.size(); i-- > 0;) {
    const Arena::Mark mark = saved_.mark();
    CADRE_RETURN_IF_ERROR(AcquireUnit());
    if (options_.activation_checkpointing) {
      ctx->replay = true;
      Stream again{.state = NewState(&saved_, *ctx)};
      CADRE_RETURN_IF_ERROR(blocks_[i]->Forward(*ctx, streams_[i], &again));
    }
    CADRE_RETURN_IF_ERROR(Annotate(blocks_[i]->Backward(*ctx, grad),
                                   absl::StrCat("layer ", i, " backward")));
    CADRE_RETURN_IF_ERROR(ReleaseUnit());
    saved_.Release(mark);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Model>> Model::Create(const ModelSpec& spec,
                                                     ModelOptions options) {
  CADRE_RETURN_IF_ERROR(BlockModel::CheckExpertParallel(spec, options));
  auto model = std::make_unique<BlockModel>(spec, std::move(options));
  CADRE_RETURN_IF_ERROR(model->Init());
  return model;
}

}  // namespace cadre
