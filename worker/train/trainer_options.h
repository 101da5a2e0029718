#ifndef CADRE_WORKER_TRAIN_TRAINER_OPTIONS_H_
#define CADRE_WORKER_TRAIN_TRAINER_OPTIONS_H_

// What one rank of one attempt needs to know, without protos: field for field
// what docs/job_file.md calls model, data, tuning, training, checkpoint and
// output, defaults applied by the caller where the job file has a derived one.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "kernels/router/router_overflow.h"
#include "plan/expert_placement.h"
#include "plan/mesh.h"
#include "worker/train/schedule.h"

namespace cadre {

struct TrainModelOptions {
  std::string path;      // folder with config.json and safetensors
  std::string revision;  // free text, kept in the adapter's manifest
  // With random_init: a config.json to build the model from (path may be "").
  std::string config;
  bool random_init = false;
  std::string init_adapter;  // PEFT folder to start from; "": a new adapter
  std::string tokenizer;     // folder, when it is not path
  // "bf16" or "fp32", of activations and weight matrices; "": bf16 on CUDA. The
  // CPU computes in fp32 whatever it says.
  std::string dtype;
  int replayed_blocks = 0;  // as in ModelOptions
};

struct TrainDataOptions {
  std::vector<std::string> train, eval;  // files or globs
  std::string format;                    // "" = auto
  int64_t max_seq_len = 4096;
  std::string too_long;  // "" = truncate
  bool packing = true;
  bool shuffle = true;
  std::string loss_on;  // "" = assistant
};

struct TuningOptions {
  enum class Method { kLora, kFull } method = Method::kLora;
  int lora_rank = 16;
  double lora_alpha = 32.0;
  double lora_dropout = 0.0;
  std::vector<std::string> lora_target_modules = {"q_proj", "v_proj"};
  bool rank_stabilized = false;         // alpha / sqrt(r) instead of alpha / r
  bool shared_experts_adapter = false;  // lora_expert_layout: shared
};

struct TrainMoeOptions {
  OverflowPolicy overflow = OverflowPolicy::kDropless;
  double capacity_factor = 1.25;
  std::optional<double> aux_loss_coef;  // unset: the model's own
  double z_loss_coef = 0.0;
  // With expert parallelism: slots for copies on each rank and layer, and where
  // the experts lie at the first step. No placement: as in the checkpoint that
  // the job starts from, if it fits; else in order.
  int64_t spare_slots_per_rank = 0;
  std::shared_ptr<const ExpertPlacement> placement;
};

struct TrainingOptions {
  double epochs = 1.0;    // used when max_steps is 0
  int64_t max_steps = 0;  // 0: from epochs
  int64_t global_batch_size = 32;
  int64_t micro_batch_size = 1;
  double learning_rate = 1e-4;
  ScheduleKind schedule = ScheduleKind::kCosine;
  double warmup_ratio = 0.03;
  double min_lr_ratio = 0.1;
  double weight_decay = 0.0;
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8;
  double max_grad_norm = 1.0;  // 0: no clipping
  uint64_t seed = 1;
  int max_nonfinite_steps = 10;
  int64_t eval_every = 0;  // 0: at the end only
  int64_t log_every = 1;
};

struct TrainCheckpointOptions {
  // Folder of the job's checkpoints; "" switches saving off.
  std::string dir;
  absl::Duration every = absl::Minutes(15);  // zero: by steps only
  int64_t every_steps = 0;                   // 0: by time only
  int keep_last = 3;
  int64_t keep_every_steps = 0;
  // A sealed checkpoint folder to start from; "": from the beginning.
  std::string resume_path;
  std::string resume_manifest_sha256;  // "": not compared
  // False: take the weights only and start at step 0.
  bool resume_optimizer = true;
  // True: the ranks agree on the files over the world communicator, rank 0
  // seals at once and applies retention. False: whoever observes
  // OnFilesSaved decides (the coordinator), and calls SealCheckpoint.
  bool seal_by_trainer = false;
};

struct TrainOutputOptions {
  std::string dir;             // "": nothing is exported
  std::string adapter_format;  // "" or auto, peft_per_expert, peft_fused
};

struct TrainerOptions {
  std::string job;  // "jobs/j"
  int64_t attempt_epoch = 1;
  MeshSpec mesh;
  int rank = 0;
  // Link domains by rank, for counting how far rows of experts go; may be
  // empty.
  std::vector<std::string> link_domains;
  TrainModelOptions model;
  TrainDataOptions data;
  TuningOptions tuning;
  TrainMoeOptions moe;
  TrainingOptions training;
  TrainCheckpointOptions checkpoint;
  TrainOutputOptions output;
  // Of this worker, not of the job: NVTX ranges on a GPU.
  bool nvtx = false;
};

}  // namespace cadre

#endif  // CADRE_WORKER_TRAIN_TRAINER_OPTIONS_H_
