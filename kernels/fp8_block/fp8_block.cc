#include "kernels/fp8_block/fp8_block.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/common/check.h"

namespace cadre {

// fp8_block_cpu.cc
absl::Status Fp8BlockDecodeCpu(const Exec& exec, const Fp8BlockDecodeArgs&);
CADRE_CUDA_IMPL absl::Status Fp8BlockDecodeCuda(const Exec& exec,
                                                const Fp8BlockDecodeArgs&);

namespace {

constexpr char kOp[] = "fp8_block";
constexpr int64_t kBlock = 128;

}  // namespace

absl::Status Fp8BlockDecode(const Exec& exec, const Fp8BlockDecodeArgs& args) {
  CADRE_RETURN_IF_ERROR(CheckActivation(exec, kOp, "out", args.out, 2));
  CADRE_RETURN_IF_ERROR(
      CheckTensor(kOp, "out", args.out, args.out.dtype(), {kAnyDim, kAnyDim}));
  const int64_t rows = args.out.dim(0), columns = args.out.dim(1);
  const DType code =
      args.weight.dtype() == DType::kU8 ? DType::kU8 : DType::kF8E4M3;
  CADRE_RETURN_IF_ERROR(
      CheckTensor(kOp, "weight", args.weight, code, {rows, columns}));
  CADRE_RETURN_IF_ERROR(CheckTensor(
      kOp, "scale_inv", args.scale_inv, DType::kF32,
      {(rows + kBlock - 1) / kBlock, (columns + kBlock - 1) / kBlock}));
  if (exec.backend == Backend::kCuda) {
    return Fp8BlockDecodeCuda ? Fp8BlockDecodeCuda(exec, args)
                              : NoCudaError(kOp);
  }
  return Fp8BlockDecodeCpu(exec, args);
}

}  // namespace cadre
