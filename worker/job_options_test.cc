#include "worker/job_options.h"

#include "base/status_matchers.h"

namespace cadre {
namespace {

using cadre::testing::StatusIs;
using cadre::v1::Assignment;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Assignment SmallAssignment() {
  Assignment assignment;
  assignment.set_job("jobs/a");
  assignment.set_attempt_epoch(3);
  assignment.set_rank(1);
  assignment.set_total_steps(50);
  assignment.set_checkpoint_dir("/c");
  assignment.set_output_dir("/o");
  assignment.mutable_plan()->set_world_size(4);
  assignment.mutable_plan()->set_fsdp_shard_group_size(2);
  assignment.mutable_plan()->set_expert_parallel_size(4);
  assignment.mutable_plan()->set_micro_batch_size(2);
  auto* spec = assignment.mutable_spec();
  spec->mutable_model()->set_path("/m");
  spec->mutable_data()->add_train("/d.jsonl");
  return assignment;
}

TEST(JobOptionsTest, UnsetFieldsGetTheDefaultsOfTheJobFile) {
  ASSERT_OK_AND_ASSIGN(const TrainerOptions options,
                       MakeTrainerOptions(SmallAssignment()));
  EXPECT_EQ(options.job, "jobs/a");
  EXPECT_EQ(options.rank, 1);
  EXPECT_EQ(options.mesh, (MeshSpec{.world_size = 4,
                                    .fsdp_shard_group_size = 2,
                                    .expert_parallel_size = 4}));
  EXPECT_EQ(options.data.max_seq_len, 4096);
  EXPECT_EQ(options.tuning.lora_rank, 16);
  EXPECT_EQ(options.tuning.lora_alpha, 32.0);
  EXPECT_THAT(options.tuning.lora_target_modules,
              ElementsAre("q_proj", "v_proj"));
  EXPECT_EQ(options.training.max_steps, 50);
  EXPECT_EQ(options.training.micro_batch_size, 2);
  EXPECT_EQ(options.training.learning_rate, 1e-4);
  EXPECT_EQ(options.training.schedule, ScheduleKind::kCosine);
  EXPECT_EQ(options.checkpoint.every, absl::Minutes(15));
  EXPECT_FALSE(options.checkpoint.seal_by_trainer);
}

TEST(JobOptionsTest, DerivedDefaultsFollowWhatIsSet) {
  Assignment assignment = SmallAssignment();
  auto* tuning = assignment.mutable_spec()->mutable_tuning();
  tuning->set_lora_rank(8);
  ASSERT_OK_AND_ASSIGN(TrainerOptions options, MakeTrainerOptions(assignment));
  EXPECT_EQ(options.tuning.lora_alpha, 16.0);
  tuning->set_method("full");
  assignment.mutable_spec()->mutable_checkpoint()->set_every("90s");
  ASSERT_OK_AND_ASSIGN(options, MakeTrainerOptions(assignment));
  EXPECT_EQ(options.training.learning_rate, 1e-5);
  EXPECT_EQ(options.checkpoint.every, absl::Seconds(90));
}

TEST(JobOptionsTest, TheOptimizerIsLeftOutOnlyFromAForeignCheckpoint) {
  Assignment assignment = SmallAssignment();
  auto* checkpoint = assignment.mutable_spec()->mutable_checkpoint();
  checkpoint->set_resume_from("/other");
  checkpoint->set_resume_optimizer(false);
  assignment.set_resume_path("/other");
  ASSERT_OK_AND_ASSIGN(TrainerOptions options, MakeTrainerOptions(assignment));
  EXPECT_FALSE(options.checkpoint.resume_optimizer);
  assignment.set_resume_path("/c/step-00000010.attempt-2");
  assignment.set_resume_step(10);
  ASSERT_OK_AND_ASSIGN(options, MakeTrainerOptions(assignment));
  EXPECT_TRUE(options.checkpoint.resume_optimizer);
}

TEST(JobOptionsTest, RefusesWhatTheTrainerCannotDo) {
  Assignment assignment = SmallAssignment();
  assignment.mutable_spec()->mutable_moe()->set_overflow_policy("reject");
  EXPECT_THAT(MakeTrainerOptions(assignment),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("moe.overflow_policy: reject")));
  assignment = SmallAssignment();
  assignment.mutable_spec()->mutable_tuning()->set_method("qlora");
  EXPECT_THAT(MakeTrainerOptions(assignment),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("tuning.method: 'qlora'")));
  assignment = SmallAssignment();
  assignment.set_rank(4);
  EXPECT_THAT(MakeTrainerOptions(assignment),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("rank 4 of a world of 4")));
}

}  // namespace
}  // namespace cadre
