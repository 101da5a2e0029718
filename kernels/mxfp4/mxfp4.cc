#include "kernels/mxfp4/mxfp4.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/common/check.h"

namespace cadre {

// mxfp4_cpu.cc
absl::Status Mxfp4DecodeCpu(const Exec& exec, const Mxfp4DecodeArgs&);
CADRE_CUDA_IMPL absl::Status Mxfp4DecodeCuda(const Exec& exec,
                                             const Mxfp4DecodeArgs&);

namespace {

constexpr char kOp[] = "mxfp4";
constexpr int64_t kColumnsPerScale = 32;

// OK if `tensor` is u8 with the rows of `out` and `columns` columns.
absl::Status CheckBytes(absl::string_view name, const Tensor& tensor,
                        const Tensor& out, int64_t columns) {
  bool same = tensor.present() && tensor.dtype() == DType::kU8 &&
              tensor.rank() == out.rank() && LastDim(tensor) == columns;
  for (int i = 0; same && i + 1 < out.rank(); ++i)
    same = tensor.dim(i) == out.dim(i);
  if (same) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      kOp, ": ", name, " is ", tensor.DebugString(), ", expected u8 with ",
      columns, " columns and the rows of out, ", out.DebugString()));
}

}  // namespace

absl::Status Mxfp4Decode(const Exec& exec, const Mxfp4DecodeArgs& args) {
  CADRE_RETURN_IF_ERROR(CheckActivation(exec, kOp, "out", args.out, 2));
  const int64_t columns = LastDim(args.out);
  if (columns % kColumnsPerScale != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(kOp, ": out has ", columns,
                     " columns, expected a multiple of ", kColumnsPerScale));
  }
  CADRE_RETURN_IF_ERROR(
      CheckBytes("packed", args.packed, args.out, columns / 2));
  CADRE_RETURN_IF_ERROR(
      CheckBytes("scale", args.scale, args.out, columns / kColumnsPerScale));
  if (exec.backend == Backend::kCuda)
    return Mxfp4DecodeCuda ? Mxfp4DecodeCuda(exec, args) : NoCudaError(kOp);
  return Mxfp4DecodeCpu(exec, args);
}

}  // namespace cadre
