#ifndef CADRE_BASE_METRICS_NAMES_H_
#define CADRE_BASE_METRICS_NAMES_H_

// Every metric of Cadre: name, type, help. Prefix cadre_, base units, counters
// end in _total. No label may hold an expert, a layer, a user or free text;
// `job` appears only where the comment says so, and its series go when the job
// ends.

#include <vector>

namespace cadre {

enum class MetricType { kCounter, kGauge, kHistogram };

struct MetricDef {
  const char* name;
  MetricType type;
  const char* help;
  // Upper bounds of a histogram's buckets.
  enum class Buckets { kNone, kFast, kSlow, kCounts } buckets = Buckets::kNone;
};

// Bounds in seconds: calls and commits (1 ms - 10 s), work (0.1 s - 1 h); or
// powers of two (1 - 2048).
std::vector<double> BucketBounds(MetricDef::Buckets buckets);

namespace metric {

using enum MetricType;
using enum MetricDef::Buckets;

// ---- every daemon ----------------------------------------------------------
// Labels: version; on workers also commit (empty unless the build sets it),
// backend.
inline constexpr MetricDef kBuildInfo{"cadre_build_info", kGauge,
                                      "Always 1; labels tell the build."};
// Labels: name certificate|ca.
inline constexpr MetricDef kCertificateExpiry{
    "cadre_certificate_expiry_timestamp_seconds", kGauge,
    "Unix time at which the first certificate of a TLS file in use expires; no "
    "series without the file."};

// ---- coordinator -----------------------------------------------------------
// Labels: state.
inline constexpr MetricDef kJobs{"cadre_jobs", kGauge, "Jobs by state."};
// Labels: reason.
inline constexpr MetricDef kQueueJobs{
    "cadre_queue_jobs", kGauge, "Queued jobs by the reason they wait for."};
// Labels: result ok|replayed|refused.
inline constexpr MetricDef kJobsCreated{"cadre_jobs_created_total", kCounter,
                                        "CreateJob calls by result."};
// Labels: to, cause.
inline constexpr MetricDef kJobTransitions{
    "cadre_job_transitions_total", kCounter,
    "State changes of jobs by the state entered and the failure cause."};
// Labels: cause.
inline constexpr MetricDef kJobRestarts{
    "cadre_job_restarts_total", kCounter,
    "Attempts that ended early and led to recovery, by cause."};
// Labels: cause.
inline constexpr MetricDef kJobFailures{"cadre_job_failures_total", kCounter,
                                        "Jobs that failed, by cause."};
inline constexpr MetricDef kJobQueueWait{
    "cadre_job_queue_wait_seconds", kHistogram, "Time from QUEUED to STARTING.",
    kSlow};
inline constexpr MetricDef kJobRecovery{
    "cadre_job_recovery_seconds", kHistogram,
    "Time from the end of a failed attempt to the next one's training.", kSlow};
// Labels: job, state.
inline constexpr MetricDef kJobInfo{
    "cadre_job_info", kGauge,
    "Always 1; live jobs only, with their present state."};
// Labels: job.
inline constexpr MetricDef kJobGoodput{
    "cadre_job_goodput_ratio", kGauge,
    "Steps done times the time of a step over the time since the job first "
    "started; live jobs only."};
// Labels: job.
inline constexpr MetricDef kJobProgress{
    "cadre_job_progress_ratio", kGauge,
    "Steps done over steps in all; live jobs only."};
// Labels: state, admin_state.
inline constexpr MetricDef kWorkers{"cadre_workers", kGauge,
                                    "Registered workers by state."};
// Labels: verdict lost|unreachable.
inline constexpr MetricDef kLeaseExpirations{
    "cadre_worker_lease_expirations_total", kCounter,
    "Worker leases that ran out, by the verdict on the worker."};
// Labels: result ok|fenced|error.
inline constexpr MetricDef kSyncRequests{"cadre_sync_requests_total", kCounter,
                                         "Sync calls of workers by result."};
// Labels: method, code.
inline constexpr MetricDef kGrpcRequests{"cadre_grpc_requests_total", kCounter,
                                         "Finished gRPC calls."};
// Labels: method.
inline constexpr MetricDef kGrpcSeconds{"cadre_grpc_request_seconds",
                                        kHistogram,
                                        "Duration of unary gRPC calls.", kFast};
inline constexpr MetricDef kGrpcInflight{
    "cadre_grpc_inflight", kGauge, "Unary gRPC calls that wait for an answer."};
inline constexpr MetricDef kWatchStreams{"cadre_watch_streams", kGauge,
                                         "Open WatchJob streams."};
// Labels: reason.
inline constexpr MetricDef kAuthDenials{
    "cadre_auth_denials_total", kCounter,
    "Calls refused by the access list, by the error's reason."};
inline constexpr MetricDef kDatasetValidation{
    "cadre_dataset_validation_seconds", kHistogram,
    "Duration of the full check of a job's data set.", kSlow};
// Labels: result applied|skipped.
inline constexpr MetricDef kMoeRebalances{
    "cadre_moe_rebalances_total", kCounter,
    "Decisions on the placement of a job's experts: applied, put in force "
    "while training; skipped, a look at the loads after which nothing moves."};
inline constexpr MetricDef kJournalCommit{
    "cadre_journal_commit_seconds", kHistogram,
    "Duration of one journal transaction, the disk write included.", kFast};
inline constexpr MetricDef kJournalBatch{
    "cadre_journal_batch_mutations", kHistogram,
    "Mutations of one journal transaction.", kCounts};
inline constexpr MetricDef kJournalFree{
    "cadre_journal_free_bytes", kGauge,
    "Free space of the disk that holds the journal."};
inline constexpr MetricDef kJournalWritable{
    "cadre_journal_writable", kGauge,
    "1; 0 while the disk of the journal is full and no new job is taken."};
inline constexpr MetricDef kJournalLastBackup{
    "cadre_journal_last_backup_timestamp_seconds", kGauge,
    "Unix time of the last copy of state.db that was made and checked."};
// Labels: file db|wal.
inline constexpr MetricDef kJournalBytes{"cadre_journal_bytes", kGauge,
                                         "Size of the journal's files."};
inline constexpr MetricDef kGeneration{
    "cadre_coordinator_generation", kGauge,
    "Fence: grows by one at each start of the coordinator."};

// ---- worker ----------------------------------------------------------------
// Labels: worker, hostname, gpu_uuid, link_domain.
inline constexpr MetricDef kWorkerInfo{
    "cadre_worker_info", kGauge,
    "Always 1; labels tell the worker, for joins with device metrics."};
// Labels: state idle|preparing|ready|running|stopping|ended|stopped.
inline constexpr MetricDef kWorkerState{"cadre_worker_state", kGauge,
                                        "1 for the present state, else 0."};
// Labels: job, attempt, rank.
inline constexpr MetricDef kWorkerAssignment{
    "cadre_worker_assignment_info", kGauge,
    "1 for the job, attempt and rank this worker trains; labels are for joins "
    "on the instance."};
// Labels: result ok|error|stale.
inline constexpr MetricDef kWorkerSyncs{"cadre_worker_syncs_total", kCounter,
                                        "Sync calls by result."};
inline constexpr MetricDef kWorkerSyncSeconds{
    "cadre_worker_sync_seconds", kHistogram, "Duration of Sync calls.", kFast};
inline constexpr MetricDef kWorkerLastSync{
    "cadre_worker_last_sync_timestamp_seconds", kGauge,
    "Unix time of the last accepted Sync; 0 before the first."};
inline constexpr MetricDef kTrainSteps{"cadre_train_steps_total", kCounter,
                                       "Optimizer steps done."};
inline constexpr MetricDef kTrainNonfiniteSteps{
    "cadre_train_nonfinite_steps_total", kCounter,
    "Steps skipped because loss or gradient norm was not finite."};
inline constexpr MetricDef kTrainDataWait{"cadre_train_data_wait_seconds_total",
                                          kCounter,
                                          "Time spent waiting for input."};
// Labels: phase total|data|forward|backward|reduce|optimizer|wait.
inline constexpr MetricDef kTrainStepSeconds{
    "cadre_train_step_seconds", kHistogram,
    "Duration of a step (total) and of its phases, which add up to it. "
    "Backward begins behind the loss, whose gradient comes with it, and has "
    "blocks that are run again; forward is the rest of the passes; wait is "
    "for the ranks to agree before the step.",
    kSlow};
// Labels: phase
// attention|router|dispatch|experts|combine|dense_mlp|loss|other|optimizer|
// exposed.
inline constexpr MetricDef kTrainPhaseSeconds{
    "cadre_train_phase_seconds_total", kCounter,
    "Time of this rank in the parts of its forward and backward passes, on its "
    "device, and in the optimizer; exposed is the part of dispatch, experts "
    "and combine for which computing waited for exchanges of expert rows."};
inline constexpr MetricDef kTrainModelFlops{
    "cadre_train_model_flops_total", kCounter,
    "This rank's share of the model's FLOPs: per token 6 for each active "
    "trained parameter and 4 for each frozen one; neither recompute nor "
    "attention scores count."};
inline constexpr MetricDef kTrainMfu{
    "cadre_train_mfu_ratio", kGauge,
    "Model FLOPs of the last step over its time and the nominal peak of the "
    "device (GPU: dense bf16; CPU: f32 of the threads in use); NaN where that "
    "is not known."};
inline constexpr MetricDef kTrainMemoryPlanned{
    "cadre_train_memory_planned_bytes", kGauge,
    "What the plan says the most loaded rank needs, the runtime's own memory "
    "left out; NaN without a plan."};
inline constexpr MetricDef kTrainMemoryExpected{
    "cadre_train_memory_expected_bytes", kGauge,
    "The same for the rows that routers in fact sent to this rank, the most so "
    "far; NaN where that is not known (GPU)."};
inline constexpr MetricDef kDeviceMemoryPlanError{
    "cadre_device_memory_plan_error_ratio", kGauge,
    "All pools of cadre_device_memory_peak_bytes together over "
    "cadre_train_memory_planned_bytes, minus 1."};
// Labels: pool
// weights|adapter|gradients|optimizer|activations|workspace|comm|other|free.
inline constexpr MetricDef kDeviceMemory{
    "cadre_device_memory_bytes", kGauge,
    "Memory of the device (CPU: of the host) by use, all pools together its "
    "whole. Of this rank's job in the last step: activations and workspace "
    "(temporaries of single layers) the most in use at once, comm what "
    "collectives gather and reduce in; 0 without a job. other: of all else "
    "on the device, the runtime's own included; other and free are NaN for a "
    "GPU before its first job."};
// Labels: pool weights|adapter|gradients|optimizer|activations|workspace|comm.
inline constexpr MetricDef kDeviceMemoryPeak{
    "cadre_device_memory_peak_bytes", kGauge,
    "The most that this rank's job had in a pool since its attempt began."};
// Labels: kind out_of_memory|launch|hardware|driver|other.
inline constexpr MetricDef kDeviceErrors{
    "cadre_device_errors_total", kCounter,
    "Errors of the device or its driver that ended an attempt."};
// Labels: kind processed|loss|padding.
inline constexpr MetricDef kTrainTokens{
    "cadre_train_tokens_total", kCounter,
    "This rank's share of the tokens of the steps: processed, counted in the "
    "loss, and empty slots of the packed rows."};
inline constexpr MetricDef kTrainPackingFill{
    "cadre_train_packing_fill_ratio", kGauge,
    "Real tokens over slots of the packed rows, last step, all ranks."};
inline constexpr MetricDef kTrainLoss{
    "cadre_train_loss", kGauge,
    "Mean loss per loss token of the last step, all ranks; rank 0 only."};
inline constexpr MetricDef kTrainEvalLoss{
    "cadre_train_eval_loss", kGauge,
    "Mean loss per loss token of the last evaluation; rank 0 only."};
inline constexpr MetricDef kTrainGradNorm{
    "cadre_train_grad_norm", kGauge,
    "Gradient norm of the last step before clipping; rank 0 only."};
inline constexpr MetricDef kTrainLearningRate{
    "cadre_train_learning_rate", kGauge,
    "Learning rate of the last step; rank 0 only."};
// Labels: stat step|worst_layer.
inline constexpr MetricDef kMoeExpertBalancedness{
    "cadre_moe_expert_balancedness_ratio", kGauge,
    "Mean over maximal tokens of the routed experts, 1 is balanced: sum of "
    "means over sum of maxima of the layers, or the worst layer; last 50 "
    "steps."};
// Labels: stat step|worst_layer.
inline constexpr MetricDef kMoeRankBalancedness{
    "cadre_moe_rank_balancedness_ratio", kGauge,
    "Mean over maximal tokens of the ranks that share the experts, as counted "
    "where they were computed: sum of means over sum of maxima of the layers, "
    "or the worst layer; last 50 steps under the placement in force."};
inline constexpr MetricDef kMoeRebalanceSeconds{
    "cadre_moe_rebalance_seconds", kHistogram,
    "Time for which training stood still while experts moved; one "
    "observation for each placement put in force.",
    kFast};
inline constexpr MetricDef kMoePlanEpoch{
    "cadre_moe_plan_epoch", kGauge,
    "Expert placement in force; 0: the one the job began with."};
// Labels: stat mean|max, over the layers.
inline constexpr MetricDef kMoeExpertLoadCv{
    "cadre_moe_expert_load_cv_ratio", kGauge,
    "Standard deviation over mean of the tokens of the routed experts, last 50 "
    "steps."};
// Labels: stat mean|max, over the layers.
inline constexpr MetricDef kMoeDeadExperts{
    "cadre_moe_dead_expert_ratio", kGauge,
    "Share of the routed experts without a token, last 50 steps."};
inline constexpr MetricDef kMoeAuxLoss{
    "cadre_moe_aux_loss", kGauge,
    "Load-balance loss of the last step before its coefficient."};
inline constexpr MetricDef kMoeZLoss{
    "cadre_moe_z_loss", kGauge,
    "Router z-loss of the last step before its coefficient; 0 without one."};
inline constexpr MetricDef kMoeDroppedTokens{
    "cadre_moe_dropped_tokens_total", kCounter,
    "This rank's share of the token-expert pairs that found no room in an "
    "expert and were dropped."};
inline constexpr MetricDef kMoeRemappedTokens{
    "cadre_moe_remapped_tokens_total", kCounter,
    "This rank's share of the token-expert pairs that moved to another expert "
    "with room."};
inline constexpr MetricDef kMoeRoutedTokens{
    "cadre_moe_routed_tokens_total", kCounter,
    "This rank's share of the token-expert pairs routed."};
inline constexpr MetricDef kMoePaddingRows{
    "cadre_moe_padding_rows_total", kCounter,
    "This rank's share of the rows that grouped products of the experts "
    "computed for nothing, to fill their tiles; a batch counts once, in the "
    "forward pass."};
// Labels: direction dispatch|combine.
inline constexpr MetricDef kMoeAllToAllSeconds{
    "cadre_moe_all_to_all_seconds", kHistogram,
    "Duration of a step's exchanges of expert rows between ranks, forward and "
    "backward, waiting for peers included.",
    kFast};
inline constexpr MetricDef kMoeAllToAllExposed{
    "cadre_moe_all_to_all_exposed_seconds_total", kCounter,
    "Part of the exchanges of expert rows that no computing hid."};
// Labels: direction dispatch|combine, tier self|link|network.
inline constexpr MetricDef kMoeAllToAllBytes{
    "cadre_moe_all_to_all_bytes_total", kCounter,
    "Bytes of expert rows, what goes with them and their gradients that this "
    "rank gave to exchanges, forward and backward, by how far they go: self "
    "stays here, link is to ranks of its link domain, network to all others "
    "and to those whose domain is not known."};
// Labels: op all_reduce|all_gather|reduce_scatter|broadcast|all_to_all|barrier.
inline constexpr MetricDef kCommSeconds{
    "cadre_comm_seconds", kHistogram,
    "Duration of collectives, waiting for peers included; making a group of "
    "ranks counts as a barrier.",
    kFast};
// Labels: op.
inline constexpr MetricDef kCommBytes{"cadre_comm_bytes_total", kCounter,
                                      "Bytes this rank put into collectives."};
// Labels: cause stop|peer.
inline constexpr MetricDef kCommAborts{
    "cadre_comm_aborts_total", kCounter,
    "Attempts whose communicators were aborted, by cause."};
// Labels: phase stall|write.
inline constexpr MetricDef kCheckpointSaveSeconds{
    "cadre_checkpoint_save_seconds", kHistogram,
    "Training stalled by a save, and writing this rank's files.", kSlow};
inline constexpr MetricDef kCheckpointLoadSeconds{
    "cadre_checkpoint_load_seconds", kHistogram,
    "Reading a checkpoint to go on from.", kSlow};
// Labels: result ok|error.
inline constexpr MetricDef kCheckpointSaves{
    "cadre_checkpoint_saves_total", kCounter, "Saves of this rank by result."};
inline constexpr MetricDef kCheckpointBytes{
    "cadre_checkpoint_bytes_total", kCounter,
    "Bytes this rank wrote into checkpoints."};
inline constexpr MetricDef kCheckpointLastSuccess{
    "cadre_checkpoint_last_success_timestamp_seconds", kGauge,
    "Unix time of this rank's last save; 0 before the first."};

}  // namespace metric
}  // namespace cadre

#endif  // CADRE_BASE_METRICS_NAMES_H_
