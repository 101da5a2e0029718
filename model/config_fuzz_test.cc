// Whatever is done to a field of a config, it is never silently ignored: the
// model changes, the config is refused, or a warning names the field. The few
// fields without influence are listed here.

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_matchers.h"
#include "base/text/json.h"
#include "model/model_spec.h"
#include "model/testing.h"

namespace cadre {
namespace {

using ::cadre::testing::GoldenModels;
using ::cadre::testing::GoldenPath;
using ::cadre::testing::ReadFileOrDie;

// Every number of a spec, in text.
struct Description {
  void operator()(const KdaSpec& x) {
    Add("kda", x.num_heads, x.head_dim, x.conv_kernel,
        x.gate_lower_bound.value_or(0), x.full_rank_output_gate);
  }
  void operator()(const GdnSpec& x) {
    Add("gdn", x.num_key_heads, x.num_value_heads, x.key_head_dim,
        x.value_head_dim, x.conv_kernel, static_cast<int>(x.projections));
  }
  void operator()(const RopeSpec& x) {
    Add("rope", x.theta, x.dim, x.interleaved, static_cast<int>(x.type),
        x.yarn_factor, x.yarn_original_max_positions, x.yarn_beta_fast,
        x.yarn_beta_slow, x.yarn_truncate, x.attention_factor);
  }
  void operator()(const MlaSpec& x) {
    Add("mla", x.num_heads, x.q_lora_rank, x.kv_lora_rank, x.qk_nope_dim,
        x.qk_rope_dim, x.v_dim, x.latent_norm_eps, x.softmax_scale,
        x.output_gate);
    if (x.rope) (*this)(*x.rope);
    if (!x.indexer) return;
    Add("indexer", static_cast<int>(x.indexer->kind), x.indexer->num_heads,
        x.indexer->head_dim, x.indexer->topk, x.indexer->kpool);
    if (x.indexer->rope) (*this)(*x.indexer->rope);
  }
  void operator()(const GqaSpec& x) {
    Add("gqa", x.num_heads, x.num_kv_heads, x.head_dim, x.output_gate,
        x.softmax_scale);
    (*this)(x.rope);
  }
  void operator()(const ActivationSpec& x) {
    Add("act", static_cast<int>(x.kind), x.limit, x.beta, x.linear_beta);
  }
  void operator()(const DenseMlpSpec& x) {
    Add("dense", x.width);
    (*this)(x.activation);
  }
  void operator()(const MoeSpec& x) {
    const RouterSpec& r = x.router;
    Add("moe", x.num_experts, x.top_k, x.expert_width, x.shared_width,
        x.shared_gate, x.latent_dim, x.latent_norm, static_cast<int>(x.storage),
        static_cast<int>(r.score), r.correction_bias, r.num_groups,
        r.topk_groups, r.renormalize, r.renormalize_eps, r.scaling,
        r.aux_loss_coef);
    (*this)(x.activation);
  }
  void operator()(const PlainResidual&) { Add("plain"); }
  void operator()(const HyperConnections& x) {
    Add("hc", x.multiplicity, x.eps, x.sinkhorn_iters);
  }
  void operator()(const AttentionResiduals& x) { Add("ar", x.block_size); }

  template <typename... Values>
  void Add(const Values&... values) {
    absl::StrAppend(&text, absl::StrJoin(std::make_tuple(values...), " "),
                    "\n");
  }
  std::string text;
};

std::string Describe(const ModelSpec& spec) {
  Description out;
  out.Add(spec.model_type, spec.hidden_size, spec.vocab_size,
          spec.max_positions, spec.norm_eps, spec.norm_one_plus_weight,
          spec.tie_word_embeddings, spec.pad_token_id, spec.tensor_prefix,
          spec.fp8_blocks, spec.num_mtp_layers);
  std::visit(out, spec.residual);
  std::string text = out.text;
  for (const BlockSpec& block : spec.blocks) {
    Description of_block;
    std::visit([&](const auto& x) { of_block(x); }, block.mixer);
    std::visit([&](const auto& x) { of_block(x); }, block.ffn);
    text += of_block.text;
  }
  return text;
}

// Without influence on the model, and why.
const std::set<std::string>& Inert() {
  static const auto& fields = *new std::set<std::string>{
      // Names, tokens, run-time switches.
      "architectures", "bos_token_id", "eos_token_id", "dtype", "use_cache",
      "transformers_version", "pretraining_tp", "initializer_range",
      "image_token_id", "video_token_id", "image_start_token_id",
      "image_end_token_id", "video_start_token_id", "video_end_token_id",
      "vision_config",
      // Latent attention derives both.
      "head_dim", "num_key_value_heads",
      // A list that is present wins over the counter.
      "first_k_dense_replace", "index_topk_freq", "index_skip_topk_offset",
      "full_attention_interval", "linear_attn_config",
      // Counts only where router logits are an output.
      "router_aux_loss_coef",
      // Only with sliding windows, which are refused.
      "sliding_window", "max_window_layers"};
  return fields;
}

struct Fuzz {
  Json config;
  std::string original;

  explicit Fuzz(const std::string& arch) {
    config =
        ParseJson(ReadFileOrDie(GoldenPath(arch, "model/config.json"))).value();
    original = Describe(ParseModelSpec(WriteJson(config)).value());
  }
  // The object whose fields describe the text model.
  Json& Text() {
    for (Json::Member& member : config.mutable_members()) {
      if (member.key == "text_config") return member.value;
    }
    return config;
  }
  enum class Outcome { kRefused, kChanged, kWarned, kIgnored };
  Outcome Try(const std::string& field) const {
    const auto spec = ParseModelSpec(WriteJson(config));
    if (!spec.ok()) return Outcome::kRefused;
    if (Describe(*spec) != original) return Outcome::kChanged;
    for (const std::string& warning : spec->warnings) {
      if (absl::StrContains(warning, field)) return Outcome::kWarned;
    }
    return Outcome::kIgnored;
  }
};

// Another value of the same type.
Json Altered(const Json& value) {
  switch (value.type()) {
    case Json::Type::kNull:
      return Json::Int(3);
    case Json::Type::kBool:
      return Json::Bool(!value.bool_value());
    case Json::Type::kInt:
      return Json::Int(value.int_value() + 1);
    case Json::Type::kFloat:
      return Json::Float(value.number_value() * 1.25 + 0.125);
    case Json::Type::kString:
      return Json::String(value.string_value() + "x");
    case Json::Type::kArray: {
      std::vector<Json> items = value.items();
      if (items.empty()) return Json::Array({Json::Int(1)});
      items.pop_back();
      return Json::Array(std::move(items));
    }
    case Json::Type::kObject: {
      std::vector<Json::Member> members = value.members();
      for (Json::Member& member : members) {
        member.value = Altered(member.value);
      }
      return Json::Object(std::move(members));
    }
  }
  return Json();
}

TEST(ConfigFuzz, AnAlteredValueIsNeverIgnored) {
  for (const std::string& arch : GoldenModels()) {
    const size_t fields = Fuzz(arch).Text().members().size();
    for (size_t i = 0; i < fields; ++i) {
      Fuzz fuzz(arch);
      Json::Member& member = fuzz.Text().mutable_members()[i];
      const std::string field = member.key;
      member.value = Altered(member.value);
      // Where no layer is dense, its width says nothing.
      const bool no_dense = absl::StartsWith(arch, "qwen3");
      if (Inert().count(field) != 0 ||
          (no_dense && field == "intermediate_size")) {
        continue;
      }
      EXPECT_NE(fuzz.Try(field), Fuzz::Outcome::kIgnored)
          << arch << " " << field << " became " << WriteJson(member.value);
    }
  }
}

TEST(ConfigFuzz, ARenamedFieldIsNeverIgnored) {
  for (const std::string& arch : GoldenModels()) {
    const size_t fields = Fuzz(arch).Text().members().size();
    for (size_t i = 0; i < fields; ++i) {
      Fuzz fuzz(arch);
      Json::Member& member = fuzz.Text().mutable_members()[i];
      const bool neutral =
          member.value.is_null() || WriteJson(member.value) == "[]" ||
          WriteJson(member.value) == "{}" || WriteJson(member.value) == "" ||
          (member.value.is_bool() && !member.value.bool_value()) ||
          (!member.value.is_bool() && !member.value.is_string() &&
           !member.value.is_array() && !member.value.is_object() &&
           member.value.number_value() == 0);
      member.key += "_renamed";
      if (neutral) continue;
      EXPECT_NE(fuzz.Try(member.key), Fuzz::Outcome::kIgnored)
          << arch << " " << member.key;
    }
  }
}

// Fields may be missing: the default is taken or the config refused, and an
// alias says the same as the name it stands for.
TEST(ConfigFuzz, AliasesMeanTheSameAndMissingFieldsNeverCrash) {
  const std::vector<std::vector<std::string>> aliases = {
      {"num_experts_per_tok", "num_experts_per_token"},
      {"n_shared_experts", "num_shared_experts"},
      {"n_group", "num_expert_group"},
      {"norm_topk_prob", "moe_renormalize"},
      {"max_position_embeddings", "model_max_length"},
      {"num_experts", "n_routed_experts", "num_local_experts"}};
  int renamed = 0;
  for (const std::string& arch : GoldenModels()) {
    for (size_t i = 0; i < Fuzz(arch).Text().members().size(); ++i) {
      Fuzz missing(arch);
      auto& members = missing.Text().mutable_members();
      const std::string field = members[i].key;
      members.erase(members.begin() + static_cast<std::ptrdiff_t>(i));
      missing.Try(field);
      for (const auto& group : aliases) {
        if (std::find(group.begin(), group.end(), field) == group.end()) {
          continue;
        }
        for (const std::string& alias : group) {
          Fuzz fuzz(arch);
          if (fuzz.Text().Find(alias) != nullptr) continue;
          fuzz.Text().mutable_members()[i].key = alias;
          const auto spec = ParseModelSpec(WriteJson(fuzz.config));
          ASSERT_OK(spec.status());
          // qwen3_5_moe knows no switch for it.
          EXPECT_TRUE(Describe(*spec) == fuzz.original ||
                      !spec->warnings.empty())
              << arch << " " << field << " as " << alias;
          ++renamed;
        }
      }
    }
  }
  EXPECT_GT(renamed, 30);
}

// Two aliases that disagree are refused, whichever is wrong.
TEST(ConfigFuzz, AliasesThatDisagreeAreRefused) {
  for (const std::string& arch : GoldenModels()) {
    Fuzz fuzz(arch);
    fuzz.Text().mutable_members().push_back(
        {"num_local_experts", Json::Int(17), 0});
    EXPECT_EQ(fuzz.Try("num_local_experts"), Fuzz::Outcome::kRefused) << arch;
  }
}

}  // namespace
}  // namespace cadre
