#ifndef CADRE_KERNELS_KDA_KDA_UNFUSED_CUH_
#define CADRE_KERNELS_KDA_KDA_UNFUSED_CUH_

// The kernels of kda_unfused.h that no operator of ours has. Blocks of tiles
// are numbered chunk * heads + head.

#include "kernels/linear_attention/head_finish_tiles.cuh"
#include "kernels/linear_attention/prepare.cuh"
#include "kernels/linear_attention/scan.cuh"

namespace cadre::linear_attention {

// Four channels of a token; taps [C,4], the last for the token itself.
static __global__ void ConvKernel(const uint16_t* x, const float* w,
                                  int64_t tokens, int channels, uint16_t* y) {
  const int64_t i = (blockIdx.x * int64_t{256} + threadIdx.x) * 4;
  if (i >= tokens * channels) return;
  const int64_t t = i / channels;
  const int c = static_cast<int>(i - t * channels);
  float sum[4] = {};
  float4 tap[4];
#pragma unroll
  for (int n = 0; n < 4; ++n)
    tap[n] = *reinterpret_cast<const float4*>(w + (c + n) * 4);
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    if (t < 3 - j) continue;
    float row[4];
    Unpack(*reinterpret_cast<const uint2*>(x + i - (3 - j) * int64_t{channels}),
           row);
#pragma unroll
    for (int n = 0; n < 4; ++n)
      sum[n] += row[n] * reinterpret_cast<const float*>(&tap[n])[j];
  }
  *reinterpret_cast<uint2*>(y + i) = PackFour(sum[0], sum[1], sum[2], sum[3]);
}

static __global__ void SiluKernel(const uint16_t* x, int64_t size,
                                  uint16_t* y) {
  const int64_t i = (blockIdx.x * int64_t{256} + threadIdx.x) * 4;
  if (i >= size) return;
  float v[4];
  Unpack(*reinterpret_cast<const uint2*>(x + i), v);
#pragma unroll
  for (int n = 0; n < 4; ++n) v[n] *= Reciprocal(1.0f + Exp2(-kLog2E * v[n]));
  *reinterpret_cast<uint2*>(y + i) = PackFour(v[0], v[1], v[2], v[3]);
}

// z to log-decays, base 2.
static __global__ void GateKernel(const uint16_t* z, const float* a_log,
                                  const float* dt_bias, int64_t size, int heads,
                                  float* g) {
  const int64_t i = (blockIdx.x * int64_t{256} + threadIdx.x) * 4;
  if (i >= size) return;
  const int c = static_cast<int>(i % (heads * kDim));
  const GateMath gate{Exp2(kLog2E * a_log[c / kDim]), 0, false};
  float x[4], bias[4];
  Unpack(*reinterpret_cast<const uint2*>(z + i), x);
  LoadFloats(dt_bias + c, bias);
  *reinterpret_cast<float4*>(g + i) = make_float4(
      gate.Decay<false>(x[0] + bias[0]), gate.Decay<false>(x[1] + bias[1]),
      gate.Decay<false>(x[2] + bias[2]), gate.Decay<false>(x[3] + bias[3]));
}

static __global__ void SigmoidKernel(const float* x, int64_t size, float* y) {
  const int64_t i = blockIdx.x * int64_t{256} + threadIdx.x;
  if (i < size) y[i] = Reciprocal(1.0f + Exp2(-kLog2E * x[i]));
}

// Sums of log-decays over a chunk's rows, in place. One thread a channel.
static __global__ void __launch_bounds__(kDim)
    CumulateKernel(float* g, int heads) {
  const int64_t pitch = int64_t{heads} * kDim;
  const int64_t chunk = blockIdx.x / heads;
  float* at =
      g + chunk * kChunk * pitch + blockIdx.x % heads * kDim + threadIdx.x;
  float sum = 0;
#pragma unroll 16
  for (int i = 0; i < kChunk; ++i) at[i * pitch] = sum += at[i * pitch];
}

// q, k and v as the scan and the products want them: qg, kg, exp(G) k (in w)
// and v (in u), and exp(Gn).
static __global__ void __launch_bounds__(256)
    ScaleKernel(__grid_constant__ const Problem p, const float* g) {
  const int head = blockIdx.x % p.heads, chunk = blockIdx.x / p.heads;
  const int64_t tile = p.tile(chunk, head);
  const Columns<8> at(threadIdx.x & 31, WarpIndex());
  float end[4];
  LoadFloats(g + p.row(chunk * kChunk + kChunk - 1, head) + at.col, end);
  if (at.group == 0) {
    *reinterpret_cast<float4*>(p.decay + tile * kDim + at.col) =
        make_float4(Exp2(end[0]), Exp2(end[1]), Exp2(end[2]), Exp2(end[3]));
  }
#pragma unroll 4
  for (int i = 0; i < 8; ++i) {
    const int64_t from = p.row(chunk * kChunk + at.row(i), head) + at.col;
    const int64_t to = tile * kTile + Wide(at.row(i), at.col);
    float q[4], k[4], v[4], G[4];
    Unpack(*reinterpret_cast<const uint2*>(p.q + from), q);
    Unpack(*reinterpret_cast<const uint2*>(p.k + from), k);
    Unpack(*reinterpret_cast<const uint2*>(p.v + from), v);
    LoadFloats(g + from, G);
    const auto put = [to](uint16_t* tiles, float a, float b, float c, float d) {
      *reinterpret_cast<uint2*>(tiles + to) = PackFour(a, b, c, d);
    };
    float since[4], until[4];
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      since[c] = Exp2(G[c]);
      until[c] = Exp2(end[c] - G[c]);
      q[c] *= since[c] * kScale;
    }
    put(p.qg, q[0], q[1], q[2], q[3]);
    put(p.kg, k[0] * until[0], k[1] * until[1], k[2] * until[2],
        k[3] * until[3]);
    put(p.w, -k[0] * since[0], -k[1] * since[1], -k[2] * since[2],
        -k[3] * since[3]);
    put(p.u, v[0], v[1], v[2], v[3]);
  }
}

// Both score matrices of a chunk from q, k and G; `beta` after its sigmoid.
static __global__ void __launch_bounds__(kPrepareThreads, 2)
    ScoresKernel(__grid_constant__ const Problem p, const float* g,
                 const float* beta, float* lower) {
  extern __shared__ __align__(1024) uint8_t bytes[];
  PrepareSmem& smem = *reinterpret_cast<PrepareSmem*>(bytes);
  const int head = blockIdx.x % p.heads, chunk = blockIdx.x / p.heads;
  const int64_t tile = p.tile(chunk, head), first = chunk * kChunk;
  const Columns<8> at(threadIdx.x & 31, WarpIndex());
  if (threadIdx.x < kChunk)
    smem.beta[threadIdx.x] = beta[(first + threadIdx.x) * p.heads + head];
  if (threadIdx.x < 4) smem.steep[threadIdx.x] = 0;
  const auto border = [&](int sub, float(&x)[4]) {
    x[0] = x[1] = x[2] = x[3] = 0;
    if (sub > 0)
      LoadFloats(g + p.row(first + sub * kSub - 1, head) + at.col, x);
  };
  float here[4], next[4], one[4], two[4], three[4];
  border(at.sub, here);
  border(at.sub + 1, next);
  border(1, one);
  border(2, two);
  border(3, three);
  if (at.group == 0) {
#pragma unroll
    for (int c = 0; c < 4; c += 2) {
      const int pair = (at.col + c) / 2;
      smem.hop[0][pair] =
          Pack(Exp2(two[c] - one[c]), Exp2(two[c + 1] - one[c + 1]));
      smem.hop[1][pair] =
          Pack(Exp2(three[c] - two[c]), Exp2(three[c + 1] - two[c + 1]));
    }
  }
#pragma unroll 2
  for (int i = 0; i < 8; ++i) {
    const int64_t from = p.row(first + at.row(i), head) + at.col;
    float q[4], k[4], kn[4], kd[4], G[4];
    Unpack(*reinterpret_cast<const uint2*>(p.q + from), q);
    Unpack(*reinterpret_cast<const uint2*>(p.k + from), k);
    LoadFloats(g + from, G);
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      kn[c] = k[c] * Exp2(next[c] - G[c]);
      kd[c] = k[c] * Exp2(here[c] - G[c]);
      q[c] *= Exp2(G[c] - here[c]);
      k[c] *= Exp2(G[c] - here[c]);
    }
    const auto put = [&](uint16_t* to, const float(&x)[4]) {
      *reinterpret_cast<uint2*>(to + Wide(at.row(i), at.col)) =
          PackFour(x[0], x[1], x[2], x[3]);
    };
    put(smem.qp, q);
    put(smem.kp, k);
    put(smem.kn, kn);
    put(smem.kd, kd);
  }
  __syncthreads();
  ScoreChunk(smem, p.aqk + tile * kSquare);
  for (int i = threadIdx.x; i < kSquare; i += kPrepareThreads)
    lower[tile * kSquare + i] =
        smem.inverse[(i >> 6) * kInversePitch + (i & 63)];
}

// Inv diag(beta), rounded, as square tiles.
static __global__ void __launch_bounds__(256)
    InvertKernel(__grid_constant__ const Problem p, const float* beta,
                 const float* lower) {
  __shared__ float m[kChunk * kInversePitch];
  const int head = blockIdx.x % p.heads, chunk = blockIdx.x / p.heads;
  const int64_t tile = p.tile(chunk, head), first = chunk * kChunk;
  for (int i = threadIdx.x; i < kSquare; i += 256)
    m[(i >> 6) * kInversePitch + (i & 63)] = lower[tile * kSquare + i];
  __syncthreads();
  InvertUnitLower(m);
  for (int i = threadIdx.x; i < kSquare / 2; i += 256) {
    const int row = i >> 5, col = (i & 31) * 2;
    uint32_t pair = 0;
    if (col / kSub <= row / kSub) {
      pair = Pack(
          m[row * kInversePitch + col] * beta[(first + col) * p.heads + head],
          m[row * kInversePitch + col + 1] *
              beta[(first + col + 1) * p.heads + head]);
    }
    *reinterpret_cast<uint32_t*>(p.inverse + tile * kSquare +
                                 Square(row, col)) = pair;
  }
}

// Tiles of the workspace into shared memory: there when this returns.
struct TileCopy {
  uint16_t* to;
  const uint16_t* from;
  int elements;
};
template <int kCount>
struct TileCopies {
  TileCopy copies[kCount];
};
template <int kCount>
__device__ __forceinline__ void LoadTiles(uint64_t* loaded,
                                          const TileCopies<kCount>& tiles) {
  if (threadIdx.x == 0) {
    BarrierInit(loaded, 1);
    BarrierInitFence();
    int bytes = 0;
#pragma unroll
    for (const TileCopy& copy : tiles.copies) bytes += 2 * copy.elements;
    BarrierExpect(loaded, bytes);
#pragma unroll
    for (const TileCopy& copy : tiles.copies)
      BulkCopy(copy.to, copy.from, 2 * copy.elements, loaded);
  }
  __syncthreads();
  BarrierWait(loaded, 0);
}

// tiles <- Inv diag(beta) tiles: a batched product, one warpgroup a tile.
struct ProductSmem {
  uint16_t tile[kTile];
  uint16_t inverse[kSquare];
  uint64_t loaded;
};
static __global__ void __launch_bounds__(128)
    MultiplyKernel(const uint16_t* inverse, uint16_t* tiles) {
  extern __shared__ __align__(1024) uint8_t bytes[];
  ProductSmem& smem = *reinterpret_cast<ProductSmem*>(bytes);
  const int64_t tile = blockIdx.x;
  LoadTiles<2>(&smem.loaded,
               {{{smem.tile, tiles + tile * kTile, kTile},
                 {smem.inverse, inverse + tile * kSquare, kSquare}}});
  const HeadPlace at;
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    float d[8][4];
    WgmmaFence();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const uint64_t rows = RowsOfN(smem.inverse + k * 16);
      const uint64_t columns =
          RowsOfK(smem.tile + part * kChunk * 64 + k * 16 * 64, 0);
      if (k == 0) {
        GroupMma<false, true, false>(d, rows, columns);
      } else {
        GroupMma<false, true, true>(d, rows, columns);
      }
    }
    FinishProduct(d);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        *reinterpret_cast<uint32_t*>(
            tiles + tile * kTile +
            Wide(at.row[half], part * 64 + 8 * n + 2 * at.quad)) =
            Pack(d[n][2 * half], d[n][2 * half + 1]);
      }
    }
  }
}

static __global__ void __launch_bounds__(kScanThreads, 1)
    StatesKernel(__grid_constant__ const Problem p) {
  extern __shared__ __align__(1024) uint8_t smem[];
  RunScan<Scan::kStates>(p, ScanOutput{}, *reinterpret_cast<ScanSmem*>(smem),
                         blockIdx.x);
}

// o = qg S + Aqk X: two batched products, one warpgroup a tile.
struct OutputSmem {
  uint16_t qg[kTile], x[kTile];
  uint16_t s[kState];
  uint16_t aqk[kSquare];
  uint64_t loaded;
};
static __global__ void __launch_bounds__(128)
    OutputKernel(__grid_constant__ const Problem p, uint16_t* o) {
  extern __shared__ __align__(1024) uint8_t bytes[];
  OutputSmem& smem = *reinterpret_cast<OutputSmem*>(bytes);
  const int head = blockIdx.x % p.heads, chunk = blockIdx.x / p.heads;
  const int64_t tile = p.tile(chunk, head);
  LoadTiles<4>(&smem.loaded, {{{smem.qg, p.qg + tile * kTile, kTile},
                               {smem.x, p.u + tile * kTile, kTile},
                               {smem.s, p.s + tile * kState, kState},
                               {smem.aqk, p.aqk + tile * kSquare, kSquare}}});
  const HeadPlace at;
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    float d[8][4];
    // State tiles are [V,K]: rows of N.
    WgmmaFence();
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const uint64_t s = RowsOfN(smem.s + (k >> 2) * (kDim * 64) +
                                 part * 64 * 64 + (k & 3) * 16);
      if (k == 0) {
        GroupMma<false, false, false>(d, WideStep(smem.qg, k), s);
      } else {
        GroupMma<false, false, true>(d, WideStep(smem.qg, k), s);
      }
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      GroupMma<false, true, true>(
          d, RowsOfN(smem.aqk + k * 16),
          RowsOfK(smem.x + part * kChunk * 64 + k * 16 * 64, 0));
    }
    FinishProduct(d);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint16_t* to = o + p.row(chunk * kChunk + at.row[half], head) +
                     part * 64 + 2 * at.quad;
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        *reinterpret_cast<uint32_t*>(to + 8 * n) =
            Pack(d[n][2 * half], d[n][2 * half + 1]);
      }
    }
  }
}

}  // namespace cadre::linear_attention

#endif  // CADRE_KERNELS_KDA_KDA_UNFUSED_CUH_
