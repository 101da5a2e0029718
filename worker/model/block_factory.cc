#include "worker/model/block_factory.h"

#include <variant>

#include "base/status_macros.h"
#include "model/tensor_names.h"
#include "worker/model/dense_mlp.h"
#include "worker/model/gdn_mixer.h"
#include "worker/model/gqa_mixer.h"
#include "worker/model/kda_mixer.h"
#include "worker/model/mla_mixer.h"
#include "worker/model/moe_layer.h"

namespace cadre {
namespace {

class Factory {
 public:
  Factory(const ModelSpec& spec, ParameterRegistry* registry,
          const LoraPlan* lora)
      : spec_(spec), registry_(registry), lora_(lora) {}

  absl::StatusOr<std::unique_ptr<Block>> Make(int layer) {
    const LayerBuilder builder(registry_, lora_, LayerPrefix(spec_, layer));
    BlockParts parts;
    CADRE_ASSIGN_OR_RETURN(parts.mixer,
                           Mixer(spec_.blocks[layer].mixer, builder));
    CADRE_ASSIGN_OR_RETURN(parts.ffn, Ffn(spec_.blocks[layer].ffn, builder));
    CADRE_ASSIGN_OR_RETURN(Parameter * mixer_norm,
                           builder.Param("input_layernorm.weight"));
    CADRE_ASSIGN_OR_RETURN(Parameter * ffn_norm,
                           builder.Param("post_attention_layernorm.weight"));
    parts.mixer_norm =
        Norm(mixer_norm, spec_.norm_eps, spec_.norm_one_plus_weight);
    parts.ffn_norm = Norm(ffn_norm, spec_.norm_eps, spec_.norm_one_plus_weight);
    if (std::holds_alternative<PlainResidual>(spec_.residual)) {
      return MakePlainBlock(std::move(parts));
    }
    if (const auto* hyper = std::get_if<HyperConnections>(&spec_.residual)) {
      return MakeHyperBlock(std::move(parts), *hyper, spec_.norm_eps, builder);
    }
    const auto& residual = std::get<AttentionResiduals>(spec_.residual);
    return MakeAttentionResidualBlock(std::move(parts),
                                      layer % residual.block_size == 0,
                                      spec_.norm_eps, builder);
  }

 private:
  absl::StatusOr<std::unique_ptr<Layer>> Mixer(const MixerSpec& mixer,
                                               const LayerBuilder& builder) {
    if (const auto* kda = std::get_if<KdaSpec>(&mixer)) {
      return KdaMixer::Create(*kda, spec_.norm_eps, builder);
    }
    if (const auto* mla = std::get_if<MlaSpec>(&mixer)) {
      CADRE_ASSIGN_OR_RETURN(std::unique_ptr<MlaMixer> layer,
                             MlaMixer::Create(*mla, builder, last_indexer_));
      if (mla->indexer && mla->indexer->kind == IndexerSpec::Kind::kFull) {
        last_indexer_ = layer->indexer();
      }
      return layer;
    }
    if (const auto* gqa = std::get_if<GqaSpec>(&mixer)) {
      return GqaMixer::Create(*gqa, spec_.norm_eps, spec_.norm_one_plus_weight,
                              builder);
    }
    return GdnMixer::Create(std::get<GdnSpec>(mixer), spec_.norm_eps, builder);
  }

  absl::StatusOr<std::unique_ptr<Layer>> Ffn(const FfnSpec& ffn,
                                             const LayerBuilder& builder) {
    if (const auto* dense = std::get_if<DenseMlpSpec>(&ffn)) {
      return DenseMlp::Create(dense->activation, "mlp", builder);
    }
    return MoeLayer::Create(std::get<MoeSpec>(ffn), num_moe_layers_++,
                            spec_.norm_eps, builder);
  }

  const ModelSpec& spec_;
  ParameterRegistry* registry_;
  const LoraPlan* lora_;
  int num_moe_layers_ = 0;                 // made so far
  const Indexer* last_indexer_ = nullptr;  // of the nearest full sparse layer
};

}  // namespace

absl::StatusOr<std::vector<std::unique_ptr<Block>>> MakeBlocks(
    const ModelSpec& spec, ParameterRegistry* registry, const LoraPlan* lora) {
  Factory factory(spec, registry, lora);
  std::vector<std::unique_ptr<Block>> blocks;
  for (size_t i = 0; i < spec.blocks.size(); ++i) {
    CADRE_ASSIGN_OR_RETURN(std::unique_ptr<Block> block,
                           factory.Make(static_cast<int>(i)));
    blocks.push_back(std::move(block));
  }
  return blocks;
}

}  // namespace cadre
