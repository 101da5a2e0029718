#include "kernels/moe_dispatch/moe_dispatch.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/common/check.h"

namespace cadre {

// moe_dispatch_cpu.cc
absl::Status MoeSlotsCpu(const MoeSlotsArgs&);
absl::Status MoePackPairsCpu(const MoePackPairsArgs&);
absl::Status MoeUnpackPairsCpu(const MoeUnpackPairsArgs&);
absl::Status MoeScatterPairsCpu(const MoeScatterPairsArgs&);
CADRE_CUDA_IMPL absl::Status MoeSlotsCuda(const Exec&, const MoeSlotsArgs&);
CADRE_CUDA_IMPL absl::Status MoePackPairsCuda(const Exec&,
                                              const MoePackPairsArgs&);
CADRE_CUDA_IMPL absl::Status MoeUnpackPairsCuda(const Exec&,
                                                const MoeUnpackPairsArgs&);
CADRE_CUDA_IMPL absl::Status MoeScatterPairsCuda(const Exec&,
                                                 const MoeScatterPairsArgs&);

namespace {

constexpr char kOp[] = "moe_dispatch";
constexpr int64_t kPairsPerBlock = 2048;  // as in moe_dispatch.cu

absl::Status CheckTable(absl::string_view name, const Tensor& table) {
  return CheckTensor(kOp, name, table, DType::kI32, {kAnyDim, kAnyDim});
}

// Weights beside pairs of i32 [N, 1 + words of one].
absl::Status CheckPairs(const Exec& exec, const Tensor& weights,
                        const Tensor& pairs) {
  CADRE_RETURN_IF_ERROR(CheckActivation(exec, kOp, "weights", weights, 2));
  if (weights.dtype() == DType::kBF16) {
    return absl::InvalidArgumentError(absl::StrCat(
        kOp, ": weights are ", weights.DebugString(), ", expected f32 or f64"));
  }
  return CheckTensor(
      kOp, "pairs", pairs, DType::kI32,
      {kAnyDim, 1 + SizeOf(weights.dtype()) / SizeOf(DType::kI32)});
}

// OK if `table` is i32 of rank 1 with at least `n` entries.
absl::Status CheckSource(const Tensor& table, int64_t n) {
  CADRE_RETURN_IF_ERROR(
      CheckTensor(kOp, "pair_source", table, DType::kI32, {kAnyDim}));
  if (table.dim(0) >= n) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      kOp, ": pair_source has ", table.dim(0), " entries for ", n, " pairs"));
}

}  // namespace

int64_t MoeUnpackWorkspace(int64_t num_pairs) {
  return (num_pairs + kPairsPerBlock - 1) / kPairsPerBlock;
}

absl::Status MoeSlots(const Exec& exec, const MoeSlotsArgs& args) {
  CADRE_RETURN_IF_ERROR(CheckTable("ids", args.ids));
  CADRE_RETURN_IF_ERROR(
      CheckTensor(kOp, "first_copy", args.first_copy, DType::kI32, {kAnyDim}));
  CADRE_RETURN_IF_ERROR(
      CheckTensor(kOp, "copies", args.copies, DType::kI32, {kAnyDim}));
  CADRE_RETURN_IF_ERROR(CheckOptionalTensor(
      kOp, "offsets", args.offsets, DType::kI32, {args.first_copy.dim(0)}));
  if (args.offsets.present()) {
    CADRE_RETURN_IF_ERROR(CheckLike(kOp, "row_of", args.row_of, args.ids));
  }
  for (const Tensor& out : {args.slots, args.ranks, args.choices}) {
    CADRE_RETURN_IF_ERROR(CheckLike(kOp, "slots", out, args.ids));
  }
  CADRE_RETURN_IF_ERROR(CheckTensor(kOp, "destinations", args.destinations,
                                    DType::kI32, {args.ids.dim(0), kAnyDim}));
  if (args.slots_per_rank < 1 || args.ids.dim(1) > 64) {
    return absl::InvalidArgumentError(
        absl::StrCat(kOp, ": ", args.slots_per_rank, " slots per rank and ",
                     args.ids.dim(1), " choices; at least 1 and at most 64"));
  }
  if (exec.backend == Backend::kCuda)
    return MoeSlotsCuda ? MoeSlotsCuda(exec, args) : NoCudaError(kOp);
  return MoeSlotsCpu(args);
}

absl::Status MoePackPairs(const Exec& exec, const MoePackPairsArgs& args) {
  CADRE_RETURN_IF_ERROR(CheckPairs(exec, args.weights, args.pairs));
  CADRE_RETURN_IF_ERROR(CheckSource(args.pair_source, args.pairs.dim(0)));
  for (const Tensor& table : {args.slots, args.choices}) {
    CADRE_RETURN_IF_ERROR(
        CheckTensor(kOp, "slots", table, DType::kI32,
                    {args.weights.dim(0), args.weights.dim(1)}));
  }
  if (exec.backend == Backend::kCuda)
    return MoePackPairsCuda ? MoePackPairsCuda(exec, args) : NoCudaError(kOp);
  return MoePackPairsCpu(args);
}

absl::Status MoeUnpackPairs(const Exec& exec, const MoeUnpackPairsArgs& args) {
  CADRE_RETURN_IF_ERROR(CheckPairs(exec, args.weights, args.pairs));
  const int64_t n = args.pairs.dim(0);
  CADRE_RETURN_IF_ERROR(
      CheckTensor(kOp, "slots", args.slots, DType::kI32,
                  {args.weights.dim(0), args.weights.dim(1)}));
  CADRE_RETURN_IF_ERROR(
      CheckTensor(kOp, "places", args.places, DType::kI32, {n}));
  CADRE_RETURN_IF_ERROR(CheckTensor(kOp, "workspace", args.workspace,
                                    DType::kI32, {MoeUnpackWorkspace(n)}));
  if (exec.backend == Backend::kCuda) {
    return MoeUnpackPairsCuda ? MoeUnpackPairsCuda(exec, args)
                              : NoCudaError(kOp);
  }
  return MoeUnpackPairsCpu(args);
}

absl::Status MoeScatterPairs(const Exec& exec,
                             const MoeScatterPairsArgs& args) {
  CADRE_RETURN_IF_ERROR(CheckActivation(exec, kOp, "weights", args.weights, 2));
  const int64_t n = args.values.dim(0);
  CADRE_RETURN_IF_ERROR(
      CheckTensor(kOp, "values", args.values, args.weights.dtype(), {n, 1}));
  CADRE_RETURN_IF_ERROR(CheckSource(args.pair_source, n));
  CADRE_RETURN_IF_ERROR(
      CheckTensor(kOp, "choices", args.choices, DType::kI32,
                  {args.weights.dim(0), args.weights.dim(1)}));
  if (exec.backend == Backend::kCuda) {
    return MoeScatterPairsCuda ? MoeScatterPairsCuda(exec, args)
                               : NoCudaError(kOp);
  }
  return MoeScatterPairsCpu(args);
}

}  // namespace cadre
