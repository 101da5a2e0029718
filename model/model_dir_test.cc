#include "model/model_dir.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <numeric>

#include "base/status_matchers.h"
#include "model/quantized.h"
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
using ::cadre::testing::Replaced;
using ::cadre::testing::StatusIs;
using ::cadre::testing::StoreTensors;
using ::cadre::testing::WriteFileOrDie;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Tensors = std::vector<EditableTensor>;

// A copy of a golden model that a test may damage.
std::string CopyOf(const std::string& arch) {
  const std::string folder = NewFolder();
  CopyFolder(GoldenPath(arch, "model"), folder);
  return folder;
}
std::string Weights(const std::string& folder) {
  return folder + "/model.safetensors";
}

std::vector<float> ReadAll(const ModelDir& dir, const LogicalTensor& tensor) {
  std::vector<float> values(tensor.num_elements());
  const absl::Status status = dir.Read(
      tensor.name, Tensor(values.data(), DType::kF32, {tensor.num_elements()}));
  EXPECT_OK(status);
  return values;
}

// All tensors of two directories are equal.
void ExpectSameTensors(const ModelDir& a, const ModelDir& b) {
  ASSERT_EQ(a.tensors().size(), b.tensors().size());
  for (const LogicalTensor& tensor : a.tensors()) {
    ASSERT_NE(b.Find(tensor.name), nullptr) << tensor.name;
    EXPECT_EQ(ReadAll(a, tensor), ReadAll(b, tensor)) << tensor.name;
  }
}

void ExpectProblem(const std::string& folder, const char* file,
                   const std::string& what) {
  EXPECT_THAT(ModelDir::Open(folder).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr(file), HasSubstr(what))));
}

TEST(ModelDir, TensorsAreTheReferenceGradients) {
  for (const std::string& arch : GoldenModels()) {
    SCOPED_TRACE(arch);
    ASSERT_OK_AND_ASSIGN(const ModelDir dir,
                         ModelDir::Open(GoldenPath(arch, "model")));
    ASSERT_OK_AND_ASSIGN(
        const SafetensorsFile gradients,
        SafetensorsFile::Open(GoldenPath(arch, "grads.safetensors")));
    size_t trained = 0;
    for (const LogicalTensor& tensor : dir.tensors()) {
      const SafetensorInfo* gradient = gradients.Find(tensor.name);
      EXPECT_EQ(gradient != nullptr, tensor.can_have_gradient) << tensor.name;
      if (gradient == nullptr) continue;
      ++trained;
      EXPECT_EQ(gradient->num_elements(), tensor.num_elements()) << tensor.name;
      if (!tensor.any_shape) {
        EXPECT_EQ(gradient->shape, tensor.shape);
      }
    }
    EXPECT_EQ(trained, gradients.tensors().size());
    EXPECT_EQ(dir.skipped().names.size(), arch == "glm5_next" ? 25u : 0u);
    EXPECT_FALSE(dir.has_tokenizer());
    EXPECT_EQ(dir.Fingerprint().size(), 64u);
  }
}

TEST(ModelDir, FusesExpertsAndConvolutions) {
  ASSERT_OK_AND_ASSIGN(const ModelDir dir,
                       ModelDir::Open(GoldenPath("kimi_linear", "model")));
  Tensors disk =
      LoadTensors(GoldenPath("kimi_linear", "model/model.safetensors"));
  const MoeSpec& moe = std::get<MoeSpec>(dir.spec().blocks[1].ffn);
  const int64_t piece = moe.expert_width * dir.spec().hidden_size;
  std::string expected;
  for (int64_t e = 3; e < 5; ++e) {
    for (const char* name : {"w1", "w3"}) {
      expected +=
          FindTensor(disk, "model.layers.1.block_sparse_moe.experts." +
                               std::to_string(e) + "." + name + ".weight")
              .bytes;
    }
  }
  std::vector<float> got(4 * piece);
  ASSERT_OK(dir.ReadExperts("model.layers.1.mlp.experts.gate_up_proj", 3, 5,
                            Tensor(got.data(), DType::kF32, {4 * piece})));
  EXPECT_EQ(std::memcmp(got.data(), expected.data(), expected.size()), 0);

  expected.clear();
  for (const char* name : {"q_conv1d", "k_conv1d", "v_conv1d"}) {
    expected += FindTensor(disk, std::string("model.layers.0.self_attn.") +
                                     name + ".weight")
                    .bytes;
  }
  got = ReadAll(dir, *dir.Find("model.layers.0.self_attn.conv1d.weight"));
  ASSERT_EQ(got.size() * 4, expected.size());
  EXPECT_EQ(std::memcmp(got.data(), expected.data(), expected.size()), 0);

  std::vector<double> wide(moe.num_experts * 2 * piece);
  ASSERT_OK(
      dir.Read("model.layers.1.mlp.experts.gate_up_proj",
               Tensor(wide.data(), DType::kF64, {moe.num_experts, 2 * piece})));
  std::vector<float> narrow =
      ReadAll(dir, *dir.Find("model.layers.1.mlp.experts.gate_up_proj"));
  EXPECT_TRUE(std::equal(wide.begin(), wide.end(), narrow.begin()));
  EXPECT_THAT(dir.Read("model.layers.9.x", Tensor()),
              StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(
      dir.Read("model.norm.weight", Tensor(got.data(), DType::kF32, {3})),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("model.norm.weight")));
  EXPECT_THAT(
      dir.ReadExperts("model.layers.1.mlp.experts.down_proj", 3, 99, Tensor()),
      StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(ModelDir, NamesWhatIsMissingExtraOrMisshapen) {
  std::string folder = CopyOf("deepseek_v3");
  EditTensors(Weights(folder), [](Tensors& tensors) {
    FindTensor(tensors, "model.layers.1.mlp.experts.7.up_proj.weight")
        .info.name = "model.layers.1.mlp.experts.7.up_projection.weight";
    FindTensor(tensors, "model.norm.weight").info.shape = {1, 48};
    EditableTensor& head = FindTensor(tensors, "lm_head.weight");
    head.info.dtype = DType::kI32;
  });
  ExpectProblem(folder, "model.safetensors", "4 tensors do not fit");
  ExpectProblem(folder, "model.safetensors",
                "model.layers.1.mlp.experts.7.up_proj.weight [20, 48] is "
                "missing");
  ExpectProblem(folder, "model.safetensors",
                "up_projection.weight F32 [20, 48] is not part of this model");
  ExpectProblem(folder, "model.safetensors",
                "model.norm.weight F32 [1, 48] should have shape [48]");
  ExpectProblem(folder, "model.safetensors",
                "lm_head.weight I32 [160, 48] should be F32");

  folder = CopyOf("glm5_next");
  EditTensors(Weights(folder), [](Tensors& tensors) {
    tensors.erase(tensors.begin() + 1, tensors.begin() + 90);
  });
  EXPECT_THAT(
      ModelDir::Open(folder, {.max_problems = 2}).status(),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("; and 39 more")));
}

TEST(ModelDir, RefusesTruncatedFilesAndBareFolders) {
  const std::string folder = CopyOf("qwen3_moe");
  const std::string bytes = ReadFileOrDie(Weights(folder));
  WriteFileOrDie(Weights(folder), bytes.substr(0, bytes.size() - 1));
  EXPECT_THAT(
      ModelDir::Open(folder).status(),
      StatusIs(absl::StatusCode::kDataLoss,
               AllOf(HasSubstr("model.safetensors"), HasSubstr("truncated"))));
  std::filesystem::remove(Weights(folder));
  EXPECT_THAT(ModelDir::Open(folder).status(),
              StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(ModelDir::Open(NewFolder()).status(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("config.json")));
}

TEST(ModelDir, ReadsShards) {
  const std::string folder = CopyOf("qwen3_next");
  Tensors all = LoadTensors(Weights(folder));
  const size_t half = all.size() / 2;
  std::string index = "{\"metadata\":{},\"weight_map\":{";
  for (size_t i = 0; i < all.size(); ++i) {
    index += (i ? ",\"" : "\"") + all[i].info.name + "\":\"" +
             (i < half ? "a" : "b") + ".safetensors\"";
  }
  StoreTensors(folder + "/a.safetensors",
               Tensors(all.begin(), all.begin() + half));
  StoreTensors(folder + "/b.safetensors",
               Tensors(all.begin() + half, all.end()));
  std::filesystem::remove(Weights(folder));
  WriteFileOrDie(folder + "/model.safetensors.index.json", index + "}}");
  ASSERT_OK_AND_ASSIGN(const ModelDir sharded, ModelDir::Open(folder));
  ASSERT_OK_AND_ASSIGN(const ModelDir single,
                       ModelDir::Open(GoldenPath("qwen3_next", "model")));
  ExpectSameTensors(single, sharded);
  EXPECT_NE(single.Fingerprint(), sharded.Fingerprint());
  EXPECT_EQ(sharded.WeightFiles().size(), 2u);

  WriteFileOrDie(folder + "/model.safetensors.index.json",
                 index + ",\"x\":\"b.safetensors\"}}");
  ExpectProblem(folder, "b.safetensors", "x is missing, though the index");
  WriteFileOrDie(folder + "/model.safetensors.index.json",
                 index + ",\"x\":\"c.safetensors\"}}");
  EXPECT_THAT(
      ModelDir::Open(folder).status(),
      StatusIs(absl::StatusCode::kNotFound, HasSubstr("c.safetensors")));
  for (const char* outside : {"../a.safetensors", "/etc/a.safetensors"}) {
    WriteFileOrDie(folder + "/model.safetensors.index.json",
                   index + ",\"x\":\"" + outside + "\"}}");
    EXPECT_THAT(ModelDir::Open(folder).status(),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("outside the model's folder")));
  }
}

// Reference names, stacked experts, published names, other shapes of A_log.
TEST(ModelDir, AcceptsOtherForms) {
  ASSERT_OK_AND_ASSIGN(const ModelDir original,
                       ModelDir::Open(GoldenPath("kimi_linear", "model")));
  const std::string folder = CopyOf("kimi_linear");
  Tensors reference;
  for (const LogicalTensor& tensor : original.tensors()) {
    const std::vector<float> values = ReadAll(original, tensor);
    EditableTensor out;
    out.info = {tensor.name, DType::kF32, tensor.shape, 0, 0};
    out.bytes.assign(reinterpret_cast<const char*>(values.data()),
                     values.size() * sizeof(float));
    reference.push_back(out);
  }
  StoreTensors(Weights(folder), reference);
  ASSERT_OK_AND_ASSIGN(const ModelDir copy, ModelDir::Open(folder));
  ExpectSameTensors(original, copy);
  // Half of the experts in bfloat16: rounded, but readable as a range.
  std::vector<uint16_t> bf16(original.spec().hidden_size);
  EXPECT_OK(
      copy.Read("model.norm.weight", Tensor(bf16.data(), DType::kBF16, {48})));
  // Twice is an error.
  EditTensors(Weights(folder), [](Tensors& tensors) {
    EditableTensor twin =
        FindTensor(tensors, "model.layers.0.self_attn.forget_gate.dt_bias");
    twin.info.name = "model.layers.0.self_attn.dt_bias";
    tensors.push_back(twin);
  });
  ExpectProblem(folder, "", "is stored twice");
}

TEST(ModelDir, SkipsExtraLayersOfMultiTokenPrediction) {
  const std::string folder = CopyOf("deepseek_v3");
  EditTensors(Weights(folder), [](Tensors& tensors) {
    EditableTensor mtp = FindTensor(tensors, "model.norm.weight");
    mtp.info.name = "model.layers.3.enorm.weight";
    tensors.push_back(mtp);
  });
  ASSERT_OK_AND_ASSIGN(const ModelDir dir, ModelDir::Open(folder));
  EXPECT_EQ(dir.skipped().names,
            std::vector<std::string>{"model.layers.3.enorm.weight"});
  EXPECT_EQ(dir.skipped().bytes, 48 * 4);
  ASSERT_OK(dir.ReadRaw("model.layers.3.enorm.weight").status());
}

TEST(ModelDir, DequantizesFp8Blocks) {
  const std::string folder = CopyOf("deepseek_v3");
  std::vector<float> expected;
  EditTensors(Weights(folder), [&](Tensors& tensors) {
    EditableTensor& q =
        FindTensor(tensors, "model.layers.0.mlp.up_proj.weight");
    const int64_t n = q.info.num_elements();
    q.info.dtype = DType::kF8E4M3;
    q.bytes.resize(n);
    for (int64_t i = 0; i < n; ++i) {
      q.bytes[i] = static_cast<char>(i % 120);
      expected.push_back(DecodeF8E4M3(i % 120) * 0.5f);
    }
    const float scale = 0.5f;
    EditableTensor scales;
    scales.info = {q.info.name + "_scale_inv", DType::kF32, {1, 1}, 0, 0};
    scales.bytes.assign(reinterpret_cast<const char*>(&scale), 4);
    tensors.push_back(scales);
  });
  ASSERT_OK_AND_ASSIGN(const ModelDir dir, ModelDir::Open(folder));
  EXPECT_EQ(ReadAll(dir, *dir.Find("model.layers.0.mlp.up_proj.weight")),
            expected);
  EditTensors(Weights(folder), [&](Tensors& tensors) { tensors.pop_back(); });
  ExpectProblem(folder, "model.safetensors", "has no scales");
}

}  // namespace
}  // namespace cadre
