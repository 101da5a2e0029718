#include "model/peft_adapter.h"

#include <cmath>
#include <filesystem>
#include <map>
#include <random>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "model/peft_config.h"
#include "model/safetensors.h"
#include "model/testing.h"

namespace cadre {
namespace {

using ::cadre::testing::CopyFolder;
using ::cadre::testing::EditableTensor;
using ::cadre::testing::EditTensors;
using ::cadre::testing::FindTensor;
using ::cadre::testing::GoldenModels;
using ::cadre::testing::GoldenPath;
using ::cadre::testing::NewFolder;
using ::cadre::testing::ReadFileOrDie;
using ::cadre::testing::Replaced;
using ::cadre::testing::StatusIs;
using ::cadre::testing::WriteFileOrDie;
using ::testing::HasSubstr;

constexpr const char* kRuns[] = {"attn", "attn_experts", "router"};

ModelSpec GoldenSpec(const std::string& arch) {
  auto spec =
      ParseModelSpec(ReadFileOrDie(GoldenPath(arch, "model/config.json")));
  EXPECT_OK(spec);
  return *spec;
}

std::string RunDir(const std::string& arch, const std::string& run) {
  return GoldenPath(arch, "lora_" + run);
}

// A target that names the experts of one layer only.
std::string LayerOneExperts(const ModelSpec& spec) {
  return spec.tensor_prefix + "layers.1.mlp.experts.*";
}

// Random weights for a plan; every value is different.
PeftAdapter RandomAdapter(LoraPlan plan, ExpertLayout layout) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  PeftAdapter adapter;
  adapter.layout = layout;
  for (const LoraModule& module : plan.modules) {
    const int64_t e = std::max<int64_t>(module.num_experts, 1);
    AdapterWeights weights;
    weights.a.resize(e * module.rank * module.in);
    weights.b.resize(e * module.rank * module.out);
    for (float& value : weights.a) value = normal(random);
    for (float& value : weights.b) value = normal(random);
    adapter.weights.push_back(std::move(weights));
  }
  adapter.plan = std::move(plan);
  return adapter;
}

// scale B_e A_e, [out, in], of one expert.
std::vector<double> Delta(const LoraModule& module,
                          const AdapterWeights& weights, int64_t e) {
  std::vector<double> delta(module.out * module.in);
  for (int64_t o = 0; o < module.out; ++o) {
    for (int64_t i = 0; i < module.in; ++i) {
      double sum = 0;
      for (int64_t r = 0; r < module.rank; ++r) {
        sum += double{weights.b[(e * module.out + o) * module.rank + r]} *
               double{weights.a[(e * module.rank + r) * module.in + i]};
      }
      delta[o * module.in + i] = module.scale * sum;
    }
  }
  return delta;
}

// Change of gate_up ([2I, in], rows gate first) of an expert, whatever the
// modules.
std::vector<double> GateUpDelta(const PeftAdapter& adapter, int layer,
                                int64_t e) {
  std::vector<double> all;
  for (size_t i = 0; i < adapter.plan.modules.size(); ++i) {
    const LoraModule& module = adapter.plan.modules[i];
    if (module.layer != layer || !IsExpertKind(module.kind) ||
        module.kind == LoraModuleKind::kExpertDown) {
      continue;
    }
    const std::vector<double> part = Delta(module, adapter.weights[i], e);
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

void ExpectNear(const std::vector<double>& a, const std::vector<double>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 1e-9);
}

void ExpectSame(const PeftAdapter& a, const PeftAdapter& b) {
  ASSERT_EQ(a.plan.modules.size(), b.plan.modules.size());
  EXPECT_EQ(a.plan.rank, b.plan.rank);
  EXPECT_EQ(a.plan.alpha, b.plan.alpha);
  EXPECT_EQ(a.plan.rslora, b.plan.rslora);
  for (size_t i = 0; i < a.plan.modules.size(); ++i) {
    const LoraModule &x = a.plan.modules[i], &y = b.plan.modules[i];
    EXPECT_EQ(x.path, y.path);
    EXPECT_EQ(x.kind, y.kind) << x.path;
    EXPECT_EQ(x.rank, y.rank) << x.path;
    EXPECT_NEAR(x.scale, y.scale, 1e-12) << x.path;
    EXPECT_EQ(a.weights[i].a, b.weights[i].a) << x.path;
    EXPECT_EQ(a.weights[i].b, b.weights[i].b) << x.path;
  }
}

TEST(PeftAdapter, LoadedAndExportedAdaptersAreBitIdentical) {
  for (const std::string& arch : GoldenModels()) {
    const ModelSpec spec = GoldenSpec(arch);
    for (const char* run : kRuns) {
      for (const char* when : {"_init", "_final"}) {
        const std::string dir = RunDir(arch, absl::StrCat(run, when));
        SCOPED_TRACE(dir);
        ASSERT_OK_AND_ASSIGN(const PeftAdapter adapter,
                             ReadPeftAdapter(dir, spec));
        EXPECT_EQ(adapter.plan.rank, 4);
        for (const LoraModule& module : adapter.plan.modules) {
          EXPECT_EQ(module.scale, 2.0) << module.path;
        }
        const std::string copy = NewFolder();
        ASSERT_OK(WritePeftAdapter(adapter, spec, copy));
        for (const char* file :
             {"adapter_config.json", "adapter_model.safetensors"}) {
          EXPECT_EQ(ReadFileOrDie(dir + "/" + file),
                    ReadFileOrDie(copy + "/" + file));
        }
      }
    }
  }
}

TEST(PeftAdapter, ANewConfigDescribesTheSameAdapter) {
  for (const std::string& arch : GoldenModels()) {
    const ModelSpec spec = GoldenSpec(arch);
    for (const char* run : kRuns) {
      SCOPED_TRACE(arch + " " + run);
      ASSERT_OK_AND_ASSIGN(
          PeftAdapter adapter,
          ReadPeftAdapter(RunDir(arch, absl::StrCat(run, "_init")), spec));
      adapter.config_json.clear();
      for (const ExpertLayout layout :
           {ExpertLayout::kFused, ExpertLayout::kPerExpert}) {
        ASSERT_OK_AND_ASSIGN(const PeftAdapter converted,
                             ConvertExpertLayout(adapter, layout));
        const std::string copy = NewFolder();
        ASSERT_OK(WritePeftAdapter(converted, spec, copy));
        ASSERT_OK_AND_ASSIGN(const PeftAdapter again,
                             ReadPeftAdapter(copy, spec));
        ExpectSame(converted, again);
        const std::string config = ReadFileOrDie(copy + "/adapter_config.json");
        EXPECT_THAT(config, HasSubstr("\"peft_version\": \"0."));
        EXPECT_THAT(config, HasSubstr("\"inference_mode\": true"));
        // Written once more: the same bytes.
        const std::string twice = NewFolder();
        ASSERT_OK(WritePeftAdapter(again, spec, twice));
        EXPECT_EQ(ReadFileOrDie(copy + "/adapter_model.safetensors"),
                  ReadFileOrDie(twice + "/adapter_model.safetensors"));
        EXPECT_EQ(config, ReadFileOrDie(twice + "/adapter_config.json"));
      }
    }
  }
}

TEST(PeftAdapter, ConversionKeepsTheWeightChanges) {
  for (const char* arch : {"kimi_linear", "deepseek_v3"}) {
    const ModelSpec spec = GoldenSpec(arch);
    ASSERT_OK_AND_ASSIGN(
        const PeftAdapter fused,
        ReadPeftAdapter(RunDir(arch, "attn_experts_init"), spec));
    ASSERT_EQ(fused.layout, ExpertLayout::kFused);
    ASSERT_OK_AND_ASSIGN(const PeftAdapter split,
                         ConvertExpertLayout(fused, ExpertLayout::kPerExpert));
    ASSERT_OK_AND_ASSIGN(const PeftAdapter back,
                         ConvertExpertLayout(split, ExpertLayout::kFused));
    for (int64_t e : {0, 7, 15}) {
      ExpectNear(GateUpDelta(fused, 1, e), GateUpDelta(split, 1, e));
      ExpectNear(GateUpDelta(fused, 1, e), GateUpDelta(back, 1, e));
    }
  }
}

// The fused file as PEFT reads it: W_e += s sum_r B[:, rE + e] A[eR + r, :].
TEST(PeftAdapter, FusedFilesFollowPeftsIndexing) {
  const ModelSpec spec = GoldenSpec("qwen3_moe");
  LoraOptions options;
  options.rank = 3;
  options.alpha = 5.0;
  options.targets = {"experts", "q_proj", "expert_gate"};
  ASSERT_OK_AND_ASSIGN(const LoraPlan plan, PlanLora(spec, options));
  PeftAdapter adapter = RandomAdapter(plan, ExpertLayout::kFused);
  const std::string dir = NewFolder();
  ASSERT_OK(WritePeftAdapter(adapter, spec, dir));
  ASSERT_OK_AND_ASSIGN(
      const auto file,
      SafetensorsFile::Open(dir + "/adapter_model.safetensors"));
  const std::string prefix = "base_model.model.model.layers.1.mlp.";
  const MoeSpec& moe = std::get<MoeSpec>(spec.blocks[1].ffn);
  const int64_t experts = moe.num_experts, width = moe.expert_width;
  const int64_t hidden = spec.hidden_size, rank = 2 * options.rank;
  const SafetensorInfo* a_info =
      file.Find(prefix + "experts.base_layer.lora_A.weight");
  const SafetensorInfo* b_info =
      file.Find(prefix + "experts.base_layer.lora_B.weight");
  ASSERT_NE(a_info, nullptr);
  ASSERT_NE(b_info, nullptr);
  EXPECT_EQ(a_info->shape, (std::vector<int64_t>{experts * rank, hidden}));
  EXPECT_EQ(b_info->shape, (std::vector<int64_t>{2 * width, experts * rank}));
  EXPECT_NE(file.Find(prefix + "experts.lora_A.weight"), nullptr);
  EXPECT_NE(file.Find(prefix + "gate.lora_B.weight"), nullptr);
  const auto* a = reinterpret_cast<const float*>(file.Bytes(*a_info).data());
  const auto* b = reinterpret_cast<const float*>(file.Bytes(*b_info).data());
  for (int64_t e = 0; e < experts; ++e) {
    std::vector<double> delta(2 * width * hidden);
    for (int64_t o = 0; o < 2 * width; ++o) {
      for (int64_t i = 0; i < hidden; ++i) {
        for (int64_t r = 0; r < rank; ++r) {
          // alpha and rank are both doubled, so the scale stays.
          delta[o * hidden + i] +=
              5.0 / 3.0 * double{b[o * experts * rank + r * experts + e]} *
              double{a[(e * rank + r) * hidden + i]};
        }
      }
    }
    ExpectNear(GateUpDelta(adapter, 1, e), delta);
  }
  const std::string config = ReadFileOrDie(dir + "/adapter_config.json");
  EXPECT_THAT(config, HasSubstr("\".*\\\\.gate_up_proj\": 6"));
  EXPECT_THAT(config, HasSubstr("\".*\\\\.gate_up_proj\": 10"));
  EXPECT_THAT(config, HasSubstr("mlp.experts.gate_up_proj"));
  EXPECT_THAT(config, HasSubstr("mlp.gate.weight"));
}

TEST(PeftAdapter, NewAdaptersRoundTripInBothLayouts) {
  for (const std::string& arch : GoldenModels()) {
    const ModelSpec spec = GoldenSpec(arch);
    for (const bool rslora : {false, true}) {
      for (std::vector<std::string> targets :
           {std::vector<std::string>{"experts"},
            {"mlp.experts.down_proj", "o_proj"},
            {"mlp.experts.gate_up_proj"},
            {"all-linear", "expert_gate"},
            {LayerOneExperts(spec)}}) {
        SCOPED_TRACE(arch + " " + targets.front());
        LoraOptions options;
        options.rank = 2;
        options.rslora = rslora;
        options.targets = targets;
        ASSERT_OK_AND_ASSIGN(const LoraPlan plan, PlanLora(spec, options));
        for (const ExpertLayout layout :
             {ExpertLayout::kPerExpert, ExpertLayout::kFused}) {
          const PeftAdapter adapter = RandomAdapter(plan, layout);
          const std::string dir = NewFolder();
          ASSERT_OK(WritePeftAdapter(adapter, spec, dir));
          ASSERT_OK_AND_ASSIGN(const PeftAdapter again,
                               ReadPeftAdapter(dir, spec));
          ASSERT_OK_AND_ASSIGN(const PeftAdapter expected,
                               ConvertExpertLayout(adapter, layout));
          ExpectSame(expected, again);
        }
      }
    }
  }
}

TEST(PeftAdapter, KimiK3KeepsItsOwnNames) {
  ASSERT_OK_AND_ASSIGN(const ModelSpec spec, ParseModelSpec(R"({
    "model_type": "kimi_k3", "text_config": {
      "model_type": "kimi_linear", "hidden_size": 64, "vocab_size": 32,
      "num_hidden_layers": 4, "intermediate_size": 48, "num_attention_heads": 2,
      "q_lora_rank": 8, "kv_lora_rank": 8, "qk_nope_head_dim": 4,
      "qk_rope_head_dim": 4, "v_head_dim": 4, "num_experts": 3,
      "num_experts_per_token": 2, "moe_intermediate_size": 32,
      "routed_expert_hidden_size": 32, "hidden_act": "situ",
      "linear_attn_config": {"full_attn_layers": [4], "kda_layers": [1, 2, 3],
        "num_heads": 2, "head_dim": 4}}})"));
  LoraOptions options;
  options.rank = 2;
  options.targets = {"experts", "expert_gate", "f_a_proj", "g_proj"};
  ASSERT_OK_AND_ASSIGN(const LoraPlan plan, PlanLora(spec, options));
  const std::string dir = NewFolder();
  ASSERT_OK(WritePeftAdapter(RandomAdapter(plan, ExpertLayout::kPerExpert),
                             spec, dir));
  ASSERT_OK_AND_ASSIGN(
      const auto file,
      SafetensorsFile::Open(dir + "/adapter_model.safetensors"));
  const std::string layer = "base_model.model.language_model.model.layers.1.";
  for (const char* name :
       {"block_sparse_moe.experts.2.w1", "block_sparse_moe.experts.0.w2",
        "block_sparse_moe.experts.0.w3", "block_sparse_moe.gate",
        "self_attn.f_a_proj", "self_attn.g_proj"}) {
    EXPECT_NE(file.Find(layer + name + ".lora_A.weight"), nullptr) << name;
  }
  ASSERT_OK_AND_ASSIGN(const PeftAdapter again, ReadPeftAdapter(dir, spec));
  EXPECT_EQ(again.plan.modules.size(), plan.modules.size());
}

TEST(PeftAdapter, RefusesWhatItCannotHonour) {
  const ModelSpec spec = GoldenSpec("kimi_linear");
  const std::string source = RunDir("kimi_linear", "attn_experts_init");
  const auto refused = [&](const std::string& from, const std::string& to,
                           const char* message) {
    const std::string dir = NewFolder();
    CopyFolder(source, dir);
    const std::string path = dir + "/adapter_config.json";
    WriteFileOrDie(path, Replaced(ReadFileOrDie(path), from, to));
    EXPECT_THAT(
        ReadPeftAdapter(dir, spec).status(),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
  };
  refused("\"use_dora\": false", "\"use_dora\": true", "use_dora is true");
  refused("\"bias\": \"none\"", "\"bias\": \"all\"", "bias is \"all\"");
  refused("\"modules_to_save\": null", "\"modules_to_save\": [\"lm_head\"]",
          "modules_to_save is [\"lm_head\"]");
  refused("\"fan_in_fan_out\": false", "\"fan_in_fan_out\": true",
          "fan_in_fan_out");
  refused("\"use_dora\": false", "\"use_dora\": false, \"new_thing\": 3",
          "new_thing is 3");
  refused("\"peft_type\": \"LORA\"", "\"peft_type\": \"LOHA\"", "peft_type");
  refused("\"r\": 4", "\"r\": 8", "rank 8 of adapter_config.json");
  refused("\"peft_version\": \"0.21.0\"", "\"peft_version\": \"0.18.1\"",
          "0.19 or later");
  refused("\"q_proj\"", "\"k_proj\"", "not named by target_modules");
  refused("\"q_proj\"", "\"q_proj\", \"k_proj\"",
          "k_proj, which has no tensors");
  refused("\"mlp.experts.down_proj\"", "\"mlp.experts.other\"",
          "experts.lora_A.weight is [64, 20]");
  refused("\"rank_pattern\": {}", "\"rank_pattern\": {\"(\": 4}",
          "no regular expression");
}

TEST(PeftAdapter, NamesTheTensorThatDoesNotFit) {
  const ModelSpec spec = GoldenSpec("kimi_linear");
  const auto damaged =
      [&](const std::function<void(std::vector<EditableTensor>&)>& change) {
        const std::string dir = NewFolder();
        CopyFolder(RunDir("kimi_linear", "attn_init"), dir);
        EditTensors(dir + "/adapter_model.safetensors", change);
        return ReadPeftAdapter(dir, spec).status();
      };
  const std::string q = "base_model.model.model.layers.0.self_attn.q_proj.";
  EXPECT_THAT(damaged([&](auto& tensors) {
                FindTensor(tensors, q + "lora_A.weight").info.shape = {48, 4};
              }),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr(q + "lora_A.weight is [48, 4]")));
  EXPECT_THAT(damaged([&](auto& tensors) {
                FindTensor(tensors, q + "lora_A.weight").info.name =
                    q + "lora_C.weight";
              }),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr(q + "lora_C.weight")));
  EXPECT_THAT(damaged([&](auto& tensors) { tensors.erase(tensors.begin()); }),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("has no lora_A tensor")));
  EXPECT_THAT(damaged([&](auto& tensors) {
                for (const char* half : {"lora_A.weight", "lora_B.weight"}) {
                  FindTensor(tensors, q + half).info.name = absl::StrCat(
                      "base_model.model.model.layers.0.self_attn."
                      "z_proj.",
                      half);
                }
              }),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(
      ReadPeftAdapter(NewFolder(), spec).status(),
      StatusIs(absl::StatusCode::kNotFound, HasSubstr("adapter_config.json")));
}

TEST(PeftAdapter, RandomConfigsNeverCrash) {
  std::mt19937_64 random(11);
  const std::string good = ReadFileOrDie(
      RunDir("deepseek_v3", "attn_experts_init") + "/adapter_config.json");
  for (int round = 0; round < 3000; ++round) {
    std::string text = good;
    for (int i = 0; i < 4; ++i) {
      text[random() % text.size()] = static_cast<char>(random());
    }
    PeftConfig::Parse(text).status().IgnoreError();
    PeftConfig::Parse(good.substr(0, random() % good.size()))
        .status()
        .IgnoreError();
  }
}

TEST(DefaultExpertLayout, SwitchesAboveTheTensorLimit) {
  LoraPlan plan;
  LoraModule module;
  module.kind = LoraModuleKind::kExpertDown;
  module.num_experts = kMaxPerExpertTensors / 2;
  plan.modules = {module};
  EXPECT_EQ(DefaultExpertLayout(plan), ExpertLayout::kPerExpert);
  plan.modules[0].num_experts += 1;
  EXPECT_EQ(DefaultExpertLayout(plan), ExpertLayout::kFused);
  // One A for gate and up stays one.
  plan.modules[0].num_experts = 4;
  plan.modules[0].kind = LoraModuleKind::kExpertGateUp;
  EXPECT_EQ(DefaultExpertLayout(plan), ExpertLayout::kFused);
}

}  // namespace
}  // namespace cadre
