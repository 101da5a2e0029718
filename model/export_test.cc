// Full checkpoints out, inspection.

#include <cstring>
#include <filesystem>

#include "base/status_matchers.h"
#include "base/text/json.h"
#include "model/checkpoint_writer.h"
#include "model/inspect.h"
#include "model/model_dir.h"
#include "model/quantized.h"
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
using ::cadre::testing::LoadTensors;
using ::cadre::testing::NewFolder;
using ::cadre::testing::ReadFileOrDie;
using ::cadre::testing::StatusIs;
using ::cadre::testing::WriteFileOrDie;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::Status Export(const std::string& from, const std::string& to,
                    const CheckpointOptions& options) {
  auto base = ModelDir::Open(from);
  if (!base.ok()) return base.status();
  return WriteCheckpoint(*base, SourceFrom(*base), to, options);
}

TEST(WriteCheckpoint, LoadedAndExportedTensorsAreBitIdentical) {
  for (const std::string& arch : GoldenModels()) {
    SCOPED_TRACE(arch);
    const std::string from = GoldenPath(arch, "model");
    const std::string to = NewFolder() + "/out";
    ASSERT_OK(Export(from, to, {.dtype = DType::kF32}));
    std::vector<EditableTensor> old = LoadTensors(from + "/model.safetensors");
    std::vector<EditableTensor> exported =
        LoadTensors(to + "/model.safetensors");
    ASSERT_EQ(old.size(), exported.size());
    for (const EditableTensor& tensor : old) {
      std::string name = tensor.info.name;
      // A dense layer of kimi_linear is written as published models have it.
      const std::string dense = "layers.0.block_sparse_moe.";
      if (const size_t at = name.find(dense); at != std::string::npos) {
        name.replace(at, dense.size(), "layers.0.mlp.");
      }
      const EditableTensor& twin = FindTensor(exported, name);
      EXPECT_EQ(tensor.info.shape, twin.info.shape) << name;
      EXPECT_EQ(tensor.bytes, twin.bytes) << name;
    }
    for (const char* file : {"config.json", "generation_config.json"}) {
      EXPECT_EQ(ReadFileOrDie(from + "/" + file),
                ReadFileOrDie(to + "/" + file));
    }
    EXPECT_OK(ModelDir::Open(to));
  }
}

TEST(WriteCheckpoint, SplitsIntoShards) {
  const std::string from = NewFolder(), to = NewFolder() + "/out";
  CopyFolder(GoldenPath("glm5_next", "model"), from);
  WriteFileOrDie(from + "/tokenizer.json", "{}");
  WriteFileOrDie(from + "/notes.bin", "not copied");
  ASSERT_OK(Export(from, to, {.max_shard_bytes = 300'000}));
  ASSERT_OK_AND_ASSIGN(const ModelDir dir, ModelDir::Open(to));
  EXPECT_GE(dir.WeightFiles().size(), 3u);
  for (const std::string& file : dir.WeightFiles()) {
    EXPECT_LT(std::filesystem::file_size(to + "/" + file), 350'000u);
  }
  EXPECT_TRUE(dir.has_tokenizer());
  EXPECT_FALSE(std::filesystem::exists(to + "/notes.bin"));
  EXPECT_EQ(dir.skipped().names.size(), 25u);
  ASSERT_OK_AND_ASSIGN(const ModelDir base, ModelDir::Open(from));
  for (const LogicalTensor& tensor : base.tensors()) {
    std::vector<float> a(tensor.num_elements()), b(a.size());
    ASSERT_OK(
        base.Read(tensor.name, Tensor(a.data(), DType::kF32, tensor.shape)));
    ASSERT_OK(
        dir.Read(tensor.name, Tensor(b.data(), DType::kF32, tensor.shape)));
    EXPECT_EQ(a, b) << tensor.name;
  }
}

TEST(WriteCheckpoint, WritesBf16ButKeepsWhatMustStayF32) {
  const std::string to = NewFolder() + "/out", again = NewFolder() + "/out";
  ASSERT_OK(
      Export(GoldenPath("kimi_linear", "model"), to, {.dtype = DType::kBF16}));
  std::vector<EditableTensor> tensors = LoadTensors(to + "/model.safetensors");
  EXPECT_EQ(FindTensor(tensors, "lm_head.weight").info.dtype, DType::kBF16);
  EXPECT_EQ(FindTensor(tensors, "model.layers.0.self_attn.A_log").info.dtype,
            DType::kF32);
  // Mixed dtypes survive a round trip as they are.
  ASSERT_OK(Export(to, again, {}));
  EXPECT_EQ(ReadFileOrDie(to + "/model.safetensors"),
            ReadFileOrDie(again + "/model.safetensors"));
}

TEST(WriteCheckpoint, WritesQuantisedTensorsPlain) {
  const std::string from = NewFolder(), to = NewFolder() + "/out";
  CopyFolder(GoldenPath("deepseek_v3", "model"), from);
  const std::string name = "model.layers.1.mlp.experts.3.down_proj.weight";
  EditTensors(from + "/model.safetensors", [&](auto& tensors) {
    // The experts of one parameter share an encoding.
    std::vector<EditableTensor> scales;
    for (EditableTensor& tensor : tensors) {
      const bool expert =
          tensor.info.name.find("layers.1.mlp.experts.") != std::string::npos &&
          tensor.info.name.find("down_proj") != std::string::npos;
      if (!expert) continue;
      tensor.info.dtype = DType::kF8E4M3;
      tensor.bytes.assign(tensor.info.num_elements(), 0x38);
      const float scale = 0.25f;
      EditableTensor extra;
      extra.info = {tensor.info.name + "_scale_inv", DType::kF32, {1, 1}, 0, 0};
      extra.bytes.assign(reinterpret_cast<const char*>(&scale), 4);
      scales.push_back(extra);
    }
    tensors.insert(tensors.end(), scales.begin(), scales.end());
  });
  std::string config = ReadFileOrDie(from + "/config.json");
  WriteFileOrDie(
      from + "/config.json",
      testing::Replaced(config, "{",
                        "{\"quantization_config\": {\"quant_method\": \"fp8\", "
                        "\"weight_block_size\": [128, 128]},"));
  ASSERT_OK(Export(from, to, {}));
  std::vector<EditableTensor> tensors = LoadTensors(to + "/model.safetensors");
  const EditableTensor& plain = FindTensor(tensors, name);
  EXPECT_EQ(plain.info.dtype, DType::kBF16);
  EXPECT_EQ(plain.bytes.substr(0, 2), std::string("\x80\x3e", 2));  // 0.25
  EXPECT_EQ(ReadFileOrDie(to + "/config.json").find("quantization_config"),
            std::string::npos);
  EXPECT_OK(ModelDir::Open(to));
}

TEST(WriteCheckpoint, LeavesNothingBehindOnFailure) {
  const std::string parent = NewFolder();
  ASSERT_OK_AND_ASSIGN(const ModelDir base,
                       ModelDir::Open(GoldenPath("qwen3_moe", "model")));
  const TensorSource broken = [](const LogicalTensor& tensor, int64_t, int64_t,
                                 absl::Span<float>) -> absl::Status {
    if (tensor.name == "model.norm.weight") {
      return absl::UnavailableError("gone");
    }
    return absl::OkStatus();
  };
  EXPECT_THAT(
      WriteCheckpoint(base, broken, parent + "/out", {}),
      StatusIs(absl::StatusCode::kUnavailable,
               AllOf(HasSubstr("model.norm.weight"), HasSubstr("gone"))));
  EXPECT_TRUE(std::filesystem::is_empty(parent));
  std::filesystem::create_directory(parent + "/out");
  EXPECT_THAT(WriteCheckpoint(base, SourceFrom(base), parent + "/out", {}),
              StatusIs(absl::StatusCode::kAlreadyExists));
}

// A tiny kimi_k3 with packed experts, put together from its tensor list.
TEST(ModelDir, ReadsAndRewritesMxfp4Experts) {
  const std::string from = NewFolder(), to = NewFolder() + "/out";
  const std::string config = R"({
    "model_type": "kimi_k3", "text_config": {
      "model_type": "kimi_linear", "hidden_size": 64, "vocab_size": 32,
      "num_hidden_layers": 4, "intermediate_size": 48, "num_attention_heads": 2,
      "q_lora_rank": 8, "kv_lora_rank": 8, "qk_nope_head_dim": 4,
      "qk_rope_head_dim": 4, "v_head_dim": 4, "num_experts": 3,
      "num_experts_per_token": 2, "moe_intermediate_size": 32,
      "routed_expert_hidden_size": 64, "hidden_act": "situ",
      "linear_attn_config": {"full_attn_layers": [4], "kda_layers": [1, 2, 3],
        "num_heads": 2, "head_dim": 4},
      "quantization_config": {"quant_method": "mxfp4"}}})";
  WriteFileOrDie(from + "/config.json", config);
  ASSERT_OK_AND_ASSIGN(const ModelSpec spec, ParseModelSpec(config));
  std::vector<EditableTensor> tensors;
  const auto add = [&](const std::string& name, DType dtype,
                       std::vector<int64_t> shape) {
    EditableTensor tensor;
    tensor.info = {name, dtype, std::move(shape), 0, 0};
    for (int64_t i = 0; i < tensor.info.num_bytes(); ++i) {
      tensor.bytes += static_cast<char>(
          dtype == DType::kU8 ? (i * 7 + tensors.size()) % 251 : 0);
    }
    tensors.push_back(std::move(tensor));
  };
  for (const LogicalTensor& tensor : LogicalTensors(spec)) {
    if (tensor.role == LogicalTensor::Role::kExperts) {
      const ExpertNaming& naming = tensor.expert_namings.front();
      const int64_t parts = static_cast<int64_t>(naming.suffixes.size());
      for (int64_t e = 0; e < tensor.shape[0]; ++e) {
        for (const std::string& suffix : naming.suffixes) {
          const std::string name = naming.prefix + std::to_string(e) + suffix;
          const int64_t rows = tensor.shape[1] / parts, cols = tensor.shape[2];
          add(name + "_packed", DType::kU8, {rows, cols / 2});
          add(name + "_scale", DType::kU8, {rows, cols / 32});
        }
      }
    } else if (tensor.padded_elements > 0) {
      add(tensor.whole_names.front(), DType::kF32, {tensor.padded_elements});
    } else if (!tensor.row_block_names.empty()) {
      for (const auto& names : tensor.row_block_names) {
        add(names.front(), DType::kBF16,
            {tensor.shape[0] / 3, tensor.shape[1], tensor.shape[2]});
      }
    } else {
      add(tensor.whole_names.front(), DType::kBF16, tensor.shape);
    }
  }
  testing::StoreTensors(from + "/model.safetensors", tensors);
  ASSERT_OK_AND_ASSIGN(const ModelDir dir, ModelDir::Open(from));
  const std::string experts =
      "language_model.model.layers.1.mlp.experts.gate_up_proj";
  const LogicalTensor& tensor = *dir.Find(experts);
  EXPECT_THAT(tensor.shape, ElementsAre(3, 64, 64));
  std::vector<float> values(64 * 64);
  ASSERT_OK(dir.ReadExperts(experts, 2, 3,
                            Tensor(values.data(), DType::kF32, {64, 64})));
  const std::string w3 =
      "language_model.model.layers.1.block_sparse_moe.experts.2.w3.weight";
  const std::string& packed = FindTensor(tensors, w3 + "_packed").bytes;
  const std::string& scales = FindTensor(tensors, w3 + "_scale").bytes;
  const auto byte = [](char c) { return static_cast<uint8_t>(c); };
  // Row 5, column 37 of up: odd columns are the high nibble.
  EXPECT_EQ(values[(32 + 5) * 64 + 37],
            DecodeE2M1(byte(packed[5 * 32 + 18]) >> 4) *
                std::ldexp(1.0f, byte(scales[5 * 2 + 1]) - 127));

  ASSERT_OK(Export(from, to, {}));
  ASSERT_OK_AND_ASSIGN(const ModelDir plain, ModelDir::Open(to));
  std::vector<EditableTensor> written = LoadTensors(to + "/model.safetensors");
  EXPECT_EQ(FindTensor(written, w3).info.dtype, DType::kBF16);
  EXPECT_THAT(
      FindTensor(written, "language_model.model.layers.1.self_attn.A_log")
          .info.shape,
      ElementsAre(128));
  std::vector<float> again(64 * 64);
  ASSERT_OK(plain.ReadExperts(experts, 2, 3,
                              Tensor(again.data(), DType::kF32, {64, 64})));
  EXPECT_EQ(values, again);
}

TEST(InspectModel, DescribesAModel) {
  ASSERT_OK_AND_ASSIGN(
      const InspectReport report,
      InspectModel(GoldenPath("glm5_next", "model"),
                   {.lora_targets = {"q_proj", "experts"}, .lora_rank = 4}));
  EXPECT_TRUE(report.has_weights);
  EXPECT_EQ(report.layers.size(), 4u);
  EXPECT_EQ(report.layers[3].mixer, "dsa");
  EXPECT_EQ(report.skipped_tensors.size(), 25u);
  EXPECT_GT(report.lora_parameters, 0);
  EXPECT_LT(report.parameters.active, report.parameters.total);
  const std::string text = RenderInspectText(report);
  for (const char* part :
       {"glm5_next", "25 tensors", "kda: 4 heads x 16", "4 of 16 experts x 20",
        "q_proj: 3 modules in kda layers 0-2", "warning: LoRA target q_proj"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  ASSERT_OK_AND_ASSIGN(const Json json, ParseJson(RenderInspectJson(report)));
  EXPECT_EQ(json.Find("model_type")->string_value(), "glm5_next");
  EXPECT_EQ(json.Find("layers")->items().size(), 4u);
  EXPECT_THAT(InspectModel(GoldenPath("glm5_next", "model"),
                           {.lora_targets = {"nothing"}})
                  .status(),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(InspectModel("no/such/model", {}).status(),
              StatusIs(absl::StatusCode::kNotFound));
}

TEST(CountParameters, CountsWhatTheReferenceCounts) {
  for (const std::string& arch : GoldenModels()) {
    ASSERT_OK_AND_ASSIGN(const ModelDir dir,
                         ModelDir::Open(GoldenPath(arch, "model")));
    int64_t elements = 0;
    for (const EditableTensor& tensor :
         LoadTensors(GoldenPath(arch, "model/model.safetensors"))) {
      const std::string& name = tensor.info.name;
      if (name.find("visual") == std::string::npos &&
          name.find("e_score_correction_bias") == std::string::npos) {
        elements += tensor.info.num_elements();
      }
    }
    EXPECT_EQ(CountParameters(dir.spec()).total, elements) << arch;
  }
}

}  // namespace
}  // namespace cadre
