#include "model/model_spec.h"

#include <cmath>
#include <random>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "model/inspect.h"
#include "model/tensor_names.h"
#include "model/testing.h"

namespace cadre {
namespace {

using ::cadre::testing::GoldenModels;
using ::cadre::testing::GoldenPath;
using ::cadre::testing::ReadFileOrDie;
using ::cadre::testing::Replaced;
using ::cadre::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string Config(const std::string& arch) {
  return ReadFileOrDie(GoldenPath(arch, "model/config.json"));
}

// The fixture's config with fields added in front of its (text) fields.
std::string With(const std::string& arch, const std::string& fields) {
  return arch == "glm5_next" ? Replaced(Config(arch), "\"text_config\": {",
                                        "\"text_config\": {" + fields + ",")
                             : Replaced(Config(arch), "{", "{" + fields + ",");
}

void ExpectRefused(const std::string& config, const std::string& message) {
  EXPECT_THAT(ParseModelSpec(config).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
}

// Kinds of the layers: "kda moe", one letter each.
std::string Mixers(const ModelSpec& spec) {
  std::string out;
  for (const BlockSpec& block : spec.blocks) {
    absl::StrAppend(&out, out.empty() ? "" : " ", MixerKindName(block.mixer));
  }
  return out;
}
std::string Ffns(const ModelSpec& spec) {
  std::string out;
  for (const BlockSpec& block : spec.blocks) {
    out += std::holds_alternative<MoeSpec>(block.ffn) ? 'M' : 'D';
  }
  return out;
}
std::string Indexers(const ModelSpec& spec) {
  std::string out;
  for (const BlockSpec& block : spec.blocks) {
    const auto& mla = std::get<MlaSpec>(block.mixer);
    out += mla.indexer->kind == IndexerSpec::Kind::kFull ? 'F' : 'S';
  }
  return out;
}

TEST(ParseModelSpec, ReadsEveryFixtureWithoutWarnings) {
  for (const std::string& arch : GoldenModels()) {
    SCOPED_TRACE(arch);
    ASSERT_OK_AND_ASSIGN(const ModelSpec spec, ParseModelSpec(Config(arch)));
    EXPECT_THAT(spec.warnings, IsEmpty());
    EXPECT_EQ(spec.pad_token_id, 0);
    EXPECT_FALSE(spec.tie_word_embeddings);
    EXPECT_EQ(spec.norm_eps, 1e-5);
    EXPECT_EQ(spec.tensor_prefix,
              arch == "glm5_next" ? "model.language_model." : "model.");
  }
}

TEST(ParseModelSpec, ReadsLayerKinds) {
  ASSERT_OK_AND_ASSIGN(const ModelSpec kimi,
                       ParseModelSpec(Config("kimi_linear")));
  EXPECT_EQ(Mixers(kimi), "kda kda kda mla");
  EXPECT_EQ(Ffns(kimi), "DMMM");
  const auto& kda = std::get<KdaSpec>(kimi.blocks[0].mixer);
  EXPECT_FALSE(kda.gate_lower_bound.has_value());
  const auto& mla = std::get<MlaSpec>(kimi.blocks[3].mixer);
  EXPECT_FALSE(mla.rope.has_value());
  EXPECT_EQ(mla.latent_norm_eps, 1e-6);
  const auto& moe = std::get<MoeSpec>(kimi.blocks[1].ffn);
  EXPECT_EQ(moe.router.scaling, 2.5);
  EXPECT_EQ(moe.router.renormalize_eps, 1e-20);
  EXPECT_EQ(moe.shared_width, 20);

  ASSERT_OK_AND_ASSIGN(const ModelSpec glm,
                       ParseModelSpec(Config("glm5_next")));
  EXPECT_EQ(Mixers(glm), "kda kda kda dsa");
  const auto& dsa = std::get<MlaSpec>(glm.blocks[3].mixer);
  EXPECT_EQ(dsa.latent_norm_eps, 1e-5);
  EXPECT_EQ(dsa.indexer->kpool, 4);
  EXPECT_FALSE(dsa.indexer->rope.has_value());
  EXPECT_EQ(std::get<KdaSpec>(glm.blocks[0].mixer).gate_lower_bound, -5.0);
  EXPECT_EQ(std::get<HyperConnections>(glm.residual).multiplicity, 3);
  EXPECT_EQ(std::get<DenseMlpSpec>(glm.blocks[0].ffn).activation.limit, 1.5);

  // mlp_layer_types wins over first_k_dense_replace 3.
  ASSERT_OK_AND_ASSIGN(const ModelSpec dsa_spec,
                       ParseModelSpec(Config("glm_moe_dsa")));
  EXPECT_EQ(Ffns(dsa_spec), "DMM");
  EXPECT_EQ(Indexers(dsa_spec), "FSF");
  EXPECT_TRUE(
      std::get<MlaSpec>(dsa_spec.blocks[0].mixer).indexer->rope->interleaved);
  ASSERT_OK_AND_ASSIGN(const ModelSpec v32,
                       ParseModelSpec(Config("deepseek_v32")));
  EXPECT_FALSE(
      std::get<MlaSpec>(v32.blocks[0].mixer).indexer->rope->interleaved);
  EXPECT_TRUE(std::get<MlaSpec>(v32.blocks[0].mixer).rope->interleaved);

  ASSERT_OK_AND_ASSIGN(const ModelSpec next,
                       ParseModelSpec(Config("qwen3_next")));
  EXPECT_EQ(Mixers(next), "gdn gdn gdn gqa");
  EXPECT_TRUE(next.norm_one_plus_weight);
  EXPECT_EQ(std::get<GqaSpec>(next.blocks[3].mixer).rope.dim, 8);
  const auto& softmax = std::get<MoeSpec>(next.blocks[0].ffn);
  EXPECT_EQ(softmax.router.score, RouterSpec::Score::kSoftmax);
  EXPECT_EQ(softmax.router.aux_loss_coef, 0.01);
  EXPECT_TRUE(softmax.shared_gate);
}

TEST(ParseModelSpec, ResolvesYarn) {
  ASSERT_OK_AND_ASSIGN(const ModelSpec spec,
                       ParseModelSpec(Config("deepseek_v3")));
  const auto& mla = std::get<MlaSpec>(spec.blocks[0].mixer);
  ASSERT_TRUE(mla.rope.has_value());
  EXPECT_EQ(mla.rope->type, RopeSpec::Type::kYarn);
  EXPECT_EQ(mla.rope->yarn_factor, 4.0);
  EXPECT_EQ(mla.rope->yarn_original_max_positions, 64.0);
  EXPECT_NEAR(mla.rope->attention_factor, 1.0379100, 1e-7);
  EXPECT_NEAR(mla.softmax_scale, 0.2456630, 1e-7);

  // The older form, DeepSeek's published numbers.
  const std::string old = R"({"model_type": "deepseek_v3",
      "max_position_embeddings": 163840, "rope_theta": 10000, "rope_scaling":
      {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096,
       "beta_fast": 32, "beta_slow": 1, "mscale": 1, "mscale_all_dim": 1}})";
  ASSERT_OK_AND_ASSIGN(const ModelSpec v3, ParseModelSpec(old));
  const auto& big = std::get<MlaSpec>(v3.blocks[0].mixer);
  EXPECT_EQ(big.rope->attention_factor, 1.0);
  EXPECT_NEAR(big.softmax_scale, 0.1352338, 1e-7);
  ASSERT_OK_AND_ASSIGN(
      const ModelSpec null_factor,
      ParseModelSpec(Replaced(old, "\"factor\": 40", "\"factor\": null")));
  EXPECT_EQ(std::get<MlaSpec>(null_factor.blocks[0].mixer).rope->yarn_factor,
            40.0);
  ASSERT_OK_AND_ASSIGN(
      const ModelSpec given,
      ParseModelSpec(Replaced(old, "\"factor\": 40",
                              "\"factor\": 40, \"attention_factor\": 1.5, "
                              "\"truncate\": false")));
  const auto& rope = *std::get<MlaSpec>(given.blocks[0].mixer).rope;
  EXPECT_EQ(rope.attention_factor, 1.5);
  EXPECT_FALSE(rope.yarn_truncate);
  ExpectRefused(Replaced(old, "\"yarn\"", "\"longrope\""),
                "supported are default and yarn");
  ExpectRefused(Replaced(old, "\"rope_theta\": 10000",
                         "\"rope_theta\": 10000, \"rope_parameters\": "
                         "{\"rope_theta\": 50000}"),
                "rope_theta");
  ExpectRefused(Replaced(old, "\"rope_theta\": 10000",
                         "\"rope_parameters\": {\"rope_type\": \"yarn\", "
                         "\"factor\": 8}"),
                "factor is 40 here and 8 elsewhere");
}

TEST(ParseModelSpec, ReadsIndexTypesFromAllForms) {
  const std::string base = R"({"model_type": "glm_moe_dsa",
      "num_hidden_layers": 10)";
  const auto indexers = [&](const std::string& fields) {
    auto spec = ParseModelSpec(base + fields + "}");
    EXPECT_OK(spec);
    return Indexers(*spec);
  };
  EXPECT_EQ(indexers(""), "FFSSSFSSSF");
  EXPECT_EQ(indexers(", \"index_topk_freq\": 2"), "FFSFSFSFSF");
  EXPECT_EQ(indexers(", \"index_topk_pattern\": \"FSSFSSFSSF\""), "FSSFSSFSSF");
  EXPECT_EQ(indexers(", \"index_topk_pattern\": [\"F\",\"S\",\"S\",\"S\","
                     "\"S\",\"S\",\"S\",\"S\",\"S\",\"S\"]"),
            "FSSSSSSSSS");
  ExpectRefused(base + ", \"index_topk_pattern\": \"FSS\"}", "10 letters");
  ExpectRefused(base + ", \"index_topk_pattern\": \"SSSSSSSSSS\"}", "layer 0");
}

TEST(ParseModelSpec, ReadsTheOneIndexedListsOfKimi) {
  const std::string base = R"({"model_type": "kimi_linear",
      "num_hidden_layers": 5, "linear_attn_config": )";
  ASSERT_OK_AND_ASSIGN(const ModelSpec spec,
                       ParseModelSpec(base + R"({"full_attn_layers": [4, 5],
          "kda_layers": [1, 2, 3], "num_heads": 3, "head_dim": 8,
          "short_conv_kernel_size": 4}})"));
  EXPECT_EQ(Mixers(spec), "kda kda kda mla mla");
  EXPECT_EQ(std::get<KdaSpec>(spec.blocks[0].mixer).num_heads, 3);
  ExpectRefused(base + R"({"full_attn_layers": [4], "kda_layers": [1, 2]}})",
                "leave out layer 3");
  ExpectRefused(
      base + R"({"full_attn_layers": [0], "kda_layers": [1, 2, 3, 4]}})",
      "names layer 0");
  ExpectRefused(base + R"({"gate_lower_bound": -5}})", "unbounded");
  ASSERT_OK_AND_ASSIGN(const ModelSpec bare,
                       ParseModelSpec(R"({"model_type": "kimi_linear",
                         "num_hidden_layers": 9})"));
  EXPECT_EQ(Mixers(bare), "kda kda kda kda mla kda kda kda mla");
  EXPECT_THAT(bare.warnings, ElementsAre(HasSubstr("no published model")));
}

TEST(ParseModelSpec, GlmGateBoundFollowsItsTwoForms) {
  const auto bound = [](const std::string& fields) {
    auto spec =
        ParseModelSpec(R"({"model_type": "glm5_next_text")" + fields + "}");
    EXPECT_OK(spec);
    EXPECT_EQ(spec->tensor_prefix, "model.");
    return std::get<KdaSpec>(spec->blocks[0].mixer).gate_lower_bound;
  };
  EXPECT_EQ(bound(""), -5.0);
  EXPECT_EQ(bound(", \"linear_lower_bound\": -3"), -3.0);
  EXPECT_EQ(bound(", \"linear_lower_bound\": null"), std::nullopt);
  EXPECT_EQ(bound(", \"linear_attn_config\": {\"gate_lower_bound\": -2}"),
            -2.0);
  EXPECT_EQ(bound(", \"linear_attn_config\": {\"gate_lower_bound\": null}"),
            -5.0);
  EXPECT_EQ(bound(", \"linear_attn_config\": {\"gate_lower_bound\": null, "
                  "\"safe_gate\": false}"),
            std::nullopt);
}

TEST(ParseModelSpec, ReadsNestedQwen35) {
  const std::string flat = Config("qwen3_5_moe");
  ASSERT_OK_AND_ASSIGN(
      const ModelSpec spec,
      ParseModelSpec(
          "{\"model_type\": \"qwen3_5_moe\", \"text_config\": " + flat + "}"));
  EXPECT_EQ(spec.tensor_prefix, "model.language_model.");
  EXPECT_EQ(Mixers(spec), "gdn gdn gdn gqa");
  EXPECT_EQ(LmHeadName(spec), "lm_head.weight");
}

TEST(ParseModelSpec, RefusesWhatWouldChangeTheMaths) {
  const auto refused = [](const std::string& arch, const std::string& field,
                          const std::string& value,
                          const std::string& message) {
    // A field that the fixture states is replaced, another one added.
    std::string config = Config(arch);
    const std::string key = "\"" + field + "\": ";
    const size_t at = config.find(key);
    if (at == std::string::npos) {
      config = With(arch, key + value);
    } else {
      const size_t end = config.find_first_of(",\n", at + key.size());
      config = config.substr(0, at) + key + value + config.substr(end);
    }
    SCOPED_TRACE(arch + " " + field);
    ExpectRefused(config, message);
  };
  for (const std::string& arch : GoldenModels()) {
    refused(arch, "attention_bias", "true", "attention_bias is true");
    refused(arch, "attention_dropout", "0.1", "attention_dropout is not 0");
    refused(arch, "hidden_act", "\"gelu\"", "hidden_act is \"gelu\"");
    refused(arch, "num_experts_per_tok", "17", "num_experts_per_tok");
    refused(arch, "hidden_size", "0", "hidden_size is 0");
    refused(arch, "hidden_size", "48.5", "hidden_size is 48.5");
    refused(arch, "pad_token_id", "160", "pad_token_id is 160");
    refused(arch, "final_logit_softcapping", "30.0", "softcapping");
  }
  refused("deepseek_v3", "topk_method", "\"greedy\"", "topk_method");
  refused("deepseek_v3", "scoring_func", "\"softmax\"", "scoring_func");
  refused("deepseek_v3", "num_experts", "8", "must agree");
  refused("deepseek_v3", "n_group", "3", "n_group is 3");
  refused("deepseek_v3", "moe_layer_freq", "2", "moe_layer_freq");
  refused("deepseek_v32", "q_lora_rank", "null", "q_lora_rank is null");
  refused("deepseek_v3", "quantization_config", "{\"quant_method\": \"gptq\"}",
          "quant_method is \"gptq\"");
  refused("deepseek_v3", "quantization_config",
          "{\"quant_method\": \"fp8\", \"weight_block_size\": [64]}",
          "weight_block_size");
  refused("kimi_linear", "moe_router_activation_func", "\"softmax\"",
          "moe_router_activation_func");
  refused("kimi_linear", "mla_use_output_gate", "true", "output gate");
  refused("glm5_next", "index_kpool", "5", "does not divide");
  refused("glm5_next", "index_kpool_always_select_tail", "false",
          "no key to attend to");
  refused("glm5_next", "qk_rope_head_dim", "8", "qk_rope_head_dim");
  refused("qwen3_moe", "use_sliding_window", "true", "sliding-window");
  refused("qwen3_moe", "partial_rotary_factor", "0.5", "whole heads");
  refused("qwen3_moe", "num_key_value_heads", "3", "does not divide");
  refused("qwen3_5_moe", "norm_topk_prob", "false", "norm_topk_prob");
  ExpectRefused(Replaced(Config("glm5_next"), "\"full\"\n", "\"shared\"\n"),
                "indexer_types");
  ExpectRefused(
      Replaced(Config("qwen3_next"), "\"full_attention\"", "\"mamba\""),
      "layer_types contains \"mamba\"");
}

TEST(ParseModelSpec, NamesSupportedTypes) {
  ExpectRefused("{\"model_type\": \"llama\"}",
                "supported are deepseek_v3, deepseek_v32, glm5_next");
  ExpectRefused("{}", "model_type is missing");
  ExpectRefused("[]", "not a JSON object");
  ExpectRefused("{", "not valid JSON");
  ExpectRefused("{\"model_type\": \"kimi_k3\"}", "text_config");
  for (const std::string& type : SupportedModelTypes()) {
    if (type == "kimi_k3") continue;
    EXPECT_OK(ParseModelSpec("{\"model_type\": \"" + type + "\"}")) << type;
  }
}

TEST(ParseModelSpec, WarnsAboutFieldsItDoesNotKnow) {
  ASSERT_OK_AND_ASSIGN(const ModelSpec spec,
                       ParseModelSpec(With("qwen3_moe", "\"magic\": 3")));
  EXPECT_THAT(spec.warnings, ElementsAre(HasSubstr("magic")));
}

TEST(ParseModelSpec, RandomBytesNeverCrash) {
  std::mt19937_64 random(5);
  for (const std::string& arch : GoldenModels()) {
    const std::string good = Config(arch);
    for (int round = 0; round < 300; ++round) {
      std::string text = good;
      for (int i = 0; i < 3; ++i) {
        text[random() % text.size()] =
            "0123456789-e.\"{}[],:ntf"[random() % 23];
      }
      if (auto spec = ParseModelSpec(text); spec.ok()) {
        LogicalTensors(*spec);
      }
      ParseModelSpec(good.substr(0, random() % good.size()))
          .status()
          .IgnoreError();
    }
  }
}

InspectReport Published(const std::string& file) {
  return InspectModel(absl::StrCat("examples/configs/", file, ".json"), {})
      .value();
}

// Within 1 % of what the publisher states, in billions, or within its rounding
// (`unit` is that of the last digit), whichever is wider. docs/model_sizes.md
// names the sources.
void ExpectPublished(int64_t ours, double published, double unit = 0) {
  EXPECT_NEAR(static_cast<double>(ours) / 1e9, published,
              std::max(published / 100, unit / 2));
}

TEST(CountParameters, AgreesWithDeepSeek) {
  const ParameterCounts v3 = Published("deepseek-v3").parameters;
  ExpectPublished(v3.total, 671);
  // "36.6B (including 0.9B for the output Head)".
  ExpectPublished(v3.active, 36.6);
  ExpectPublished(v3.head, 0.9, 0.1);
  // The indexers of 61 layers come on top.
  const ParameterCounts v32 = Published("deepseek-v3.2").parameters;
  const int64_t indexers =
      61 * (1536LL * 64 * 128 + 7168 * 128 + 2 * 128 + 7168 * 64);
  EXPECT_EQ(v32.total - v3.total, indexers);
  EXPECT_EQ(v32.active - v3.active, indexers);
  ExpectPublished(v32.total, 671);
  ExpectPublished(v32.active, 37, 1);
}

TEST(CountParameters, AgreesWithKimi) {
  const ParameterCounts k3 = Published("kimi-k3").parameters;
  ExpectPublished(k3.total, 2800);
  ExpectPublished(k3.active, 104);
  // 48B-A3B does not count the vocabulary.
  const ParameterCounts linear = Published("kimi-linear-48b-a3b").parameters;
  ExpectPublished(linear.total_in_layers(), 48);
  ExpectPublished(linear.active_in_layers(), 3, 1);
  ExpectPublished(linear.active, 3, 1);
}

TEST(CountParameters, AgreesWithQwen) {
  const ParameterCounts next = Published("qwen3-next-80b-a3b").parameters;
  ExpectPublished(next.total, 80);
  ExpectPublished(next.total_in_layers(), 79);
  ExpectPublished(next.active_in_layers(), 3, 1);
  const ParameterCounts qwen = Published("qwen3.5-35b-a3b").parameters;
  ExpectPublished(qwen.total, 35);
  ExpectPublished(qwen.active, 3, 1);
}

// "320B total, 18B active" holds with the multi-token-prediction layer, which
// Cadre does not train; for the active ones also with the embedding.
TEST(CountParameters, AgreesWithGlmOnceTheExtraLayerIsAdded) {
  const InspectReport glm = Published("glm-5-next");
  EXPECT_EQ(glm.published.mtp_layers, 1);
  ExpectPublished(glm.published.total, 320);
  ExpectPublished(glm.published.active, 18, 1);
}

// DeepSeek states 671B and 36.6B without that layer, and for it "11.5B unique
// parameters, excluding the shared 0.9B Embedding and 0.9B output Head".
TEST(CountParameters, CountsTheExtraLayerOfDeepSeek) {
  const InspectReport v3 = Published("deepseek-v3");
  EXPECT_EQ(v3.published.mtp_layers, 1);
  ExpectPublished(v3.published.total - v3.parameters.total, 11.5);
}

// Each pair of published numbers stands in what people read.
TEST(InspectText, PrintsWhatThePublisherStates) {
  const auto text = [](const std::string& file) {
    return RenderInspectText(Published(file));
  };
  EXPECT_THAT(text("deepseek-v3"),
              HasSubstr("671B total, 36.63B active per token"));
  EXPECT_THAT(text("glm-5-next"),
              AllOf(HasSubstr("313.3B total, 16.74B active per token"),
                    HasSubstr("with the MTP layer (not trained): 320.8B total, "
                              "17.76B active with the embedding")));
  EXPECT_THAT(text("kimi-k3"),
              HasSubstr("2.779T total, 104.2B active per token"));
  EXPECT_THAT(text("kimi-linear-48b-a3b"),
              HasSubstr("48.37B total, 2.729B active without embedding"));
  EXPECT_THAT(text("qwen3-next-80b-a3b"),
              HasSubstr("79.05B total, 3.253B active without embedding"));
  EXPECT_THAT(text("qwen3.5-35b-a3b"),
              HasSubstr("34.66B total, 2.946B active per token"));
}

}  // namespace
}  // namespace cadre
