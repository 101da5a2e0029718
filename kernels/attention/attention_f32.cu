#include "base/status_macros.h"
#include "kernels/attention/attention_device.cuh"
#include "kernels/common/reduce.cuh"

// Attention in full float32, for checks against the CPU: plain products from
// shared memory, tiles of 32 queries and 32 keys. A thread holds one row and
// every eighth column.

namespace cadre::attention_device {
namespace {

constexpr char kOp[] = "attention";
constexpr int kTile = 32;
constexpr int kThreads = 256;
constexpr int kLanes = kThreads / kTile;  // threads of a row
constexpr int kColumns = 256 / kLanes;    // at most, of a thread

// Rows [0, kTile) of x; rows from `count` on are zero. Pitch width + 1.
__device__ void CopyTile(float* tile, const float* x, int64_t pitch,
                         int64_t count, int width) {
  for (int i = threadIdx.x; i < kTile * width; i += kThreads) {
    const int r = i / width, c = i % width;
    tile[r * (width + 1) + c] = r < count ? x[r * pitch + c] : 0;
  }
}

__device__ float Dot(const float* a, const float* b, int n) {
  float sum = 0;
  for (int i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

__device__ __forceinline__ bool Allowed(uint64_t bits, bool selected, int32_t t,
                                        int32_t begin, int32_t key,
                                        int offset) {
  return selected ? (bits >> offset & 1) != 0 : key <= t && key >= begin;
}

__global__ void __launch_bounds__(kThreads)
    ForwardKernel(const Params<float> p) {
  extern __shared__ float shared[];
  float* const q_tile = shared;
  float* const k_tile = q_tile + kTile * (p.qk_dim + 1);
  float* const v_tile = k_tile + kTile * (p.qk_dim + 1);
  float* const probs = v_tile + kTile * (p.v_dim + 1);  // [kTile][kTile + 1]
  const int row = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  const int head = blockIdx.y, kv_head = p.KvHead(head);
  const int64_t first = int64_t(gridDim.x - 1 - blockIdx.x) * kTile;
  const int64_t real = p.Real();
  const int64_t end = min(first + kTile, real);
  const int64_t t = first + row;
  const int32_t begin = FirstKey(p, t);
  SelectionCursor cursor(p, p.selected != nullptr ? t : real);

  CopyTile(q_tile, p.q + first * p.QPitch() + head * p.qk_dim, p.QPitch(),
           real - first, p.qk_dim);
  float out[kColumns] = {};
  float top = -INFINITY, sum = 0;
  for (int64_t key = FirstKey(p, first); key < end; key += kTile) {
    __syncthreads();  // the tiles of the last step have been read
    CopyTile(k_tile, p.k + key * p.KPitch() + kv_head * p.qk_dim, p.KPitch(),
             real - key, p.qk_dim);
    CopyTile(v_tile, p.v + key * p.VPitch() + kv_head * p.v_dim, p.VPitch(),
             real - key, p.v_dim);
    __syncthreads();
    const uint64_t bits = p.selected != nullptr ? cursor.Peek(int32_t(key)) : 0;
    float s[kTile / kLanes];
    float best = top;
#pragma unroll
    for (int j = 0; j < kTile / kLanes; ++j) {
      const int c = lane + j * kLanes;
      const bool allowed = Allowed(bits, p.selected != nullptr, int32_t(t),
                                   begin, int32_t(key) + c, c);
      s[j] = allowed ? p.scale * Dot(q_tile + row * (p.qk_dim + 1),
                                     k_tile + c * (p.qk_dim + 1), p.qk_dim)
                     : -INFINITY;
      best = fmaxf(best, s[j]);
    }
    best = WarpReduce<MaxOp, kLanes>(best);
    const float base = best == -INFINITY ? 0 : best;
    const float shrink = expf(top - base);
    top = best;
    sum *= shrink;
#pragma unroll
    for (int j = 0; j < kTile / kLanes; ++j) {
      const float e = expf(s[j] - base);
      sum += e;
      probs[row * (kTile + 1) + lane + j * kLanes] = e;
    }
    __syncwarp();  // a row belongs to one warp
    for (int j = 0; j < kColumns; ++j) {
      const int d = lane + j * kLanes;
      if (d >= p.v_dim) break;
      float dot = out[j] * shrink;
      for (int c = 0; c < kTile; ++c)
        dot += probs[row * (kTile + 1) + c] * v_tile[c * (p.v_dim + 1) + d];
      out[j] = dot;
    }
    __syncwarp();
  }
  sum = WarpSum<kLanes>(sum);
  if (t >= p.tokens) return;
  if (lane == 0)
    p.lse[t * p.heads + head] = sum > 0 ? top + logf(sum) : -INFINITY;
  for (int j = 0; j < kColumns; ++j) {
    const int d = lane + j * kLanes;
    if (d >= p.v_dim) break;
    p.out[t * p.OPitch() + head * p.v_dim + d] = sum > 0 ? out[j] / sum : 0;
  }
}

__global__ void DeltaKernel(const Params<float> p) {
  const int lane = threadIdx.x % 32;
  const int64_t item = int64_t(blockIdx.x) * 4 + threadIdx.x / 32;
  if (item >= p.Real() * p.heads) return;
  float sum = 0;
  for (int d = lane; d < p.v_dim; d += 32)
    sum += p.o[item * p.v_dim + d] * p.d_o[item * p.v_dim + d];
  sum = WarpSum(sum);
  if (lane == 0) ParkDelta(p.dq + item * p.qk_dim, sum);
}

// dQ of 32 queries, or (kKeys) dK and dV of 32 keys. `mine` are the tiles of
// the block's own rows: q and do, or k and v; `theirs` are walked.
template <bool kKeys>
__global__ void __launch_bounds__(kThreads)
    BackwardKernel(const Params<float> p) {
  extern __shared__ float shared[];
  const int qk_pitch = p.qk_dim + 1, v_pitch = p.v_dim + 1;
  float* const q_tile = shared;
  float* const k_tile = q_tile + kTile * qk_pitch;
  float* const v_tile = k_tile + kTile * qk_pitch;
  float* const do_tile = v_tile + kTile * v_pitch;
  // [kTile][kTile + 1] each, a row for each own row.
  float* const probs = do_tile + kTile * v_pitch;
  float* const dscores = probs + kTile * (kTile + 1);
  const int row = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  const int group = p.heads / p.kv_heads;
  const int kv_head = kKeys ? blockIdx.y : p.KvHead(blockIdx.y);
  const int64_t first = int64_t(blockIdx.x) * kTile;
  const int64_t real = p.Real();
  int64_t begin = 0, end = 0;  // of the rows walked
  if (first < real) {
    const int64_t last = min(first + kTile, real) - 1;
    begin = kKeys ? first : FirstKey(p, first);
    end = kKeys ? min(real, DocumentAt(p.cu, p.docs, last).end) : last + 1;
  }
  float a[kColumns] = {}, b[kColumns] = {};  // dQ, or dK and dV
  const int first_head = kKeys ? kv_head * group : blockIdx.y;
  const int heads = kKeys ? group : 1;
  for (int head = first_head; head < first_head + heads; ++head) {
    for (int64_t walk = begin; walk < end; walk += kTile) {
      const int64_t query = kKeys ? walk : first, key = kKeys ? first : walk;
      __syncthreads();  // the tiles of the last step have been read
      CopyTile(q_tile, p.q + query * p.QPitch() + head * p.qk_dim, p.QPitch(),
               real - query, p.qk_dim);
      CopyTile(do_tile, p.d_o + query * p.OPitch() + head * p.v_dim, p.OPitch(),
               real - query, p.v_dim);
      CopyTile(k_tile, p.k + key * p.KPitch() + kv_head * p.qk_dim, p.KPitch(),
               real - key, p.qk_dim);
      CopyTile(v_tile, p.v + key * p.VPitch() + kv_head * p.v_dim, p.VPitch(),
               real - key, p.v_dim);
      __syncthreads();
      for (int j = 0; j < kTile / kLanes; ++j) {
        const int other = lane + j * kLanes;
        const int q_row = kKeys ? other : row, k_row = kKeys ? row : other;
        const int64_t t = query + q_row;
        float prob = 0, ds = 0;
        bool allowed = t < real;
        if (allowed) {
          uint64_t bits = 0;
          if (p.selected != nullptr) {
            SelectionCursor cursor(p, t);
            bits = cursor.Peek(int32_t(key));
          }
          allowed = Allowed(bits, p.selected != nullptr, int32_t(t),
                            FirstKey(p, t), int32_t(key) + k_row, k_row);
        }
        if (allowed) {
          const int64_t at = t * p.heads + head;
          prob = expf(p.scale * Dot(q_tile + q_row * qk_pitch,
                                    k_tile + k_row * qk_pitch, p.qk_dim) -
                      p.lse[at]);
          ds = prob * (Dot(do_tile + q_row * v_pitch, v_tile + k_row * v_pitch,
                           p.v_dim) -
                       ParkedDelta(p.dq + at * p.qk_dim));
        }
        probs[row * (kTile + 1) + other] = prob;
        dscores[row * (kTile + 1) + other] = ds;
      }
      __syncwarp();  // a row belongs to one warp
      const float* const x = kKeys ? q_tile : k_tile;
      for (int j = 0; j < kColumns; ++j) {
        const int d = lane + j * kLanes;
        if (d < p.qk_dim)
          for (int c = 0; c < kTile; ++c)
            a[j] += dscores[row * (kTile + 1) + c] * x[c * qk_pitch + d];
        if (kKeys && d < p.v_dim)
          for (int c = 0; c < kTile; ++c)
            b[j] += probs[row * (kTile + 1) + c] * do_tile[c * v_pitch + d];
      }
      __syncwarp();
    }
  }
  __syncthreads();  // parked deltas have been read before dQ replaces them
  const int64_t mine = first + row;
  if (mine >= p.tokens) return;
  float* const to =
      kKeys ? p.dk + mine * p.KPitch() + int64_t(kv_head) * p.qk_dim
            : p.dq + mine * p.QPitch() + int64_t(blockIdx.y) * p.qk_dim;
  for (int j = 0; j < kColumns; ++j) {
    const int d = lane + j * kLanes;
    if (d < p.qk_dim) to[d] = p.scale * a[j];
    if (kKeys && d < p.v_dim)
      p.dv[mine * p.VPitch() + int64_t(kv_head) * p.v_dim + d] = b[j];
  }
}

}  // namespace

absl::Status ForwardF32(const Exec& exec, const Params<float>& p) {
  const size_t floats = kTile * (2 * (p.qk_dim + 1) + p.v_dim + 1 + kTile + 1);
  return Launch(
      kOp, exec,
      {.grid = dim3(unsigned((p.tokens + kTile - 1) / kTile), p.heads),
       .block = kThreads,
       .shared_bytes = floats * sizeof(float)},
      ForwardKernel, p);
}

absl::Status BackwardF32(const Exec& exec, const Params<float>& p) {
  const size_t floats = kTile * 2 * (p.qk_dim + 1 + p.v_dim + 1 + kTile + 1);
  const unsigned tiles = unsigned((p.tokens + kTile - 1) / kTile);
  CADRE_RETURN_IF_ERROR(Launch(
      kOp, exec,
      {.grid = dim3(unsigned((p.tokens * p.heads + 3) / 4)), .block = 128},
      DeltaKernel, p));
  CADRE_RETURN_IF_ERROR(Launch(kOp, exec,
                               {.grid = dim3(tiles, p.kv_heads),
                                .block = kThreads,
                                .shared_bytes = floats * sizeof(float)},
                               BackwardKernel<true>, p));
  return Launch(kOp, exec,
                {.grid = dim3(tiles, p.heads),
                 .block = kThreads,
                 .shared_bytes = floats * sizeof(float)},
                BackwardKernel<false>, p);
}

}  // namespace cadre::attention_device
