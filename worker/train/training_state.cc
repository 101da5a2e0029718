#include "worker/train/training_state.h"

#include <deque>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "model/sha256.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/device/transfer.h"
#include "worker/shard/owned_slice.h"
#include "worker/train/step_agreement.h"

namespace cadre {
namespace {

// Tensors for who reads and writes host memory: copies of a device's, or the
// tensors themselves. The copies live as long as this.
class HostCopies {
 public:
  explicit HostCopies(const Exec& exec) : exec_(exec) {}
  absl::StatusOr<Tensor> Of(const Tensor& tensor) {
    if (exec_.backend == Backend::kCpu) return tensor;
    std::vector<char>& bytes = copies_.emplace_back(tensor.num_bytes());
    CADRE_RETURN_IF_ERROR(CopyToHost(exec_, tensor, bytes.data()));
    return Tensor(bytes.data(), tensor.dtype(), tensor.dims());
  }

 private:
  const Exec exec_;
  std::deque<std::vector<char>> copies_;
};

const char* MethodName(const TrainerOptions& options) {
  return options.tuning.method == TuningOptions::Method::kLora ? "lora"
                                                               : "full";
}

absl::Status Mismatch(const TrainerOptions& options, absl::string_view what,
                      absl::string_view theirs, absl::string_view ours,
                      absl::string_view remedy) {
  return absl::FailedPreconditionError(
      absl::StrCat("checkpoint ", options.checkpoint.resume_path, " has ", what,
                   " ", theirs, ", the job ", ours, "; ", remedy));
}

absl::Status CheckBelongs(const TrainingState& state,
                          const CheckpointReader& reader) {
  const TrainerOptions& options = *state.options;
  const CheckpointManifest& manifest = reader.manifest();
  if (manifest.method != MethodName(options)) {
    return Mismatch(options, "tuning.method", manifest.method,
                    MethodName(options), "use the same method");
  }
  if (manifest.base_fingerprint != state.base_fingerprint) {
    return Mismatch(options, "base model", manifest.base_fingerprint,
                    state.base_fingerprint,
                    "use the base model that it was trained on");
  }
  std::set<std::string> ours;
  for (const Parameter* parameter : state.parameters->Trainable()) {
    ours.insert(parameter->name);
  }
  for (const std::string& name : reader.WeightNames()) {
    if (!ours.contains(name)) {
      return absl::FailedPreconditionError(absl::StrCat(
          "checkpoint ", options.checkpoint.resume_path, " has a tensor ", name,
          " that this job does not train; use the same "
          "tuning.lora_target_modules"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckData(const TrainingState& state, const RankState& stored) {
  const TrainerOptions& options = *state.options;
  const TrainingOptions& training = options.training;
  const char* remedy =
      "use the same value, or checkpoint.resume_optimizer: false to take the "
      "weights only";
  if (stored.global_batch_size != training.global_batch_size) {
    return Mismatch(options, "training.global_batch_size",
                    absl::StrCat(stored.global_batch_size),
                    absl::StrCat(training.global_batch_size), remedy);
  }
  if (stored.seed != training.seed) {
    return Mismatch(options, "training.seed", absl::StrCat(stored.seed),
                    absl::StrCat(training.seed), remedy);
  }
  return absl::OkStatus();
}

// A job goes on from its own checkpoint with the options that wrote it; another
// job may start from it with others.
absl::Status CheckConfig(const TrainingState& state,
                         const CheckpointManifest& manifest) {
  const TrainerOptions& options = *state.options;
  if (manifest.job != options.job || manifest.config_hash.empty()) {
    return absl::OkStatus();
  }
  const std::string ours = ConfigHash(options);
  if (manifest.config_hash == ours) return absl::OkStatus();
  return Mismatch(options, absl::StrCat("of ", options.job, " config_hash"),
                  manifest.config_hash, ours,
                  "an option that decides the result (data, tuning, training "
                  "or moe) changed between two attempts, or a worker of "
                  "another release reads it differently: run the release that "
                  "wrote it, or start a new job with checkpoint.resume_from");
}

std::string Encode(const std::vector<CheckpointFile>& files) {
  std::string text;
  for (const CheckpointFile& file : files) {
    absl::StrAppend(&text, file.path, "\n", file.bytes, "\n", file.sha256,
                    "\n");
  }
  return text;
}

absl::StatusOr<std::vector<CheckpointFile>> Decode(const std::string& text) {
  std::vector<CheckpointFile> files;
  std::vector<std::string> lines = absl::StrSplit(text, '\n');
  for (size_t i = 0; i + 2 < lines.size(); i += 3) {
    CheckpointFile file{.path = lines[i], .sha256 = lines[i + 2]};
    if (!absl::SimpleAtoi(lines[i + 1], &file.bytes)) {
      return absl::InternalError("a peer's list of files is malformed");
    }
    files.push_back(std::move(file));
  }
  return files;
}

// Every rank's text on rank 0, in rank order; elsewhere empty. One character
// travels as one number: the lists are short, the call is there.
absl::StatusOr<std::string> GatherText(Communicator* world,
                                       const std::string& mine) {
  std::vector<int64_t> lengths(world->size(), 0);
  lengths[world->rank()] = static_cast<int64_t>(mine.size());
  CADRE_RETURN_IF_ERROR(world->AllReduceSum(absl::MakeSpan(lengths)));
  const bool root = world->rank() == 0;
  std::vector<int64_t> send(mine.begin(), mine.end());
  std::vector<int64_t> send_counts(world->size(), 0);
  send_counts[0] = lengths[world->rank()];
  std::vector<int64_t> recv_counts(world->size(), 0);
  if (root) recv_counts = lengths;
  int64_t total = 0;
  for (int64_t count : recv_counts) total += count;
  std::vector<int64_t> recv(total);
  CADRE_RETURN_IF_ERROR(world->AllToAllV(absl::Span<const int64_t>(send),
                                         send_counts, absl::MakeSpan(recv),
                                         recv_counts));
  return std::string(recv.begin(), recv.end());
}

}  // namespace

std::string ConfigHash(const TrainerOptions& o) {
  const TrainingOptions& t = o.training;
  Sha256 sha;
  sha.Update(absl::StrCat(MethodName(o), "|", o.tuning.lora_rank, "|",
                          o.tuning.lora_alpha, "|", o.tuning.lora_dropout, "|",
                          absl::StrJoin(o.tuning.lora_target_modules, ","), "|",
                          o.tuning.rank_stabilized, "|",
                          absl::StrJoin(o.data.train, ",")));
  sha.Update(absl::StrCat("|", o.data.format, "|", o.data.max_seq_len, "|",
                          o.data.too_long, "|", o.data.packing, "|",
                          o.data.shuffle, "|", o.data.loss_on));
  sha.Update(absl::StrCat("|", t.max_steps, "|", t.epochs, "|",
                          t.global_batch_size, "|", t.learning_rate, "|",
                          static_cast<int>(t.schedule), "|", t.warmup_ratio,
                          "|", t.min_lr_ratio, "|", t.weight_decay));
  sha.Update(absl::StrCat("|", t.beta1, "|", t.beta2, "|", t.epsilon, "|",
                          t.max_grad_norm, "|", t.seed));
  sha.Update(absl::StrCat(
      "|", static_cast<int>(o.moe.overflow), "|", o.moe.capacity_factor, "|",
      o.moe.aux_loss_coef.value_or(-1), "|", o.moe.z_loss_coef));
  return sha.HexDigest();
}

absl::StatusOr<FilesSaved> SaveRank(const TrainingState& state,
                                    const TrainingCounters& counters,
                                    double loss) {
  const TrainerOptions& options = *state.options;
  const bool lora = options.tuning.method == TuningOptions::Method::kLora;
  RankFiles files;
  files.weights_stem = lora ? "adapter" : "weights";
  files.state = {
      .rank = options.rank,
      .step = counters.step,
      .data_cursor = state.data->cursor().Serialize(),
      .seed = options.training.seed,
      .trained_tokens = counters.trained_tokens,
      .trained_targets = counters.trained_targets,
      .nonfinite_total = counters.nonfinite_total,
      .nonfinite_in_row = counters.nonfinite_in_row,
      .optimizer_updates = state.optimizer->num_updates(),
      .global_batch_size = options.training.global_batch_size,
  };
  // What several ranks hold is written by the one that counts it.
  std::vector<TensorPiece> weights, moments;
  HostCopies copies(state.exec);
  for (const Optimizer::Slot& slot : state.optimizer->slots()) {
    if (!slot.slice.counted) continue;
    const Parameter& parameter = *slot.slice.parameter;
    for (const Stretch& part : HomeStretches(slot.slice)) {
      const auto add = [&](std::vector<TensorPiece>* to, const char* suffix,
                           const Tensor& of) -> absl::Status {
        CADRE_ASSIGN_OR_RETURN(
            const Tensor value,
            copies.Of(FlatPart(of, part.begin, part.begin + part.size)));
        to->push_back({.name = parameter.name + suffix,
                       .global_shape = parameter.global_shape,
                       .begin = part.global_begin,
                       .value = value});
        return absl::OkStatus();
      };
      CADRE_RETURN_IF_ERROR(add(&weights, "", slot.weight()));
      CADRE_RETURN_IF_ERROR(add(&moments, ".m", slot.m));
      CADRE_RETURN_IF_ERROR(add(&moments, ".v", slot.v));
    }
  }
  files.weights = weights;
  files.optimizer = moments;
  FilesSaved saved;
  saved.step = counters.step;
  saved.loss = loss;
  saved.dir =
      absl::StrCat(options.checkpoint.dir, "/",
                   CheckpointDirName(counters.step, options.attempt_epoch));
  CADRE_ASSIGN_OR_RETURN(saved.files, WriteRankFiles(saved.dir, files));
  saved.manifest = {.job = options.job,
                    .attempt_epoch = options.attempt_epoch,
                    .step = counters.step,
                    .method = MethodName(options),
                    .base_fingerprint = state.base_fingerprint,
                    .config_hash = ConfigHash(options),
                    .mesh = options.mesh};
  if (state.experts != nullptr) {
    saved.manifest.placement = state.experts->placement;
  }
  return saved;
}

absl::StatusOr<std::string> SealTogether(Communicator* world,
                                         const FilesSaved& saved) {
  CADRE_ASSIGN_OR_RETURN(const std::string all,
                         GatherText(world, Encode(saved.files)));
  std::string sha256;
  const absl::Status sealed = [&]() -> absl::Status {
    if (world->rank() != 0) return absl::OkStatus();
    CheckpointManifest manifest = saved.manifest;
    CADRE_ASSIGN_OR_RETURN(manifest.files, Decode(all));
    CADRE_ASSIGN_OR_RETURN(const SealedCheckpoint done,
                           SealCheckpoint(saved.dir, manifest));
    sha256 = done.manifest_sha256;
    return absl::OkStatus();
  }();
  CADRE_RETURN_IF_ERROR(AgreeOnStatus(world, "sealing a checkpoint", sealed));
  return sha256;
}

absl::StatusOr<TrainingCounters> Resume(const TrainingState& state) {
  const TrainerOptions& options = *state.options;
  CADRE_ASSIGN_OR_RETURN(
      const std::unique_ptr<CheckpointReader> reader,
      CheckpointReader::Open(options.checkpoint.resume_path,
                             options.checkpoint.resume_manifest_sha256));
  CADRE_RETURN_IF_ERROR(CheckBelongs(state, *reader));
  // Every rank reads what it updates, whoever wrote it.
  const auto for_each_part = [&](auto read) -> absl::Status {
    for (const Optimizer::Slot& slot : state.optimizer->slots()) {
      for (const Stretch& part : StretchesOf(slot.slice)) {
        CADRE_RETURN_IF_ERROR(read(slot, part));
      }
    }
    return absl::OkStatus();
  };
  // read(host tensor), then to where the optimizer's is.
  const auto fill = [&](const Tensor& of, const Stretch& part,
                        auto read) -> absl::Status {
    const Tensor to = FlatPart(of, part.begin, part.begin + part.size);
    if (state.exec.backend == Backend::kCpu) return read(to);
    HostCopies staging(state.exec);
    CADRE_ASSIGN_OR_RETURN(const Tensor host, staging.Of(to));
    CADRE_RETURN_IF_ERROR(read(host));
    return CopyToDevice(state.exec, host.raw(), to);
  };
  CADRE_RETURN_IF_ERROR(
      for_each_part([&](const Optimizer::Slot& slot, const Stretch& part) {
        const Parameter& parameter = *slot.slice.parameter;
        return fill(slot.weight(), part, [&](const Tensor& out) {
          return reader->ReadWeight(parameter.name, parameter.global_shape,
                                    part.global_begin, out);
        });
      }));
  TrainingCounters counters;
  if (!options.checkpoint.resume_optimizer) return counters;
  const RankState& stored = reader->shared_state();
  CADRE_RETURN_IF_ERROR(CheckData(state, stored));
  CADRE_RETURN_IF_ERROR(CheckConfig(state, reader->manifest()));
  CADRE_RETURN_IF_ERROR(for_each_part(
      [&](const Optimizer::Slot& slot, const Stretch& part) -> absl::Status {
        const Parameter& parameter = *slot.slice.parameter;
        for (const auto& [suffix, moment] :
             {std::pair{".m", slot.m}, std::pair{".v", slot.v}}) {
          CADRE_RETURN_IF_ERROR(fill(moment, part, [&](const Tensor& out) {
            return reader->ReadOptimizer(parameter.name + suffix,
                                         parameter.global_shape,
                                         part.global_begin, out);
          }));
        }
        return absl::OkStatus();
      }));
  state.optimizer->set_num_updates(stored.optimizer_updates);
  CADRE_ASSIGN_OR_RETURN(const DataCursor cursor,
                         DataCursor::Parse(stored.data_cursor));
  CADRE_RETURN_IF_ERROR(state.data->Seek(cursor));
  counters = {.step = stored.step,
              .trained_tokens = stored.trained_tokens,
              .trained_targets = stored.trained_targets,
              .nonfinite_total = stored.nonfinite_total,
              .nonfinite_in_row = stored.nonfinite_in_row};
  return counters;
}

}  // namespace cadre
