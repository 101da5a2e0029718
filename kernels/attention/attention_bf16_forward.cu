#include "kernels/attention/attention_device.cuh"
#include "kernels/common/mma.cuh"

namespace cadre::attention_device {
namespace {

using mma::Bf16;

constexpr int kQueries = 128;  // of a block; 16 a warp
constexpr int kKeys = 64;      // of a step
constexpr int kThreads = 256;
constexpr float kLog2E = 1.4426950408889634f;

template <int kQk, int kV>
constexpr size_t SharedBytes() {
  return (kQueries * kQk + 2 * kKeys * (kQk + kV)) * sizeof(Bf16) +
         2 * kQueries * sizeof(uint64_t);
}

// o and lse of 128 queries of one head: online softmax over tiles of 64 keys,
// which are copied one step ahead. Head widths are rounded up to kQk and kV
// with zeros.
template <int kQk, int kV, bool kSelected>
__global__ void __launch_bounds__(kThreads, 1)
    ForwardKernel(const Params<Bf16> p) {
  extern __shared__ __align__(128) unsigned char shared[];
  Bf16* const q_tile = reinterpret_cast<Bf16*>(shared);
  Bf16* const k_tiles = q_tile + kQueries * kQk;
  Bf16* const v_tiles = k_tiles + 2 * kKeys * kQk;
  uint64_t* const masks = reinterpret_cast<uint64_t*>(v_tiles + 2 * kKeys * kV);

  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int head = blockIdx.y, kv_head = p.KvHead(head);
  // Late tiles see the most keys: they start first.
  const int64_t first = int64_t(gridDim.x - 1 - blockIdx.x) * kQueries;
  const int64_t real = p.Real();
  const int64_t last = min(first + kQueries, real) - 1;  // real query
  const int32_t key_begin = FirstKey(p, first);
  const int32_t newest_begin = last >= first ? FirstKey(p, last) : 0;
  const int64_t span = last + 1 - key_begin;
  const int steps = span > 0 ? static_cast<int>((span + kKeys - 1) / kKeys) : 0;

  const Bf16* const k = p.k + kv_head * p.qk_dim;
  const Bf16* const v = p.v + kv_head * p.v_dim;
  auto copy_keys = [&](int step) {
    const int64_t key = key_begin + int64_t(step) * kKeys;
    mma::CopyTile<kKeys, kQk, kThreads>(
        k_tiles + (step & 1) * kKeys * kQk,
        {k + key * p.KPitch(), p.KPitch(), real - key, p.qk_dim, p.vector});
    mma::CopyTile<kKeys, kV, kThreads>(
        v_tiles + (step & 1) * kKeys * kV,
        {v + key * p.VPitch(), p.VPitch(), real - key, p.v_dim, p.vector});
    mma::CopyCommit();
  };
  if (steps > 0) {
    mma::CopyTile<kQueries, kQk, kThreads>(
        q_tile, {p.q + first * p.QPitch() + head * p.qk_dim, p.QPitch(),
                 real - first, p.qk_dim, p.vector});
    copy_keys(0);
  }

  // Rows of this lane: r and r + 8.
  const int row = warp * 16 + lane / 4;
  const int32_t t0 = static_cast<int32_t>(first) + row, t1 = t0 + 8;
  const int32_t begin0 = FirstKey(p, t0), begin1 = FirstKey(p, t1);
  SelectionCursor cursor(p, kSelected ? first + threadIdx.x % kQueries : real);

  float out[kV / 8][4] = {};
  float max0 = -INFINITY, max1 = -INFINITY, sum0 = 0, sum1 = 0;
  const float factor = p.scale * kLog2E;

  for (int step = 0; step < steps; ++step) {
    const int32_t key = key_begin + step * kKeys;
    if constexpr (kSelected) {
      if (threadIdx.x < kQueries)
        masks[(step & 1) * kQueries + threadIdx.x] = cursor.Take(key);
    }
    if (step + 1 < steps) {
      copy_keys(step + 1);
      mma::CopyWait<1>();
    } else {
      mma::CopyWait<0>();
    }
    __syncthreads();
    const Bf16* const k_tile = k_tiles + (step & 1) * kKeys * kQk;
    const Bf16* const v_tile = v_tiles + (step & 1) * kKeys * kV;

    float s[kKeys / 8][4] = {};
#pragma unroll
    for (int d = 0; d < kQk; d += 16) {
      uint32_t a[4];
      mma::LoadA<kQk>(a, q_tile, warp * 16, d);
#pragma unroll
      for (int n = 0; n < kKeys; n += 16) {
        uint32_t b[4];
        mma::LoadB<kQk>(b, k_tile, n, d);
        mma::Multiply(s[n / 8], a, b[0], b[1]);
        mma::Multiply(s[n / 8 + 1], a, b[2], b[3]);
      }
    }
    if constexpr (kSelected) {
      const uint64_t bits0 = masks[(step & 1) * kQueries + row];
      const uint64_t bits1 = masks[(step & 1) * kQueries + row + 8];
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const int column = n * 8 + (lane % 4) * 2 + j;
          if (!(bits0 >> column & 1)) s[n][j] = -INFINITY;
          if (!(bits1 >> column & 1)) s[n][2 + j] = -INFINITY;
        }
      }
    } else if (key + kKeys - 1 > first || key < newest_begin ||
               last - first + 1 < kQueries) {
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const int32_t column = key + n * 8 + (lane % 4) * 2 + j;
          if (column > t0 || column < begin0) s[n][j] = -INFINITY;
          if (column > t1 || column < begin1) s[n][2 + j] = -INFINITY;
        }
      }
    }

    float new0 = max0, new1 = max1;
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
      new0 = fmaxf(new0, fmaxf(s[n][0], s[n][1]));
      new1 = fmaxf(new1, fmaxf(s[n][2], s[n][3]));
    }
#pragma unroll
    for (int offset = 1; offset < 4; offset *= 2) {
      new0 = fmaxf(new0, __shfl_xor_sync(0xffffffffu, new0, offset));
      new1 = fmaxf(new1, __shfl_xor_sync(0xffffffffu, new1, offset));
    }
    // A row without a key so far: anything finite will do.
    const float base0 = new0 == -INFINITY ? 0 : new0 * factor;
    const float base1 = new1 == -INFINITY ? 0 : new1 * factor;
    const float shrink0 = exp2f(max0 * factor - base0);
    const float shrink1 = exp2f(max1 * factor - base1);
    max0 = new0;
    max1 = new1;
    sum0 *= shrink0;
    sum1 *= shrink1;
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
      s[n][0] = exp2f(s[n][0] * factor - base0);
      s[n][1] = exp2f(s[n][1] * factor - base0);
      s[n][2] = exp2f(s[n][2] * factor - base1);
      s[n][3] = exp2f(s[n][3] * factor - base1);
      sum0 += s[n][0] + s[n][1];
      sum1 += s[n][2] + s[n][3];
    }
#pragma unroll
    for (int n = 0; n < kV / 8; ++n) {
      out[n][0] *= shrink0;
      out[n][1] *= shrink0;
      out[n][2] *= shrink1;
      out[n][3] *= shrink1;
    }
#pragma unroll
    for (int j = 0; j < kKeys; j += 16) {
      const uint32_t a[4] = {mma::PackPair(s[j / 8][0], s[j / 8][1]),
                             mma::PackPair(s[j / 8][2], s[j / 8][3]),
                             mma::PackPair(s[j / 8 + 1][0], s[j / 8 + 1][1]),
                             mma::PackPair(s[j / 8 + 1][2], s[j / 8 + 1][3])};
#pragma unroll
      for (int n = 0; n < kV; n += 16) {
        uint32_t b[4];
        mma::LoadBTransposed<kV>(b, v_tile, j, n);
        mma::Multiply(out[n / 8], a, b[0], b[1]);
        mma::Multiply(out[n / 8 + 1], a, b[2], b[3]);
      }
    }
    __syncthreads();  // the tiles may be overwritten
  }

#pragma unroll
  for (int offset = 1; offset < 4; offset *= 2) {
    sum0 += __shfl_xor_sync(0xffffffffu, sum0, offset);
    sum1 += __shfl_xor_sync(0xffffffffu, sum1, offset);
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t t = first + row + 8 * half;
    if (t >= p.tokens) continue;
    const float sum = half == 0 ? sum0 : sum1;
    const float top = half == 0 ? max0 : max1;
    const float inverse = sum > 0 ? 1.0f / sum : 0;
    if (lane % 4 == 0) {
      p.lse[t * p.heads + head] =
          sum > 0 ? top * p.scale + logf(sum) : -INFINITY;
    }
    Bf16* const o = p.out + t * p.OPitch() + head * p.v_dim;
#pragma unroll
    for (int n = 0; n < kV / 8; ++n) {
      const int column = n * 8 + (lane % 4) * 2;
      const float a = out[n][2 * half] * inverse;
      const float b = out[n][2 * half + 1] * inverse;
      if (p.vector) {
        if (column < p.v_dim)
          *reinterpret_cast<uint32_t*>(o + column) = mma::PackPair(a, b);
      } else {
        if (column < p.v_dim) o[column] = __float2bfloat16_rn(a);
        if (column + 1 < p.v_dim) o[column + 1] = __float2bfloat16_rn(b);
      }
    }
  }
}

template <int kQk, int kV>
absl::Status LaunchTile(const Exec& exec, const Params<Bf16>& p) {
  const LaunchShape shape = {
      .grid = dim3(unsigned((p.tokens + kQueries - 1) / kQueries), p.heads),
      .block = kThreads,
      .shared_bytes = SharedBytes<kQk, kV>()};
  return p.selected != nullptr
             ? Launch("attention", exec, shape, ForwardKernel<kQk, kV, true>, p)
             : Launch("attention", exec, shape, ForwardKernel<kQk, kV, false>,
                      p);
}

}  // namespace

absl::Status ForwardBf16(const Exec& exec, const Params<Bf16>& p) {
  if (p.qk_dim <= 64 && p.v_dim <= 64) return LaunchTile<64, 64>(exec, p);
  if (p.qk_dim <= 128 && p.v_dim <= 128) return LaunchTile<128, 128>(exec, p);
  if (p.qk_dim <= 192 && p.v_dim <= 128) return LaunchTile<192, 128>(exec, p);
  return LaunchTile<256, 256>(exec, p);
}

}  // namespace cadre::attention_device
