// From files to files: data and model are loaded, trained and exported, and
// what was exported is where the next job starts.

#include "worker/train/load_inputs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status_matchers.h"
#include "base/test_folder.h"
#include "model/model_dir.h"
#include "model/peft_adapter.h"
#include "plan/expert_placement.h"
#include "worker/checkpoint/manifest.h"
#include "worker/comm/local_communicator.h"
#include "worker/data/packed_dataset.h"
#include "worker/model/model.h"

namespace cadre {
namespace {

namespace fs = std::filesystem;
using ::cadre::testing::StatusIs;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;

constexpr char kConfig[] = R"({
  "model_type": "qwen3_moe", "hidden_size": 16, "vocab_size": 260,
  "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
  "head_dim": 8, "intermediate_size": 24, "moe_intermediate_size": 12,
  "num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": true,
  "decoder_sparse_step": 1, "mlp_only_layers": [], "hidden_act": "silu",
  "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "attention_bias": false,
  "router_aux_loss_coef": 0.01, "output_router_logits": true,
  "tie_word_embeddings": false,
  "max_position_embeddings": 128})";

// Characters that stand for bytes in a byte-level vocabulary.
std::string ByteSymbol(int byte, int* next_hidden) {
  const bool printable = (byte >= 33 && byte <= 126) ||
                         (byte >= 161 && byte <= 172) || byte >= 174;
  const int code = printable ? byte : 256 + (*next_hidden)++;
  std::string text;
  if (code < 0x80) {
    text.push_back(static_cast<char>(code));
  } else {
    text.push_back(static_cast<char>(0xC0 | (code >> 6)));
    text.push_back(static_cast<char>(0x80 | (code & 0x3F)));
  }
  if (text == "\"" || text == "\\") text.insert(0, "\\");
  return text;
}

std::string Tokenizer() {
  std::string vocab;
  int next_hidden = 0;
  for (int byte = 0; byte < 256; ++byte) {
    absl::StrAppend(&vocab, byte == 0 ? "" : ",", "\"",
                    ByteSymbol(byte, &next_hidden), "\":", byte);
  }
  return absl::StrCat(
      R"({"version": "1.0", "truncation": null, "padding": null,
      "added_tokens": [{"id": 256, "content": "<eos>", "single_word": false,
        "lstrip": false, "rstrip": false, "normalized": false,
        "special": true}],
      "normalizer": null,
      "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false,
        "trim_offsets": true, "use_regex": true},
      "post_processor": null,
      "decoder": {"type": "ByteLevel", "add_prefix_space": true,
        "trim_offsets": true, "use_regex": true},
      "model": {"type": "BPE", "dropout": null, "unk_token": null,
        "continuing_subword_prefix": null, "end_of_word_suffix": null,
        "fuse_unk": false, "byte_fallback": false, "vocab": {)",
      vocab, R"(}, "merges": []}})");
}

class Events : public TrainObserver {
 public:
  void OnPreparing(absl::string_view stage, int64_t done,
                   int64_t total) override {
    EXPECT_LE(done, total);
    stages.push_back(std::string(stage));
  }
  void OnStep(const StepMetrics& m) override { steps.push_back(m); }
  void OnEvent(absl::string_view kind, absl::string_view) override {
    kinds.push_back(std::string(kind));
  }
  std::vector<std::string> stages, kinds;
  std::vector<StepMetrics> steps;
};

class LoadInputsTest : public ::testing::Test {
 protected:
  LoadInputsTest() : root_(testing::NewTestFolder()) {
    fs::create_directories(root_ + "/init");
    Write("init/config.json", kConfig);
    Write("init/tokenizer.json", Tokenizer());
    Write("init/tokenizer_config.json", R"({"eos_token": "<eos>"})");
    std::string lines;
    for (int i = 0; i < 20; ++i) {
      absl::StrAppend(&lines, R"({"text": "the quick brown fox )", i, "\"}\n");
    }
    Write("train.jsonl", lines);
  }

  void Write(const std::string& name, const std::string& content) {
    std::ofstream(root_ + "/" + name, std::ios::binary) << content;
  }

  TrainerOptions Options() const {
    TrainerOptions options;
    options.job = "jobs/tiny";
    options.data.train = {root_ + "/train.jsonl"};
    options.data.eval = {root_ + "/*.jsonl"};
    options.data.max_seq_len = 64;
    options.training.max_steps = 2;
    options.training.global_batch_size = 4;
    options.training.learning_rate = 1e-2;
    options.tuning.lora_rank = 2;
    options.tuning.lora_alpha = 4;
    options.tuning.lora_target_modules = {"q_proj", "experts", "expert_gate"};
    return options;
  }

  TrainerOptions FromBase() const {
    TrainerOptions options = Options();
    options.model.path = root_ + "/base";
    return options;
  }

  // Trains from scratch; the result is the base of other jobs.
  void MakeBase() {
    TrainerOptions options = Options();
    options.model.random_init = true;
    options.model.config = root_ + "/init/config.json";
    options.model.tokenizer = root_ + "/init";
    options.tuning.method = TuningOptions::Method::kFull;
    options.output.dir = root_ + "/base";
    ASSERT_OK(TrainAndExport(options));
  }

  absl::Status TrainAndExport(const TrainerOptions& options) {
    CADRE_ASSIGN_OR_RETURN(TrainerInputs inputs,
                           LoadTrainerInputs(options, {}, &events_));
    auto world = CreateLocalCommunicators(1);
    CADRE_ASSIGN_OR_RETURN(auto trainer,
                           Trainer::Create(options, std::move(inputs),
                                           std::move(world[0]), &events_));
    CADRE_RETURN_IF_ERROR(trainer->Train().status());
    return trainer->Export().status();
  }

  std::string root_;
  Events events_;
};

TEST_F(LoadInputsTest, AJobStartsWhereAnotherEnded) {
  MakeBase();
  EXPECT_EQ(events_.stages.front(), "data");
  EXPECT_EQ(events_.stages.back(), "model");
  EXPECT_LT(events_.steps.back().loss, 7.0);
  EXPECT_GT(events_.steps.back().aux_loss, 0.0);

  // An adapter on it, fused, and another job that continues the adapter.
  TrainerOptions options = FromBase();
  options.output.dir = root_ + "/adapter";
  options.output.adapter_format = "peft_fused";
  ASSERT_OK(TrainAndExport(options));
  options.model.init_adapter = root_ + "/adapter";
  options.output.dir = root_ + "/adapter2";
  options.output.adapter_format = "auto";
  ASSERT_OK(TrainAndExport(options));
  EXPECT_THAT(events_.kinds, Contains("ADAPTER_IMPORTED"));
  ASSERT_OK_AND_ASSIGN(const ModelDir base, ModelDir::Open(root_ + "/base"));
  ASSERT_OK_AND_ASSIGN(const PeftAdapter adapter,
                       ReadPeftAdapter(root_ + "/adapter2", base.spec()));
  EXPECT_EQ(adapter.layout, ExpertLayout::kFused);

  // Full fine-tuning keeps the folder's other files.
  options = FromBase();
  options.tuning.method = TuningOptions::Method::kFull;
  options.output.dir = root_ + "/full";
  ASSERT_OK(TrainAndExport(options));
  ASSERT_OK_AND_ASSIGN(const ModelDir full, ModelDir::Open(root_ + "/full"));
  EXPECT_TRUE(full.has_tokenizer());
  EXPECT_EQ(full.tensors().size(), base.tensors().size());
}

TEST_F(LoadInputsTest, GateAndUpMayShareOneAFromJobToJob) {
  MakeBase();
  TrainerOptions options = FromBase();
  options.tuning.shared_experts_adapter = true;
  options.output.dir = root_ + "/shared";
  ASSERT_OK(TrainAndExport(options));
  ASSERT_OK_AND_ASSIGN(const ModelDir base, ModelDir::Open(root_ + "/base"));
  ASSERT_OK_AND_ASSIGN(const PeftAdapter shared,
                       ReadPeftAdapter(root_ + "/shared", base.spec()));
  EXPECT_EQ(shared.layout, ExpertLayout::kFused);
  const std::string experts = "model.layers.1.mlp.experts.";
  const LoraModule* module = shared.plan.Find(experts + "gate_up_proj");
  ASSERT_NE(module, nullptr);
  EXPECT_EQ(module->rank, 2);
  EXPECT_EQ(module->out, 24);

  // Continued, it stays one A and comes to the same values as in one go.
  options.training.learning_rate = 1e-30;
  options.model.init_adapter = root_ + "/shared";
  options.output.dir = root_ + "/again";
  ASSERT_OK(TrainAndExport(options));
  ASSERT_OK_AND_ASSIGN(const PeftAdapter again,
                       ReadPeftAdapter(root_ + "/again", base.spec()));
  for (size_t i = 0; i < shared.weights.size(); ++i) {
    EXPECT_EQ(again.plan.modules[i].path, shared.plan.modules[i].path);
    EXPECT_EQ(again.weights[i].a, shared.weights[i].a);
    EXPECT_EQ(again.weights[i].b, shared.weights[i].b);
  }

  // Asked for expert by expert, gate and up get a copy each.
  options.output.adapter_format = "peft_per_expert";
  options.output.dir = root_ + "/split";
  ASSERT_OK(TrainAndExport(options));
  ASSERT_OK_AND_ASSIGN(const PeftAdapter split,
                       ReadPeftAdapter(root_ + "/split", base.spec()));
  const auto weights_of = [&](const std::string& name) {
    const LoraModule* found = split.plan.Find(experts + name);
    EXPECT_NE(found, nullptr) << name;
    return split.weights[found - split.plan.modules.data()];
  };
  EXPECT_EQ(weights_of("gate_proj").a, weights_of("up_proj").a);
  EXPECT_NE(weights_of("gate_proj").b, weights_of("up_proj").b);
}

TEST_F(LoadInputsTest, AnAdapterThatIsNotTrainedGoesBackUnchanged) {
  MakeBase();
  TrainerOptions options = FromBase();
  options.output.dir = root_ + "/adapter";
  ASSERT_OK(TrainAndExport(options));
  options.model.init_adapter = root_ + "/adapter";
  options.output.dir = root_ + "/again";
  options.training.learning_rate = 1e-30;  // below the rounding of any weight
  ASSERT_OK(TrainAndExport(options));
  for (const char* name :
       {"adapter_model.safetensors", "adapter_config.json"}) {
    ASSERT_OK_AND_ASSIGN(const std::string a,
                         ReadFile(absl::StrCat(root_, "/adapter/", name)));
    ASSERT_OK_AND_ASSIGN(const std::string b,
                         ReadFile(absl::StrCat(root_, "/again/", name)));
    EXPECT_TRUE(a == b) << name;
  }
}

TEST_F(LoadInputsTest, ExpertsLieWhereTheCheckpointSaysIfItFits) {
  TrainerOptions options = Options();
  options.model.random_init = true;
  options.model.config = root_ + "/init/config.json";
  options.model.tokenizer = root_ + "/init";
  options.mesh = {.world_size = 2, .expert_parallel_size = 2};
  options.moe.spare_slots_per_rank = 1;
  PlacementShape shape{
      .num_layers = 2, .num_experts = 4, .num_ranks = 2, .slots_per_rank = 3};
  CheckpointManifest manifest;
  ASSERT_OK_AND_ASSIGN(
      manifest.placement,
      MakePlacement(shape, {{0, 1, 3, 2, 3, -1}, {3, 2, 1, 0, 0, 0}}, 5));
  const auto placed = [&]() -> absl::StatusOr<ExpertPlacement> {
    CADRE_ASSIGN_OR_RETURN(const TrainerInputs inputs,
                           LoadTrainerInputs(options, {}, &events_));
    return inputs.model->expert_parallel()->placement;
  };
  ASSERT_OK_AND_ASSIGN(ExpertPlacement at, placed());
  EXPECT_EQ(at, PlaceContiguous(shape).value());
  options.checkpoint.resume_path = root_;
  Write("manifest.json", manifest.ToJson());
  ASSERT_OK_AND_ASSIGN(at, placed());
  EXPECT_EQ(at, *manifest.placement);
  // Whoever leads the job knows better.
  auto given = std::make_shared<ExpertPlacement>(*manifest.placement);
  given->plan_epoch = 9;
  options.moe.placement = given;
  ASSERT_OK_AND_ASSIGN(at, placed());
  EXPECT_EQ(at.plan_epoch, 9);
  options.moe.placement = nullptr;
  options.moe.spare_slots_per_rank = 0;
  shape.slots_per_rank = 2;
  ASSERT_OK_AND_ASSIGN(at, placed());
  EXPECT_EQ(at, PlaceContiguous(shape).value());
}

TEST_F(LoadInputsTest, ErrorsNameTheFieldOrTheFile) {
  MakeBase();
  const auto status = [&](const TrainerOptions& options) {
    return LoadTrainerInputs(options, {}, &events_).status();
  };
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  TrainerOptions options = FromBase();
  options.data.max_seq_len = 129;
  EXPECT_THAT(status(options),
              StatusIs(kInvalid, AllOf(HasSubstr("data.max_seq_len is 129"),
                                       HasSubstr("128"))));
  options = FromBase();
  options.tuning.lora_target_modules = {"w9"};
  EXPECT_THAT(status(options), StatusIs(kInvalid, HasSubstr("w9")));
  options = FromBase();
  options.tuning.method = TuningOptions::Method::kFull;
  options.model.init_adapter = root_ + "/adapter";
  EXPECT_THAT(status(options), StatusIs(kInvalid, HasSubstr("model.adapter")));
  options = FromBase();
  options.data.train = {root_ + "/none.jsonl"};
  EXPECT_THAT(status(options).message(), HasSubstr("none.jsonl"));
  options = FromBase();
  options.model.path = root_ + "/nowhere";
  EXPECT_THAT(status(options).message(), HasSubstr("nowhere"));
}

}  // namespace
}  // namespace cadre
