// The host side that the Hopper kernels share.

#include <climits>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/attention/attention_wgmma.cuh"

namespace cadre::attention_device {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

absl::StatusOr<Encode> Encoder() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result;
  CADRE_RETURN_IF_ERROR(CudaStatus(
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                       12000, cudaEnableDefault, &result),
      "attention: looking up cuTensorMapEncodeTiled"));
  if (function == nullptr) {
    return absl::FailedPreconditionError(
        "attention: the driver has no cuTensorMapEncodeTiled; install a driver "
        "for CUDA 13");
  }
  return reinterpret_cast<Encode>(function);
}

}  // namespace

bool WgmmaTakes(const Params<Bf16>& p) {
  if (p.selected != nullptr || !p.vector || p.tokens < 1 ||
      p.tokens > INT_MAX - 1024) {
    return false;
  }
  int device = 0, major = 0, minor = 0;
  return cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor,
                                device) == cudaSuccess &&
         cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor,
                                device) == cudaSuccess &&
         major == 9 && minor == 0;
}

absl::StatusOr<CUtensorMap> HeadMap(const Bf16* data, int64_t tokens, int heads,
                                    int dim, int rows) {
  static const absl::StatusOr<Encode> encode = Encoder();
  CADRE_RETURN_IF_ERROR(encode.status());
  const cuuint64_t row = static_cast<cuuint64_t>(dim) * sizeof(Bf16);
  const cuuint64_t sizes[3] = {static_cast<cuuint64_t>(dim),
                               static_cast<cuuint64_t>(heads),
                               static_cast<cuuint64_t>(tokens)};
  const cuuint64_t strides[2] = {row, row * static_cast<cuuint64_t>(heads)};
  const cuuint32_t box[3] = {64, 1, static_cast<cuuint32_t>(rows)};
  const cuuint32_t steps[3] = {1, 1, 1};
  CUtensorMap map;
  const CUresult result = (*encode)(
      &map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<Bf16*>(data), sizes,
      strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
      CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result == CUDA_SUCCESS) return map;
  return absl::InternalError(
      absl::StrCat("attention: describing a tensor [", tokens, ",", heads, ",",
                   dim, "] in boxes of ", rows, " tokens to TMA: CUresult ",
                   static_cast<int>(result)));
}

}  // namespace cadre::attention_device
