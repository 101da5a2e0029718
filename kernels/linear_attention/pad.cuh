#ifndef CADRE_KERNELS_LINEAR_ATTENTION_PAD_CUH_
#define CADRE_KERNELS_LINEAR_ATTENTION_PAD_CUH_

// Copies between tensors with rows of 64 and of 128, many in one launch.
// Private to kernels/{kda,gdn}.

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "kernels/common/exec.h"
#include "kernels/common/launch.cuh"
#include "kernels/linear_attention/pad_plan.h"

namespace cadre::linear_attention {

__device__ __forceinline__ uint32_t ScaleBf16(uint32_t two, float scale) {
  __nv_bfloat162 x;
  memcpy(&x, &two, 4);
  x = __floats2bfloat162_rn(__low2float(x) * scale, __high2float(x) * scale);
  memcpy(&two, &x, 4);
  return two;
}

inline constexpr int kPadThreads = 256;
inline constexpr int kPadUnroll = 4;  // loads in flight

// blockIdx.y: the job. Blocks stride over its units.
static __global__ void __launch_bounds__(kPadThreads)
    PadKernel(__grid_constant__ const PadJobs jobs) {
  const PadJob& job = jobs.job[blockIdx.y];
  const uint4* from = static_cast<const uint4*>(job.from);
  uint4* to = static_cast<uint4*>(job.to);
  const int64_t step = int64_t{gridDim.x} * kPadThreads * kPadUnroll;
  for (int64_t first = int64_t{blockIdx.x} * kPadThreads * kPadUnroll;
       first < job.units; first += step) {
    uint4 x[kPadUnroll];
#pragma unroll
    for (int i = 0; i < kPadUnroll; ++i) {
      const int64_t at = first + i * kPadThreads + threadIdx.x;
      x[i] = make_uint4(job.fill, job.fill, job.fill, job.fill);
      const int64_t source = at < job.units ? PadSource(job, at) : -1;
      if (source >= 0) x[i] = from[source];
    }
#pragma unroll
    for (int i = 0; i < kPadUnroll; ++i) {
      const int64_t at = first + i * kPadThreads + threadIdx.x;
      if (at >= job.units) break;
      if (job.kind == PadKind::kScaleBf16) {
        x[i] = make_uint4(
            ScaleBf16(x[i].x, job.scale), ScaleBf16(x[i].y, job.scale),
            ScaleBf16(x[i].z, job.scale), ScaleBf16(x[i].w, job.scale));
      } else if (job.kind == PadKind::kAddFloat) {
        float4 sum = reinterpret_cast<const float4*>(to)[at];
        sum.x += __uint_as_float(x[i].x);
        sum.y += __uint_as_float(x[i].y);
        sum.z += __uint_as_float(x[i].z);
        sum.w += __uint_as_float(x[i].w);
        reinterpret_cast<float4*>(to)[at] = sum;
        continue;
      }
      to[at] = x[i];
    }
  }
}

inline absl::Status RunPad(absl::string_view op, const Exec& exec,
                           const PadJobs& jobs) {
  int64_t units = 0;
  for (int i = 0; i < jobs.count; ++i)
    units = std::max(units, jobs.job[i].units);
  return Launch(op, exec,
                {.grid = dim3(GridFor(units, kPadThreads * kPadUnroll),
                              static_cast<unsigned>(jobs.count)),
                 .block = kPadThreads},
                PadKernel, jobs);
}

}  // namespace cadre::linear_attention

#endif  // CADRE_KERNELS_LINEAR_ATTENTION_PAD_CUH_
