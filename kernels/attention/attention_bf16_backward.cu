#include <climits>

#include "base/status_macros.h"
#include "kernels/attention/attention_device.cuh"
#include "kernels/common/mma.cuh"
#include "kernels/common/reduce.cuh"

// Two kernels that form the probabilities once each: one owns keys and walks
// queries (dK, dV), the other owns queries and walks keys (dQ). No sum is ever
// shared between blocks.

namespace cadre::attention_device {
namespace {

using mma::Bf16;

constexpr char kOp[] = "attention";
constexpr int kTile = 64;  // queries and keys
constexpr int kThreads = 256;
constexpr float kLog2E = 1.4426950408889634f;

// A warp is a query and head.
__global__ void __launch_bounds__(128) DeltaKernel(const Params<Bf16> p) {
  const int lane = threadIdx.x % 32;
  const int64_t item = int64_t(blockIdx.x) * 4 + threadIdx.x / 32;
  if (item >= p.Real() * p.heads) return;
  float sum = 0;
  for (int d = lane; d < p.v_dim; d += 32) {
    sum +=
        ToFloat(p.o[item * p.v_dim + d]) * ToFloat(p.d_o[item * p.v_dim + d]);
  }
  sum = WarpSum(sum);
  if (lane == 0) ParkDelta(p.dq + item * p.qk_dim, sum);
}

// Two products over the same fragment shapes: scores = x y^T, and gradients of
// the probabilities = z w^T, of 16 rows and 32 columns.
template <int kQk, int kV>
__device__ __forceinline__ void TwoProducts(const Bf16* x, const Bf16* y,
                                            const Bf16* z, const Bf16* w,
                                            int row, int column,
                                            float (&s)[4][4],
                                            float (&dp)[4][4]) {
#pragma unroll
  for (int n = 0; n < 4; ++n) {
#pragma unroll
    for (int j = 0; j < 4; ++j) s[n][j] = dp[n][j] = 0;
  }
#pragma unroll
  for (int d = 0; d < kQk; d += 16) {
    uint32_t a[4];
    mma::LoadA<kQk>(a, x, row, d);
#pragma unroll
    for (int n = 0; n < 32; n += 16) {
      uint32_t b[4];
      mma::LoadB<kQk>(b, y, column + n, d);
      mma::Multiply(s[n / 8], a, b[0], b[1]);
      mma::Multiply(s[n / 8 + 1], a, b[2], b[3]);
    }
  }
#pragma unroll
  for (int d = 0; d < kV; d += 16) {
    uint32_t a[4];
    mma::LoadA<kV>(a, z, row, d);
#pragma unroll
    for (int n = 0; n < 32; n += 16) {
      uint32_t b[4];
      mma::LoadB<kV>(b, w, column + n, d);
      mma::Multiply(dp[n / 8], a, b[0], b[1]);
      mma::Multiply(dp[n / 8 + 1], a, b[2], b[3]);
    }
  }
}

// Half of the columns of out += tile x, over the 64 columns of `tile`, which
// are the rows of x.
template <int kCols>
__device__ __forceinline__ void Accumulate(float (&out)[kCols / 16][4],
                                           const Bf16* tile, const Bf16* x,
                                           int row, int column) {
#pragma unroll
  for (int j = 0; j < kTile; j += 16) {
    uint32_t a[4];
    mma::LoadA<kTile>(a, tile, row, j);
#pragma unroll
    for (int n = 0; n < kCols / 2; n += 16) {
      uint32_t b[4];
      mma::LoadBTransposed<kCols>(b, x, j, column + n);
      mma::Multiply(out[n / 8], a, b[0], b[1]);
      mma::Multiply(out[n / 8 + 1], a, b[2], b[3]);
    }
  }
}

// Two neighbouring columns of a 64-column tile.
__device__ __forceinline__ void StorePair(Bf16* tile, int row, int column,
                                          float low, float high) {
  Bf16* const to =
      tile + row * kTile + (((column >> 3) ^ (row & 7)) << 3) + (column & 7);
  *reinterpret_cast<uint32_t*>(to) = mma::PackPair(low, high);
}

// Writes factor x accumulator rows of this lane, `column` on, to row `to`.
template <int kCols>
__device__ __forceinline__ void StoreRow(const float (&x)[kCols / 16][4],
                                         int half, float factor, int column,
                                         int width, bool vector, Bf16* to) {
#pragma unroll
  for (int n = 0; n < kCols / 16; ++n) {
    const int c = column + n * 8 + (threadIdx.x % 4) * 2;
    const float a = factor * x[n][2 * half], b = factor * x[n][2 * half + 1];
    if (vector) {
      if (c < width) *reinterpret_cast<uint32_t*>(to + c) = mma::PackPair(a, b);
    } else {
      if (c < width) to[c] = __float2bfloat16_rn(a);
      if (c + 1 < width) to[c + 1] = __float2bfloat16_rn(b);
    }
  }
}

// What the walk over queries needs of each of its rows.
struct QueryRow {
  float lse, delta;
  int32_t begin;  // of its document; INT_MAX: no query
  int32_t unused;
  uint64_t selected;
};

template <int kQk, int kV>
constexpr size_t KeysSharedBytes() {
  return (3 * kTile * (kQk + kV) + 2 * kTile * kTile) * sizeof(Bf16) +
         2 * kTile * sizeof(QueryRow);
}

// dK and dV of 64 keys of one key head. Heads that share it follow one another.
template <int kQk, int kV, bool kSelected>
__global__ void __launch_bounds__(kThreads, 1)
    KeysKernel(const Params<Bf16> p) {
  extern __shared__ __align__(128) unsigned char shared[];
  Bf16* const k_tile = reinterpret_cast<Bf16*>(shared);
  Bf16* const v_tile = k_tile + kTile * kQk;
  Bf16* const q_tiles = v_tile + kTile * kV;
  Bf16* const do_tiles = q_tiles + 2 * kTile * kQk;
  Bf16* const p_tile = do_tiles + 2 * kTile * kV;
  Bf16* const ds_tile = p_tile + kTile * kTile;
  QueryRow* const rows = reinterpret_cast<QueryRow*>(ds_tile + kTile * kTile);

  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int row = warp % 4 * 16, half = warp / 4;
  const int kv_head = blockIdx.y, group = p.heads / p.kv_heads;
  const int64_t first = int64_t(blockIdx.x) * kTile;
  const int64_t real = p.Real();
  int64_t end = first;  // of the queries that read these keys
  if (first < real) {
    const int64_t last = min(first + kTile, real) - 1;
    end = min(real, DocumentAt(p.cu, p.docs, last).end);
  }
  const int tiles = static_cast<int>((end - first + kTile - 1) / kTile);
  const int steps = tiles * group;

  auto copy_queries = [&](int step) {
    const int head = kv_head * group + step / tiles;
    const int64_t t = first + int64_t(step % tiles) * kTile;
    const int buffer = step & 1;
    mma::CopyTile<kTile, kQk, kThreads>(
        q_tiles + buffer * kTile * kQk,
        {p.q + t * p.QPitch() + head * p.qk_dim, p.QPitch(), end - t, p.qk_dim,
         p.vector});
    mma::CopyTile<kTile, kV, kThreads>(
        do_tiles + buffer * kTile * kV,
        {p.d_o + t * p.OPitch() + head * p.v_dim, p.OPitch(), end - t, p.v_dim,
         p.vector});
    mma::CopyCommit();
    if (threadIdx.x < kTile) {
      const int64_t mine = t + threadIdx.x;
      QueryRow query = {0, 0, INT_MAX, 0, 0};
      if (mine < end) {
        query.lse = p.lse[mine * p.heads + head];
        query.delta =
            ParkedDelta(p.dq + mine * p.QPitch() + int64_t(head) * p.qk_dim);
        query.begin = FirstKey(p, mine);
        if constexpr (kSelected) {
          SelectionCursor cursor(p, mine);
          cursor.Seek(static_cast<int32_t>(first));
          query.selected = cursor.Take(static_cast<int32_t>(first));
        }
      }
      rows[buffer * kTile + threadIdx.x] = query;
    }
  };

  float dk[kQk / 16][4] = {}, dv[kV / 16][4] = {};
  const float factor = p.scale * kLog2E;
  if (steps > 0) {
    mma::CopyTile<kTile, kQk, kThreads>(
        k_tile, {p.k + first * p.KPitch() + kv_head * p.qk_dim, p.KPitch(),
                 real - first, p.qk_dim, p.vector});
    mma::CopyTile<kTile, kV, kThreads>(
        v_tile, {p.v + first * p.VPitch() + kv_head * p.v_dim, p.VPitch(),
                 real - first, p.v_dim, p.vector});
    copy_queries(0);
  }
  for (int step = 0; step < steps; ++step) {
    if (step + 1 < steps) {
      copy_queries(step + 1);
      mma::CopyWait<1>();
    } else {
      mma::CopyWait<0>();
    }
    __syncthreads();
    const Bf16* const q_tile = q_tiles + (step & 1) * kTile * kQk;
    const Bf16* const do_tile = do_tiles + (step & 1) * kTile * kV;
    const QueryRow* const query = rows + (step & 1) * kTile;
    const int32_t t = static_cast<int32_t>(first) + (step % tiles) * kTile;

    float s[4][4], ds[4][4];
    TwoProducts<kQk, kV>(k_tile, q_tile, v_tile, do_tile, row, half * 32, s,
                         ds);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const int column = half * 32 + n * 8 + (lane % 4) * 2;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const QueryRow& q = query[column + j % 2];
        const int key_row = row + lane / 4 + j / 2 * 8;
        const int32_t key = static_cast<int32_t>(first) + key_row;
        const bool allowed = kSelected
                                 ? (q.selected >> key_row & 1) != 0
                                 : key <= t + column + j % 2 && key >= q.begin;
        // Selected, not multiplied: what is masked may be anything.
        const float prob =
            allowed ? exp2f(s[n][j] * factor - q.lse * kLog2E) : 0;
        s[n][j] = prob;
        ds[n][j] = allowed ? prob * (ds[n][j] - q.delta) : 0;
      }
      StorePair(p_tile, row + lane / 4, column, s[n][0], s[n][1]);
      StorePair(p_tile, row + lane / 4 + 8, column, s[n][2], s[n][3]);
      StorePair(ds_tile, row + lane / 4, column, ds[n][0], ds[n][1]);
      StorePair(ds_tile, row + lane / 4 + 8, column, ds[n][2], ds[n][3]);
    }
    __syncthreads();
    Accumulate<kV>(dv, p_tile, do_tile, row, half * kV / 2);
    Accumulate<kQk>(dk, ds_tile, q_tile, row, half * kQk / 2);
    __syncthreads();  // all tiles may be overwritten
  }

#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int64_t key = first + row + lane / 4 + 8 * h;
    if (key >= p.tokens) continue;
    StoreRow<kQk>(dk, h, p.scale, half * kQk / 2, p.qk_dim, p.vector,
                  p.dk + key * p.KPitch() + kv_head * p.qk_dim);
    StoreRow<kV>(dv, h, 1.0f, half * kV / 2, p.v_dim, p.vector,
                 p.dv + key * p.VPitch() + kv_head * p.v_dim);
  }
}

template <int kQk, int kV>
constexpr size_t QueriesSharedBytes() {
  return (3 * kTile * (kQk + kV) + kTile * kTile) * sizeof(Bf16) +
         2 * kTile * sizeof(uint64_t);
}

// dQ of 64 queries of one head.
template <int kQk, int kV, bool kSelected>
__global__ void __launch_bounds__(kThreads, 1)
    QueriesKernel(const Params<Bf16> p) {
  extern __shared__ __align__(128) unsigned char shared[];
  Bf16* const q_tile = reinterpret_cast<Bf16*>(shared);
  Bf16* const do_tile = q_tile + kTile * kQk;
  Bf16* const k_tiles = do_tile + kTile * kV;
  Bf16* const v_tiles = k_tiles + 2 * kTile * kQk;
  Bf16* const ds_tile = v_tiles + 2 * kTile * kV;
  uint64_t* const masks = reinterpret_cast<uint64_t*>(ds_tile + kTile * kTile);

  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int row = warp % 4 * 16, half = warp / 4;
  const int head = blockIdx.y, kv_head = p.KvHead(head);
  const int64_t first = int64_t(gridDim.x - 1 - blockIdx.x) * kTile;
  const int64_t real = p.Real();
  const int64_t last = min(first + kTile, real) - 1;
  const int32_t key_begin = FirstKey(p, first);
  const int64_t span = last + 1 - key_begin;
  const int steps = span > 0 ? static_cast<int>((span + kTile - 1) / kTile) : 0;

  const Bf16* const k = p.k + kv_head * p.qk_dim;
  const Bf16* const v = p.v + kv_head * p.v_dim;
  auto copy_keys = [&](int step) {
    const int64_t key = key_begin + int64_t(step) * kTile;
    mma::CopyTile<kTile, kQk, kThreads>(
        k_tiles + (step & 1) * kTile * kQk,
        {k + key * p.KPitch(), p.KPitch(), real - key, p.qk_dim, p.vector});
    mma::CopyTile<kTile, kV, kThreads>(
        v_tiles + (step & 1) * kTile * kV,
        {v + key * p.VPitch(), p.VPitch(), real - key, p.v_dim, p.vector});
    mma::CopyCommit();
  };
  if (steps > 0) {
    mma::CopyTile<kTile, kQk, kThreads>(
        q_tile, {p.q + first * p.QPitch() + head * p.qk_dim, p.QPitch(),
                 real - first, p.qk_dim, p.vector});
    mma::CopyTile<kTile, kV, kThreads>(
        do_tile, {p.d_o + first * p.OPitch() + head * p.v_dim, p.OPitch(),
                  real - first, p.v_dim, p.vector});
    copy_keys(0);
  }

  // Of this lane's rows; the parked deltas are read before any row is written.
  int32_t begin[2], t[2];
  float lse[2] = {0, 0}, delta[2] = {0, 0};
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int64_t mine = first + row + lane / 4 + 8 * h;
    t[h] = static_cast<int32_t>(mine);
    begin[h] = FirstKey(p, mine);
    if (mine < real) {
      lse[h] = p.lse[mine * p.heads + head] * kLog2E;
      delta[h] = ParkedDelta(p.dq + mine * p.QPitch() + head * p.qk_dim);
    }
  }
  SelectionCursor cursor(p, kSelected ? first + threadIdx.x % kTile : real);

  float dq[kQk / 16][4] = {};
  const float factor = p.scale * kLog2E;
  for (int step = 0; step < steps; ++step) {
    const int32_t key = key_begin + step * kTile;
    if constexpr (kSelected) {
      if (threadIdx.x < kTile)
        masks[(step & 1) * kTile + threadIdx.x] = cursor.Take(key);
    }
    if (step + 1 < steps) {
      copy_keys(step + 1);
      mma::CopyWait<1>();
    } else {
      mma::CopyWait<0>();
    }
    __syncthreads();
    const Bf16* const k_tile = k_tiles + (step & 1) * kTile * kQk;
    const Bf16* const v_tile = v_tiles + (step & 1) * kTile * kV;
    float s[4][4], ds[4][4];
    TwoProducts<kQk, kV>(q_tile, k_tile, do_tile, v_tile, row, half * 32, s,
                         ds);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const int column = half * 32 + n * 8 + (lane % 4) * 2;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int h = j / 2, offset = column + j % 2;
        bool allowed;
        if constexpr (kSelected) {
          const int mine = row + lane / 4 + 8 * h;
          allowed = masks[(step & 1) * kTile + mine] >> offset & 1;
        } else {
          allowed = key + offset <= t[h] && key + offset >= begin[h];
        }
        const float prob = allowed ? exp2f(s[n][j] * factor - lse[h]) : 0;
        ds[n][j] = allowed ? prob * (ds[n][j] - delta[h]) : 0;
      }
      StorePair(ds_tile, row + lane / 4, column, ds[n][0], ds[n][1]);
      StorePair(ds_tile, row + lane / 4 + 8, column, ds[n][2], ds[n][3]);
    }
    __syncthreads();
    Accumulate<kQk>(dq, ds_tile, k_tile, row, half * kQk / 2);
    __syncthreads();  // the tiles may be overwritten
  }

#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int64_t mine = first + row + lane / 4 + 8 * h;
    if (mine >= p.tokens) continue;
    StoreRow<kQk>(dq, h, p.scale, half * kQk / 2, p.qk_dim, p.vector,
                  p.dq + mine * p.QPitch() + head * p.qk_dim);
  }
}

template <int kQk, int kV, bool kSelected>
absl::Status LaunchTile(const Exec& exec, const Params<Bf16>& p) {
  const unsigned tiles = unsigned((p.tokens + kTile - 1) / kTile);
  CADRE_RETURN_IF_ERROR(Launch(
      kOp, exec,
      {.grid = dim3(unsigned((p.tokens * p.heads + 3) / 4)), .block = 128},
      DeltaKernel, p));
  const LaunchShape keys = {.grid = dim3(tiles, p.kv_heads),
                            .block = kThreads,
                            .shared_bytes = KeysSharedBytes<kQk, kV>()};
  auto* const keys_kernel = KeysKernel<kQk, kV, kSelected>;
  CADRE_RETURN_IF_ERROR(Launch(kOp, exec, keys, keys_kernel, p));
  const LaunchShape queries = {.grid = dim3(tiles, p.heads),
                               .block = kThreads,
                               .shared_bytes = QueriesSharedBytes<kQk, kV>()};
  return Launch(kOp, exec, queries, QueriesKernel<kQk, kV, kSelected>, p);
}

template <int kQk, int kV>
absl::Status LaunchTile(const Exec& exec, const Params<Bf16>& p) {
  return p.selected != nullptr ? LaunchTile<kQk, kV, true>(exec, p)
                               : LaunchTile<kQk, kV, false>(exec, p);
}

}  // namespace

absl::Status BackwardBf16(const Exec& exec, const Params<Bf16>& p) {
  if (p.qk_dim <= 64 && p.v_dim <= 64) return LaunchTile<64, 64>(exec, p);
  if (p.qk_dim <= 128 && p.v_dim <= 128) return LaunchTile<128, 128>(exec, p);
  if (p.qk_dim <= 192 && p.v_dim <= 128) return LaunchTile<192, 128>(exec, p);
  return LaunchTile<256, 256>(exec, p);
}

}  // namespace cadre::attention_device
