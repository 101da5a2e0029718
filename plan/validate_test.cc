#include "plan/validate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>

#include "absl/strings/str_cat.h"
#include "plan/facts_cache.h"

namespace cadre {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;

// A job file with nothing but what is required.
v1::JobSpec Minimal() {
  v1::JobSpec spec;
  spec.set_version(1);
  spec.mutable_model()->set_path("/models/tiny");
  spec.mutable_data()->add_train("/data/train.jsonl");
  spec.mutable_resources()->set_workers(4);
  spec.mutable_resources()->set_backend("cpu");
  return spec;
}

// "field: message" of every finding.
std::string Findings(const Validated& validated) {
  std::string text;
  for (const v1::Diagnostic& item : validated.diagnostics.items()) {
    absl::StrAppend(&text, item.field(), ": ", item.message(), "\n");
  }
  return text;
}

TEST(ValidateJob, FillsInEveryDefault) {
  const Validated v = ValidateJob(Minimal(), {}, nullptr);
  ASSERT_TRUE(v.ok()) << Findings(v);
  EXPECT_EQ(v.spec.priority(), 50);
  EXPECT_EQ(v.spec.model().dtype(), "fp32");
  EXPECT_EQ(v.spec.data().max_seq_len(), 4096);
  EXPECT_EQ(v.spec.tuning().lora_alpha(), 32);
  EXPECT_EQ(v.spec.tuning().lora_target_modules_size(), 2);
  EXPECT_EQ(v.spec.training().epochs(), 1);
  EXPECT_EQ(v.spec.training().learning_rate(), 1e-4);
  EXPECT_EQ(v.spec.checkpoint().every(), "15m");
  EXPECT_EQ(v.spec.resources().min_workers(), 4);
  EXPECT_EQ(v.plan.world_size(), 4);
  EXPECT_EQ(v.plan.dense_replicas(), 4);
  EXPECT_EQ(v.plan.accumulation_steps(), 8);
  EXPECT_EQ(v.plan.tokens_per_step(), 32 * 4096);
  EXPECT_EQ(v.plan.total_steps(), 0);
  // Resolving again changes nothing.
  EXPECT_EQ(ResolveJob(v.spec, "/other").SerializeAsString(),
            v.spec.SerializeAsString());
}

TEST(ValidateJob, FewerWorkersArePlannedWhereTheyMayGoOn) {
  v1::JobSpec spec = Minimal();
  spec.mutable_resources()->set_min_workers(1);
  const Validated v = ValidateJob(spec, {}, nullptr);
  ASSERT_TRUE(v.ok()) << Findings(v);
  ASSERT_EQ(v.smaller.size(), 2u);  // 32 rows do not divide by 3
  EXPECT_EQ(v.smaller[0].world_size(), 2);
  EXPECT_EQ(v.smaller[0].accumulation_steps(), 16);
  EXPECT_EQ(v.smaller[0].tokens_per_step(), v.plan.tokens_per_step());
  EXPECT_EQ(v.smaller[1].world_size(), 1);
  // What the user fixed holds for the smaller ones, too.
  spec.mutable_parallelism()->set_expert_parallel_size(2);
  EXPECT_EQ(ValidateJob(spec, {}, nullptr).smaller.size(), 1u);
  spec.mutable_resources()->set_min_workers(3);
  const Validated none = ValidateJob(spec, {}, nullptr);
  EXPECT_TRUE(none.ok()) << Findings(none);
  EXPECT_TRUE(none.smaller.empty());
  EXPECT_THAT(Findings(none), HasSubstr("has to be replaced"));
}

TEST(ValidateJob, TheDefaultsOfFullTuningDiffer) {
  v1::JobSpec spec = Minimal();
  spec.mutable_tuning()->set_method("full");
  const Validated v = ValidateJob(spec, {}, nullptr);
  ASSERT_TRUE(v.ok()) << Findings(v);
  EXPECT_EQ(v.spec.training().learning_rate(), 1e-5);
  EXPECT_FALSE(v.spec.tuning().has_lora_rank());
}

TEST(ValidateJob, ExpertsMoveByDefaultWhereTheyCan) {
  v1::JobSpec spec = Minimal();
  spec.mutable_parallelism()->set_expert_parallel_size(4);
  spec.mutable_moe()->set_spare_slots_per_rank(1);
  Validated v = ValidateJob(spec, {}, nullptr);
  ASSERT_TRUE(v.ok()) << Findings(v);
  EXPECT_EQ(v.spec.moe().rebalance(), "auto");
  EXPECT_EQ(v.spec.moe().placement(), "eplb");
  EXPECT_EQ(v.spec.moe().rebalance_min_gain(), 0.03);
  spec = Minimal();
  spec.mutable_tuning()->set_method("full");
  EXPECT_EQ(ResolveJob(spec, "").moe().placement(), "greedy");
  spec.mutable_moe()->set_placement("contiguous");
  EXPECT_EQ(ResolveJob(spec, "").moe().rebalance(), "off");
  spec.mutable_moe()->clear_placement();
  spec.mutable_resources()->set_backend("cuda");
  EXPECT_EQ(ResolveJob(spec, "").moe().rebalance(), "auto");
}

TEST(ValidateJob, RelativePathsStartAtTheBaseFolder) {
  v1::JobSpec spec = Minimal();
  spec.mutable_model()->set_path("tiny");
  spec.mutable_data()->set_train(0, "sub/./*.jsonl");
  const Validated v = ValidateJob(spec, {.base_dir = "/home/me"}, nullptr);
  ASSERT_TRUE(v.ok()) << Findings(v);
  EXPECT_EQ(v.spec.model().path(), "/home/me/tiny");
  EXPECT_EQ(v.spec.data().train(0), "/home/me/sub/*.jsonl");
  EXPECT_THAT(Findings(ValidateJob(spec, {}, nullptr)),
              HasSubstr("model.path: 'tiny' is relative"));
  EXPECT_THAT(Findings(ValidateJob(
                  spec, {.base_dir = "/home/me", .allowed_roots = {"/models"}},
                  nullptr)),
              AllOf(HasSubstr("model.path: '/home/me/tiny' is outside"),
                    HasSubstr("data.train[0]")));
}

struct BadCase {
  const char* field;
  const char* part;  // of the message
  std::function<void(v1::JobSpec*)> spoil;
};

TEST(ValidateJob, EveryLimitNamesItsFieldAndNumbers) {
  using S = v1::JobSpec*;
  const std::vector<BadCase> cases = {
      {"version", "2", [](S s) { s->set_version(2); }},
      {"name", "Upper", [](S s) { s->set_name("Upper"); }},
      {"priority", "101", [](S s) { s->set_priority(101); }},
      {"max_runtime", "10s", [](S s) { s->set_max_runtime("10s"); }},
      {"model.path", "required", [](S s) { s->mutable_model()->clear_path(); }},
      {"model.dtype", "fp32 only",
       [](S s) { s->mutable_model()->set_dtype("bf16"); }},
      {"data.train", "required", [](S s) { s->mutable_data()->clear_train(); }},
      {"data.max_seq_len", "15 is outside 16",
       [](S s) { s->mutable_data()->set_max_seq_len(15); }},
      {"data.format", "csv", [](S s) { s->mutable_data()->set_format("csv"); }},
      {"tuning.lora_rank", "513",
       [](S s) { s->mutable_tuning()->set_lora_rank(513); }},
      {"tuning.lora_alpha", "0",
       [](S s) { s->mutable_tuning()->set_lora_alpha(0); }},
      {"tuning", "no meaning",
       [](S s) {
         s->mutable_tuning()->set_method("full");
         s->mutable_tuning()->set_lora_rank(8);
       }},
      {"training.max_steps", "epochs is set too",
       [](S s) {
         s->mutable_training()->set_epochs(1);
         s->mutable_training()->set_max_steps(5);
       }},
      {"training.global_batch_size", "6 rows do not divide over 4 workers",
       [](S s) { s->mutable_training()->set_global_batch_size(6); }},
      {"training.micro_batch_size", "8 rows of each worker",
       [](S s) { s->mutable_training()->set_micro_batch_size(3); }},
      {"training.learning_rate", "2",
       [](S s) { s->mutable_training()->set_learning_rate(2); }},
      {"training.warmup_ratio", "0.6",
       [](S s) { s->mutable_training()->set_warmup_ratio(0.6); }},
      {"training.beta1", "1", [](S s) { s->mutable_training()->set_beta1(1); }},
      {"moe.capacity_factor", "dropless",
       [](S s) { s->mutable_moe()->set_capacity_factor(1.5); }},
      {"moe.overflow_policy", "reject",
       [](S s) { s->mutable_moe()->set_overflow_policy("reject"); }},
      {"moe.placement", "random",
       [](S s) { s->mutable_moe()->set_placement("random"); }},
      {"moe.rebalance", "keeps in order",
       [](S s) {
         s->mutable_moe()->set_placement("contiguous");
         s->mutable_moe()->set_rebalance("auto");
       }},
      {"moe.rebalance_min_gain", "1.5 is outside 0 - 1",
       [](S s) { s->mutable_moe()->set_rebalance_min_gain(1.5); }},
      {"moe.spare_slots_per_rank", "9 is outside 0 - 8",
       [](S s) { s->mutable_moe()->set_spare_slots_per_rank(9); }},
      {"moe.spare_slots_per_rank", "expert_parallel_size 1",
       [](S s) {
         s->mutable_moe()->set_spare_slots_per_rank(1);
         s->mutable_parallelism()->set_expert_parallel_size(1);
       }},
      {"moe.spare_slots_per_rank", "stay empty with placement: greedy",
       [](S s) {
         s->mutable_moe()->set_spare_slots_per_rank(1);
         s->mutable_moe()->set_placement("greedy");
         s->mutable_parallelism()->set_expert_parallel_size(4);
       }},
      {"parallelism.replayed_blocks", "with activation_checkpointing: false",
       [](S s) {
         s->mutable_parallelism()->set_activation_checkpointing(false);
         s->mutable_parallelism()->set_replayed_blocks(2);
       }},
      {"parallelism", "expert_parallel_size is 3",
       [](S s) { s->mutable_parallelism()->set_expert_parallel_size(3); }},
      {"parallelism", "fsdp_shard_group_size is 8",
       [](S s) { s->mutable_parallelism()->set_fsdp_shard_group_size(8); }},
      {"checkpoint.every", "soon",
       [](S s) { s->mutable_checkpoint()->set_every("soon"); }},
      {"checkpoint.keep_last", "0",
       [](S s) { s->mutable_checkpoint()->set_keep_last(0); }},
      {"resources.workers", "2000",
       [](S s) { s->mutable_resources()->set_workers(2000); }},
      {"restarts.DEVICE_ERROR", "WORKER_LOST",
       [](S s) { (*s->mutable_restarts())["DEVICE_ERROR"] = 1; }},
  };
  for (const BadCase& bad : cases) {
    v1::JobSpec spec = Minimal();
    bad.spoil(&spec);
    const Validated v = ValidateJob(spec, {}, nullptr);
    EXPECT_FALSE(v.ok()) << bad.field;
    EXPECT_THAT(Findings(v), AllOf(HasSubstr(absl::StrCat(bad.field, ": ")),
                                   HasSubstr(bad.part)));
  }
}

TEST(ValidateJob, JobsOnGpusMayBeSharded) {
  v1::JobSpec spec = Minimal();
  spec.mutable_resources()->set_backend("cuda");
  spec.mutable_parallelism()->set_fsdp_shard_group_size(2);
  spec.mutable_parallelism()->set_expert_parallel_size(2);
  const Validated v = ValidateJob(spec, {}, nullptr);
  ASSERT_TRUE(v.ok()) << Findings(v);
  EXPECT_EQ(v.plan.dense_replicas(), 2);
}

TEST(ValidateJob, JobsOnGpusMayHaveAZLoss) {
  v1::JobSpec spec = Minimal();
  spec.mutable_resources()->set_backend("cuda");
  spec.mutable_moe()->set_z_loss_coef(1e-3);
  const Validated v = ValidateJob(spec, {}, nullptr);
  EXPECT_TRUE(v.ok()) << Findings(v);
}

TEST(ValidateJob, FindsAllProblemsInOnePass) {
  v1::JobSpec spec = Minimal();
  spec.set_priority(-1);
  spec.mutable_training()->set_schedule("step");
  spec.mutable_output()->set_adapter_format("zip");
  EXPECT_EQ(ValidateJob(spec, {}, nullptr).diagnostics.total(), 3);
}

TEST(LoadModelFacts, SayWhatIsWrongWithTheFolder) {
  v1::ModelSpec spec;
  spec.set_path("/does/not/exist");
  const ModelFacts facts = LoadModelFacts(spec);
  EXPECT_THAT(std::string(facts.status.message()),
              HasSubstr("there is no folder /does/not/exist"));
  const Validated v = ValidateJob(Minimal(), {}, &facts);
  EXPECT_THAT(Findings(v), HasSubstr("model.path: there is no folder"));
}

TEST(ModelFactsCache, ReadsAgainWhatHasChanged) {
  namespace fs = std::filesystem;
  const fs::path dir = fs::path(::testing::TempDir()) / "facts";
  fs::create_directories(dir);
  const auto write = [&dir](const std::string& text) {
    std::ofstream(dir / "config.json") << text;
  };
  v1::ModelSpec spec;
  spec.set_path(dir.string());
  spec.set_init("random");
  ModelFactsCache cache;
  write("{}");
  const auto bad = cache.Load(spec);
  EXPECT_FALSE(bad->status.ok());
  write("[]");
  EXPECT_NE(cache.Load(spec)->status.message(), bad->status.message());
}

TEST(ValidateJob, ChecksAgainstTheModel) {
  ModelFacts facts;
  facts.has_tokenizer = true;
  facts.spec = *ParseModelSpec(R"({
    "model_type": "qwen3_moe", "hidden_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "intermediate_size": 48, "moe_intermediate_size": 16, "num_experts": 4,
    "num_experts_per_tok": 2, "norm_topk_prob": true, "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0, "hidden_act": "silu", "vocab_size": 128,
    "max_position_embeddings": 1024, "tie_word_embeddings": false})");
  v1::JobSpec spec = Minimal();
  EXPECT_THAT(Findings(ValidateJob(spec, {}, &facts)),
              HasSubstr("data.max_seq_len: 4096 is above the 1024"));
  spec.mutable_data()->set_max_seq_len(512);
  const Validated good = ValidateJob(spec, {}, &facts);
  ASSERT_TRUE(good.ok()) << Findings(good);
  EXPECT_EQ(good.plan.lora_matches_size(), 2);
  // q: 16 (32 + 32), v: 16 (32 + 16), in 2 layers.
  EXPECT_EQ(good.plan.trainable_parameters(), 2 * (16 * 64 + 16 * 48));
  // The planner's choice, and the memory it rests on.
  EXPECT_EQ(good.plan.recompute(), "none");
  EXPECT_EQ(good.plan.expert_slots_per_rank(), 4);
  EXPECT_EQ(good.plan.assumed_memory_bytes(), 8'000'000'000);
  EXPECT_THAT(good.plan.reasons(), Contains(HasSubstr("recompute none")));
  EXPECT_FALSE(good.spec.parallelism().activation_checkpointing());
  ASSERT_GT(good.plan.memory_size(), 5);
  EXPECT_EQ(good.plan.memory(0).name(), "dense weights");
  // Too little: with everything recomputed the largest term is named.
  v1::JobSpec small = spec;
  small.mutable_resources()->set_min_device_memory_bytes(1'000'000);
  const Validated refused = ValidateJob(small, {}, &facts);
  EXPECT_THAT(Findings(refused),
              AllOf(HasSubstr("resources.min_device_memory_bytes: even with"),
                    HasSubstr("the largest part is")));
  // Between the two, and nothing to be sharded: blocks are replayed.
  small.mutable_parallelism()->set_fsdp_shard_group_size(1);
  small.mutable_parallelism()->set_expert_parallel_size(1);
  int64_t total = 0;
  for (const v1::MemoryTerm& term : good.plan.memory()) total += term.bytes();
  small.mutable_resources()->set_min_device_memory_bytes(total - 1000);
  const Validated tight = ValidateJob(small, {}, &facts);
  ASSERT_TRUE(tight.ok()) << Findings(tight);
  EXPECT_NE(tight.plan.recompute(), "none");
  EXPECT_GT(tight.plan.replayed_blocks(), 0);
  EXPECT_TRUE(tight.plan.activation_checkpointing());
  EXPECT_TRUE(tight.spec.parallelism().activation_checkpointing());
  EXPECT_EQ(tight.plan.worker_memory_bytes(), total - 1000);
  // What was resolved plans the same again.
  EXPECT_EQ(ValidateJob(tight.spec, {}, &facts).plan.memory_size(),
            tight.plan.memory_size());

  // Experts: gate and up with an A each, or one between them.
  spec.mutable_tuning()->add_lora_target_modules("mlp.experts.gate_up_proj");
  EXPECT_EQ(ValidateJob(spec, {}, &facts).plan.trainable_parameters(),
            2 * 4 * 16 * 2 * (32 + 16));
  spec.mutable_tuning()->set_lora_expert_layout("shared");
  EXPECT_EQ(ValidateJob(spec, {}, &facts).plan.trainable_parameters(),
            2 * 4 * 16 * (32 + 2 * 16));
  spec.mutable_tuning()->add_lora_target_modules("q_prj");
  EXPECT_THAT(Findings(ValidateJob(spec, {}, &facts)),
              AllOf(HasSubstr("tuning.lora_target_modules"), HasSubstr("q_prj"),
                    HasSubstr("q_proj")));
}

}  // namespace
}  // namespace cadre
