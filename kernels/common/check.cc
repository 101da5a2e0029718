#include "kernels/common/check.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace cadre {
namespace {

std::string Expected(DType dtype, absl::Span<const int64_t> dims) {
  std::string out = absl::StrCat(DTypeName(dtype), "[");
  for (size_t i = 0; i < dims.size(); ++i) {
    if (i > 0) out += ",";
    out += dims[i] == kAnyDim ? "*" : absl::StrCat(dims[i]);
  }
  return out + "]";
}

absl::Status Mismatch(absl::string_view op, absl::string_view name,
                      const Tensor& tensor, absl::string_view expected) {
  return absl::InvalidArgumentError(absl::StrCat(
      op, ": ", name, " is ", tensor.DebugString(), ", expected ", expected));
}

// What an arena hands out when it cannot grow (worker/device/arena.h).
absl::Status CheckMemory(absl::string_view op, absl::string_view name,
                         const Tensor& tensor) {
  if (tensor.raw() != nullptr || tensor.num_elements() == 0) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(
      absl::StrCat(op, ": ", name, " is ", tensor.DebugString(),
                   " without memory: an allocation before it failed"));
}

}  // namespace

absl::Status CheckTensor(absl::string_view op, absl::string_view name,
                         const Tensor& tensor, DType dtype,
                         std::initializer_list<int64_t> dims) {
  bool same = tensor.present() && tensor.dtype() == dtype &&
              tensor.rank() == static_cast<int>(dims.size());
  int i = 0;
  for (int64_t dim : dims) {
    if (!same) break;
    same = dim == kAnyDim || tensor.dim(i) == dim;
    ++i;
  }
  if (same) return CheckMemory(op, name, tensor);
  return Mismatch(
      op, name, tensor,
      Expected(dtype, absl::MakeConstSpan(dims.begin(), dims.size())));
}

absl::Status CheckOptionalTensor(absl::string_view op, absl::string_view name,
                                 const Tensor& tensor, DType dtype,
                                 std::initializer_list<int64_t> dims) {
  if (!tensor.present()) return absl::OkStatus();
  return CheckTensor(op, name, tensor, dtype, dims);
}

absl::Status CheckActivation(const Exec& exec, absl::string_view op,
                             absl::string_view name, const Tensor& tensor,
                             int min_rank) {
  const DType second =
      exec.backend == Backend::kCpu ? DType::kF64 : DType::kBF16;
  if (tensor.present() && tensor.rank() >= min_rank &&
      (tensor.dtype() == DType::kF32 || tensor.dtype() == second)) {
    return CheckMemory(op, name, tensor);
  }
  return Mismatch(op, name, tensor,
                  absl::StrCat("f32 or ", DTypeName(second), " of rank ",
                               min_rank, " to ", Tensor::kMaxRank));
}

absl::Status CheckLike(absl::string_view op, absl::string_view name,
                       const Tensor& tensor, const Tensor& like) {
  if (tensor.present() && tensor.dtype() == like.dtype() &&
      tensor.dims() == like.dims()) {
    return CheckMemory(op, name, tensor);
  }
  return Mismatch(op, name, tensor, like.DebugString());
}

absl::Status CheckCuSeqlens(const Exec& exec, absl::string_view op,
                            const Tensor& cu_seqlens, int64_t num_tokens) {
  CADRE_RETURN_IF_ERROR(
      CheckTensor(op, "cu_seqlens", cu_seqlens, DType::kI32, {kAnyDim}));
  if (cu_seqlens.dim(0) < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        op, ": cu_seqlens is empty, expected docs + 1 entries starting at 0"));
  }
  if (exec.backend != Backend::kCpu) return absl::OkStatus();
  int32_t last = 0;
  for (int64_t i = 0; i < cu_seqlens.dim(0); ++i) {
    const int32_t value = cu_seqlens.data<int32_t>()[i];
    if (value < last || (i == 0 && value != 0) || value > num_tokens) {
      return absl::InvalidArgumentError(absl::StrCat(
          op, ": cu_seqlens[", i, "] is ", value, " after ", last,
          "; entries start at 0, never fall and end at most at the ",
          num_tokens, " tokens of the input"));
    }
    last = value;
  }
  return absl::OkStatus();
}

DType ParamDType(const Exec& exec, DType activation) {
  return exec.backend == Backend::kCpu ? activation : DType::kF32;
}

int64_t LastDim(const Tensor& tensor) { return tensor.dim(tensor.rank() - 1); }

int64_t NumRows(const Tensor& tensor) {
  int64_t rows = 1;
  for (int i = 0; i + 1 < tensor.rank(); ++i) rows *= tensor.dim(i);
  return rows;
}

}  // namespace cadre
