#ifndef CADRE_KERNELS_LINEAR_ATTENTION_FINISH_CUH_
#define CADRE_KERNELS_LINEAR_ATTENTION_FINISH_CUH_

// The last part of the backward: gradients of one chunk from the states and
// their gradients around it. One block of 512 threads for each (chunk, head).
// Private to kernels/{kda,gdn}.
//
//   dq1 = K^-1/2 (dO S^T) exp(G)     dkN = (X dS^T) exp(Gn - G)
//   dw = -dX S^T     dAqk = tril(K^-1/2 dO X^T)
//   v' = Inv^T dX    k' = Inv^T dw   dv = beta v'
//   M = stril(dX v^T + dw (exp(G) k)^T) diag(beta)
//   dAkk = -stril(Inv^T M Inv^T)
//   aq_i = sum_{j<=i} dAqk_ij exp(G_i - G_j) k_j     ak_i likewise of dAkk
//   kt_j = sum_{i>=j} exp(G_i - G_j) (dAqk_ij q_i + dAkk_ij beta_i k_i)
//   dq = dq1 + aq       dk = dkN + beta exp(G) k' + beta ak + kt
//   dbeta = <v', v> + <k', exp(G) k> + <ak, k>
//   dG = q dq - k dkN + beta exp(G) k k' + beta k ak - k kt, and in the last
//   row exp(Gn) rowsum(S dS) + colsum(k dkN);  dg is its sum from below.
// The sums with exp(G_i - G_j) run from sub-block to sub-block, what is summed
// so far decaying on the way, in tf32: bf16 would be seen in dg.
//
// A warp owns a 16x32 piece of every [64,128] result, in accumulators.

#include "kernels/linear_attention/chunk.cuh"
#include "kernels/linear_attention/decays.cuh"
#include "kernels/linear_attention/finish_products.cuh"

namespace cadre::linear_attention {

constexpr int kFinishThreads = 512;
constexpr int kSquarePitch = 72;  // bf16

struct FinishTiles {  // wide and state tiles
  uint16_t s[kState];
  uint16_t ds[kState];
  uint16_t d_o[kTile];
  uint16_t x[kTile];
  uint16_t dx[kTile];
  uint16_t v[kTile];
};
struct FinishOperands {  // deep
  float kn[kTile];       // k exp(border behind - G)
  float kd[kTile];       // k exp(border before - G)
  float qp[kTile];       // q exp(G - border before)
  float kp[kTile];       // beta k exp(G - border before)
};
struct FinishSmem {
  union {
    FinishTiles in;
    FinishOperands deep;
  };
  float g[kTile];  // G inside sub-blocks; plain rows
  union {
    struct {
      uint16_t dw[kTile];
      uint16_t ke[kTile];  // exp(G) k
    };
    struct {
      uint16_t t[kChunk * kSquarePitch];  // M Inv^T
      float d_akk[kChunk * kScorePitch];
    };
  };
  float d_aqk[kChunk * kScorePitch];
  uint16_t inverse[kSquare];
  float border[5][kDim];
  float fall[4][kDim];
  float partial[8][kDim];     // sums over a part of the rows
  float row_part[4][kChunk];  // sums over a part of the columns
  float beta[kChunk];
  int steep[4];
  uint64_t loaded;
};

struct FinishOutput {
  uint16_t* dq;  // null where part_dq is given
  uint16_t* dk;
  uint16_t* dv;
  uint16_t* dz;  // KDA
  float* da;     // GDN
  float* dbeta;
  // f32 [T,num_heads,128]: GDN with shared key heads, to be summed over them.
  float* part_dq;
  float* part_dk;
  // Partial sums of a tile, both or neither: [1]; [128] (KDA) or [1] (GDN).
  float* part_a_log;
  float* part_dt_bias;
};

template <bool kHeadGate>
__device__ __forceinline__ void FinishChunk(const Problem& p,
                                            const FinishOutput& out,
                                            FinishSmem& smem) {
  const int tid = threadIdx.x, lane = tid & 31, warp = WarpIndex();
  const int group = lane >> 2, quad = lane & 3;
  const int head = p.first_head + blockIdx.x % p.num_heads;
  const int chunk_index = blockIdx.x / p.num_heads;
  const Chunk chunk = p.chunks[chunk_index];
  if (chunk.length == 0) return;
  const int64_t tile = p.tile(chunk_index, head);

  if (tid == 0) {
    BarrierInit(&smem.loaded, 1);
    BarrierInitFence();
    constexpr uint32_t kBytes = 2 * (2 * kState + 2 * kTile + kSquare);
    BarrierArriveExpect(&smem.loaded, kBytes);
    BulkCopy(smem.in.s, p.s + tile * kState, kState * 2, &smem.loaded);
    BulkCopy(smem.in.ds, p.ds + tile * kState, kState * 2, &smem.loaded);
    BulkCopy(smem.in.x, p.u + tile * kTile, kTile * 2, &smem.loaded);
    BulkCopy(smem.in.dx, p.dx + tile * kTile, kTile * 2, &smem.loaded);
    BulkCopy(smem.inverse, p.inverse + tile * kSquare, kSquare * 2,
             &smem.loaded);
  }
  const uint16_t* from_do = p.d_o + p.row(chunk.begin, head);
  const uint16_t* from_v = p.v + p.row(chunk.begin, head);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = i * 32 + (tid >> 4), col = (tid & 15) * 8;
    const bool valid = row < chunk.length;
    const int from = (valid ? row : 0) * p.pitch() + col;
    CopyAsync16(smem.in.d_o + Wide(row, col), from_do + from, valid);
    CopyAsync16(smem.in.v + Wide(row, col), from_v + from, valid);
  }
  CopyAsyncCommit();
  if (tid < kChunk) {
    float b = 0;
    if (tid < chunk.length) {
      const float logit =
          p.beta[static_cast<int64_t>(chunk.begin + tid) * p.heads + head];
      b = Reciprocal(1.0f + Exp2(-kLog2E * logit));
    }
    smem.beta[tid] = b;
  }
  const Columns<4> at(lane, warp);
  const uint16_t* from_q = p.q + p.key_row(chunk.begin, head);
  const uint16_t* from_k = p.k + p.key_row(chunk.begin, head);
  {
    float g[4][4];
    SumDecays<kHeadGate, 4>(
        p, chunk, head, at, g, reinterpret_cast<float(*)[kDim]>(smem.d_aqk),
        smem.border, smem.fall, smem.steep, smem.row_part[0]);
    float here[4];
    LoadDecays<kHeadGate>(&smem.border[at.sub][at.col], here);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      *reinterpret_cast<float4*>(&smem.g[Deep(at.row(i), at.col)]) =
          make_float4(g[i][0], g[i][1], g[i][2], g[i][3]);
      float k[4];
      Unpack(LoadFour(from_k, p.key_pitch(), chunk.length, at, i), k);
      *reinterpret_cast<uint2*>(&smem.ke[Wide(at.row(i), at.col)]) = PackFour(
          k[0] * Exp2(g[i][0] + here[0]), k[1] * Exp2(g[i][1] + here[1]),
          k[2] * Exp2(g[i][2] + here[2]), k[3] * Exp2(g[i][3] + here[3]));
    }
  }
  CopyAsyncWait<0>();
  BarrierWait(&smem.loaded, 0);
  __syncthreads();

  // Products with the states.
  const int part = warp & 3, block = warp >> 2;
  const int row0 = block * kSub, col0 = part * 32;
  float dq[4][4] = {}, dk[4][4] = {};
  {
    float acc[2][4][4] = {};
    MultiplyState<2>(acc, {smem.in.d_o, smem.in.dx}, smem.in.s, row0, col0,
                     lane);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) dq[n][i] = acc[0][n][i];
    }
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const float(&x)[4] = acc[1][2 * n];
      const float(&y)[4] = acc[1][2 * n + 1];
      const uint32_t pair[4] = {Pack(-x[0], -x[1]), Pack(-x[2], -x[3]),
                                Pack(-y[0], -y[1]), Pack(-y[2], -y[3])};
      StoreMatrix4(smem.dw + Wide(row0 + RowsFirstRow(lane),
                                  col0 + 16 * n + RowsFirstCol(lane)),
                   pair);
    }
  }
  {
    float acc[1][4][4] = {};
    MultiplyState<1>(acc, {smem.in.x}, smem.in.ds, row0, col0, lane);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) dk[n][i] = acc[0][n][i];
    }
  }
  if (part <= block) {
    float acc[2][4] = {};
    MultiplyRows(acc, smem.in.d_o, smem.in.x, row0, part * kSub, lane);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int i = row0 + group + 8 * half;
        const int j = part * kSub + 8 * n + 2 * quad;
        *reinterpret_cast<float2*>(&smem.d_aqk[i * kScorePitch + j]) =
            make_float2(
                j <= i ? Tf32(acc[n][2 * half] * kScale) : 0.0f,
                j + 1 <= i ? Tf32(acc[n][2 * half + 1] * kScale) : 0.0f);
      }
    }
  }
  {
    // rowsum(S dS), an eighth of the rows of V.
    const int pair = tid & 63, eighth = tid >> 6;
    float sum0 = 0, sum1 = 0;
#pragma unroll 4
    for (int i = 0; i < 16; ++i) {
      const int offset = Wide<kDim>(eighth * 16 + i, 2 * pair);
      const uint32_t s = *reinterpret_cast<uint32_t*>(smem.in.s + offset);
      const uint32_t ds = *reinterpret_cast<uint32_t*>(smem.in.ds + offset);
      sum0 += Low(s) * Low(ds);
      sum1 += High(s) * High(ds);
    }
    *reinterpret_cast<float2*>(&smem.partial[eighth][2 * pair]) =
        make_float2(sum0, sum1);
  }
  __syncthreads();

  // Products with the inverse. From here on dead: s, ds, d_o, x.
  uint16_t* m = smem.in.s;                                // [64, kSquarePitch]
  uint16_t* dv_tile = smem.in.ds;                         // wide
  float* col_part = reinterpret_cast<float*>(smem.in.x);  // [4][128]
  const float beta[2] = {smem.beta[row0 + group], smem.beta[row0 + group + 8]};
  float row_sum[2] = {0, 0};
  // The accumulator's two rows, and its first column, in tensors of keys; rows
  // behind the end are read elsewhere and taken as zeros.
  const int my_row[2] = {row0 + group, row0 + group + 8};
  const bool live[2] = {my_row[0] < chunk.length, my_row[1] < chunk.length};
  auto key_at = [&](int half) {
    return min(my_row[half], chunk.length - 1) * p.key_pitch() + col0 +
           2 * quad;
  };
  auto key_pair = [&](const uint16_t* from, int n, int half) -> uint32_t {
    const uint32_t pair =
        *reinterpret_cast<const uint32_t*>(from + key_at(half) + 8 * n);
    return live[half] ? pair : 0;
  };
  float head_g[2] = {};  // kHeadGate: of the two rows
  if constexpr (kHeadGate) {
    head_g[0] = smem.g[Deep(my_row[0], 0)];
    head_g[1] = smem.g[Deep(my_row[1], 0)];
  }
  auto g_pair = [&](int n, int half) {
    if constexpr (kHeadGate) return make_float2(head_g[half], head_g[half]);
    return *reinterpret_cast<const float2*>(
        &smem.g[Deep(my_row[half], col0 + 8 * n + 2 * quad)]);
  };
  // Two columns of decays that are the same in all rows.
  auto decay_pair = [&](const float* from, int n) {
    if constexpr (kHeadGate) return make_float2(from[0], from[0]);
    return *reinterpret_cast<const float2*>(from + col0 + 8 * n + 2 * quad);
  };
  {
    float acc[4][4] = {};
    MultiplyInverse(acc, smem.inverse, smem.in.dx, block, col0, lane);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t v = *reinterpret_cast<const uint32_t*>(
            smem.in.v + Wide(row0 + group + 8 * half, col0 + 8 * n + 2 * quad));
        row_sum[half] +=
            acc[n][2 * half] * Low(v) + acc[n][2 * half + 1] * High(v);
        acc[n][2 * half] *= beta[half];
        acc[n][2 * half + 1] *= beta[half];
      }
    }
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const float(&x)[4] = acc[2 * n];
      const float(&y)[4] = acc[2 * n + 1];
      const uint32_t pair[4] = {Pack(x[0], x[1]), Pack(x[2], x[3]),
                                Pack(y[0], y[1]), Pack(y[2], y[3])};
      StoreMatrix4(dv_tile + Wide(row0 + RowsFirstRow(lane),
                                  col0 + 16 * n + RowsFirstCol(lane)),
                   pair);
    }
  }
  float dg[4][4];
  {
    float acc[4][4] = {};
    MultiplyInverse(acc, smem.inverse, smem.dw, block, col0, lane);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      float written[2] = {0, 0};
      const int col = col0 + 8 * n + 2 * quad;
      const float2 here = decay_pair(smem.border[block], n);
      float2 rest = decay_pair(smem.border[4], n);
      rest.x -= here.x;
      rest.y -= here.y;

#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t pair = key_pair(from_k, n, half);
        const float2 gs = g_pair(n, half);
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int i = 2 * half + e;
          const float k = e == 0 ? Low(pair) : High(pair);
          const float g = e == 0 ? gs.x : gs.y;
          const float since = Exp2(g + (e == 0 ? here.x : here.y));
          const float until = Exp2((e == 0 ? rest.x : rest.y) - g);
          dq[n][i] *= kScale * since;
          const float kept = dk[n][i] * until;
          const float read = since * acc[n][i];
          row_sum[half] += read * k;
          dk[n][i] = kept + beta[half] * read;
          dg[n][i] = k * (beta[half] * read - kept);
          written[e] += k * kept;
        }
      }
      written[0] = GroupSum(written[0]);
      written[1] = GroupSum(written[1]);
      if (group == 0) {
        col_part[block * kDim + col] = written[0];
        col_part[block * kDim + col + 1] = written[1];
      }
    }
  }
  if (part <= block) {
    float acc[2][4] = {};
    MultiplyRows(acc, smem.in.dx, smem.in.v, row0, part * kSub, lane);
    MultiplyRows(acc, smem.dw, smem.ke, row0, part * kSub, lane);
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const int j = part * kSub + 8 * n + 2 * quad;
      const float beta0 = smem.beta[j], beta1 = smem.beta[j + 1];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int i = row0 + group + 8 * half;
        *reinterpret_cast<uint32_t*>(m + i * kSquarePitch + j) =
            Pack(j < i ? acc[n][2 * half] * beta0 : 0.0f,
                 j + 1 < i ? acc[n][2 * half + 1] * beta1 : 0.0f);
      }
    }
  }
  __syncthreads();

  // T = M Inv^T, lower blocks. Dead: dw, ke, and dv_tile when it is out.
  if (part <= block) {
    float acc[2][4] = {};
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if (k > part) continue;
      uint32_t a[4], b[4];
      LoadMatrix4(a, m + (row0 + RowsFirstRow(lane)) * kSquarePitch + 16 * k +
                         RowsFirstCol(lane));
      LoadMatrix4(b, smem.inverse + Square(part * kSub + ColsFirstRow(lane),
                                           16 * k + ColsFirstCol(lane)));
      MmaBf16(acc[0], a, b[0], b[1]);
      MmaBf16(acc[1], a, b[2], b[3]);
    }
    const uint32_t pair[4] = {
        Pack(acc[0][0], acc[0][1]), Pack(acc[0][2], acc[0][3]),
        Pack(acc[1][0], acc[1][1]), Pack(acc[1][2], acc[1][3])};
    StoreMatrix4(smem.t + (row0 + RowsFirstRow(lane)) * kSquarePitch +
                     part * kSub + RowsFirstCol(lane),
                 pair);
  }
  uint16_t* to_dv = out.dv + p.row(chunk.begin, head);
  for (int i = tid; i < kTile / 8; i += kFinishThreads) {
    const int row = i >> 4, col = (i & 15) * 8;
    if (row < chunk.length) {
      *reinterpret_cast<uint4*>(to_dv + row * p.pitch() + col) =
          *reinterpret_cast<const uint4*>(dv_tile + Wide(row, col));
    }
  }
  if (tid < kDim) {
    float sum = 0;
    for (int i = 0; i < 8; ++i) sum += smem.partial[i][tid];
    sum *= Exp2(smem.border[4][tid]);
    for (int i = 0; i < 4; ++i) sum += col_part[i * kDim + tid];
    smem.partial[0][tid] = sum;  // of the chunk's last row
  }
  __syncthreads();

  if (part <= block) {
    float acc[2][4] = {};
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if (k < block) continue;
      uint32_t a[4], b[4];
      LoadMatrix4Trans(a, smem.inverse + Square(16 * k + ColsFirstRow(lane),
                                                row0 + ColsFirstCol(lane)));
      LoadMatrix4Trans(b, smem.t +
                              (16 * k + RowsFirstRow(lane)) * kSquarePitch +
                              part * kSub + RowsFirstCol(lane));
      MmaBf16(acc[0], a, b[0], b[1]);
      MmaBf16(acc[1], a, b[2], b[3]);
    }
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int i = row0 + group + 8 * half;
        const int j = part * kSub + 8 * n + 2 * quad;
        *reinterpret_cast<float2*>(&smem.d_akk[i * kScorePitch + j]) =
            make_float2(j < i ? Tf32(-acc[n][2 * half]) : 0.0f,
                        j + 1 < i ? Tf32(-acc[n][2 * half + 1]) : 0.0f);
      }
    }
  }
  {
    float fall[4], rise[4], next[4];
    LoadDecays<kHeadGate>(&smem.border[at.sub][at.col], fall);
    LoadDecays<kHeadGate>(&smem.border[at.sub + 1][at.col], next);
    const bool steep = smem.steep[at.sub] != 0;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      fall[c] = next[c] - fall[c];
      rise[c] = steep ? 0.0f : Exp2(-fall[c]);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float q[4], k[4], g[4], kn[4];
      Unpack(LoadFour(from_q, p.key_pitch(), chunk.length, at, i), q);
      Unpack(LoadFour(from_k, p.key_pitch(), chunk.length, at, i), k);
      const int to = Deep(at.row(i), at.col);
      LoadDecays<kHeadGate>(&smem.g[to], g);
      const float b = smem.beta[at.row(i)];
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        kn[c] = k[c] * Exp2(fall[c] - g[c]);
        const float since = Exp2(g[c]);
        q[c] *= since;
        k[c] *= since * b;
      }
      auto put = [to](float* tile, float x, float y, float z, float w) {
        *reinterpret_cast<float4*>(tile + to) =
            make_float4(Tf32(x), Tf32(y), Tf32(z), Tf32(w));
      };
      put(smem.deep.kn, kn[0], kn[1], kn[2], kn[3]);
      put(smem.deep.kd, kn[0] * rise[0], kn[1] * rise[1], kn[2] * rise[2],
          kn[3] * rise[3]);
      put(smem.deep.qp, q[0], q[1], q[2], q[3]);
      put(smem.deep.kp, k[0], k[1], k[2], k[3]);
    }
  }
  __syncthreads();

  if constexpr (!kHeadGate) {
    // z again, for the slope of the gate at the end.
    if (tid < 2 * chunk.length) {
      PrefetchL1(p.z + p.row(chunk.begin, head) + (tid >> 1) * p.pitch() +
                 (tid & 1) * 64);
    }
  }
  // Inside the chunk: what rows above give to q and k.
  const bool steep = smem.steep[block] != 0;

  const float diagonal[2] = {smem.d_aqk[my_row[0] * (kScorePitch + 1)],
                             smem.d_aqk[my_row[1] * (kScorePitch + 1)]};
  {
    float aq[4][4] = {}, ak[4][4] = {};
    for (int c = 0; c <= block; ++c) {
      if (c > 0 && c < block) {
        ScaleColumns(aq, smem.fall[c], col0, quad);
        ScaleColumns(ak, smem.fall[c], col0, quad);
      }
      const float* keys = c == block ? smem.deep.kd : smem.deep.kn;
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        uint32_t a[4], a2[4], b[2];
        LoadScores(a, smem.d_aqk, row0, 16 * c + 8 * k, c == block, lane);
        LoadScores(a2, smem.d_akk, row0, 16 * c + 8 * k, false, lane);
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          LoadDeep(b, keys, 16 * c + 8 * k, DeepColumn(col0 + 8 * n, lane));
          MmaTf32(aq[n], a, b[0], b[1]);
          MmaTf32(ak[n], a2, b[0], b[1]);
        }
      }
    }
#pragma unroll
    for (int n = 0; n < 4; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 gs = g_pair(n, half);
        const float since0 = Exp2(gs.x), since1 = Exp2(gs.y);
        aq[n][2 * half] *= since0;
        aq[n][2 * half + 1] *= since1;
        ak[n][2 * half] *= since0;
        ak[n][2 * half + 1] *= since1;
      }
    }
    if (steep) {
#pragma unroll 1
      for (int j = row0; j < min(row0 + kSub, chunk.length); ++j) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int at = my_row[half] * kScorePitch + j;
          const bool above = j < my_row[half];
          const float to_q = above ? smem.d_aqk[at] : 0.0f;
          const float to_k = above ? smem.d_akk[at] : 0.0f;
#pragma unroll
          for (int n = 0; n < 4; ++n) {
            const int col = col0 + 8 * n + 2 * quad;
            const uint32_t k = *reinterpret_cast<const uint32_t*>(
                from_k + j * p.key_pitch() + col);
            const float2 gi = g_pair(n, half);
            const float2 gj =
                *reinterpret_cast<const float2*>(&smem.g[Deep(j, col)]);
            const float f0 = above ? Exp2(gi.x - gj.x) * Low(k) : 0.0f;
            const float f1 = above ? Exp2(gi.y - gj.y) * High(k) : 0.0f;
            aq[n][2 * half] += to_q * f0;
            aq[n][2 * half + 1] += to_q * f1;
            ak[n][2 * half] += to_k * f0;
            ak[n][2 * half + 1] += to_k * f1;
          }
        }
      }
    }
#pragma unroll
    for (int n = 0; n < 4; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t qs = key_pair(from_q, n, half);
        const uint32_t ks = key_pair(from_k, n, half);
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int i = 2 * half + e;
          const float to_k = ak[n][i];
          const float q = e == 0 ? Low(qs) : High(qs);
          const float k = e == 0 ? Low(ks) : High(ks);
          dq[n][i] += aq[n][i];
          row_sum[half] += to_k * k;
          dg[n][i] += q * dq[n][i] + k * beta[half] * to_k;
          dq[n][i] += diagonal[half] * k;
          dk[n][i] += beta[half] * to_k + diagonal[half] * q;
        }
      }
    }
  }
  auto write_keys = [&](uint16_t* to, float* part, const float(&d)[4][4]) {
    to += p.key_row(chunk.begin, head);
    if (kHeadGate && part != nullptr) {
      part += (static_cast<int64_t>(chunk.begin) * p.num_heads + head -
               p.first_head) *
                  kDim +
              col0 + 2 * quad;
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (!live[half]) continue;
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        if (kHeadGate && part != nullptr) {
          *reinterpret_cast<float2*>(part + my_row[half] * p.num_heads * kDim +
                                     8 * n) =
              make_float2(d[n][2 * half], d[n][2 * half + 1]);
        } else {
          *reinterpret_cast<uint32_t*>(to + key_at(half) + 8 * n) =
              Pack(d[n][2 * half], d[n][2 * half + 1]);
        }
      }
    }
  };
  write_keys(out.dq, out.part_dq, dq);
  // And what this row gives to the rows below.
  {
    float below[4][4] = {}, inside[4][4] = {};
    auto add = [&](float(&to)[4][4], int row) {
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        uint32_t a[4], a2[4], b[2], b2[2];
        LoadScoresTrans(a, smem.d_aqk, row0, row + 8 * k, row == row0, lane);
        LoadScoresTrans(a2, smem.d_akk, row0, row + 8 * k, false, lane);
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          LoadDeep(b, smem.deep.qp, row + 8 * k,
                   DeepColumn(col0 + 8 * n, lane));
          LoadDeep(b2, smem.deep.kp, row + 8 * k,
                   DeepColumn(col0 + 8 * n, lane));
          MmaTf32(to[n], a, b[0], b[1]);
          MmaTf32(to[n], a2, b2[0], b2[1]);
        }
      }
    };
    for (int c = 3; c > block; --c) {
      if (c < 3) ScaleColumns(below, smem.fall[c], col0, quad);
      add(below, kSub * c);
    }
    add(inside, row0);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const float2 here = decay_pair(smem.border[block], n);
      const float2 next = decay_pair(smem.border[block + 1], n);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 gs = g_pair(n, half);
        below[n][2 * half] *= Exp2(next.x - here.x - gs.x);
        below[n][2 * half + 1] *= Exp2(next.y - here.y - gs.y);
        if (!steep) {
          below[n][2 * half] += inside[n][2 * half] * Exp2(-gs.x);
          below[n][2 * half + 1] += inside[n][2 * half + 1] * Exp2(-gs.y);
        }
      }
    }
    if (steep) {
#pragma unroll 1
      for (int j = row0; j < min(row0 + kSub, chunk.length); ++j) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int at = j * kScorePitch + my_row[half];
          const bool under = j > my_row[half];
          const float of_q = under ? smem.d_aqk[at] : 0.0f;
          const float of_k = under ? smem.d_akk[at] * smem.beta[j] : 0.0f;
#pragma unroll
          for (int n = 0; n < 4; ++n) {
            const int col = col0 + 8 * n + 2 * quad;
            const int from = j * p.key_pitch() + col;
            const uint32_t q =
                *reinterpret_cast<const uint32_t*>(from_q + from);
            const uint32_t k =
                *reinterpret_cast<const uint32_t*>(from_k + from);
            const float2 gi = g_pair(n, half);
            const float2 gj =
                *reinterpret_cast<const float2*>(&smem.g[Deep(j, col)]);
            const float f0 = under ? Exp2(gj.x - gi.x) : 0.0f;
            const float f1 = under ? Exp2(gj.y - gi.y) : 0.0f;
            below[n][2 * half] += f0 * (of_q * Low(q) + of_k * Low(k));
            below[n][2 * half + 1] += f1 * (of_q * High(q) + of_k * High(k));
          }
        }
      }
    }
#pragma unroll
    for (int n = 0; n < 4; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t ks = key_pair(from_k, n, half);
        dk[n][2 * half] += below[n][2 * half];
        dk[n][2 * half + 1] += below[n][2 * half + 1];
        dg[n][2 * half] -= Low(ks) * below[n][2 * half];
        dg[n][2 * half + 1] -= High(ks) * below[n][2 * half + 1];
      }
    }
  }

  // Sums from below: inside the block here, then over the blocks.
#pragma unroll
  for (int n = 0; n < 4; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      float upper = dg[n][e], lower = dg[n][2 + e];
#pragma unroll
      for (int step = 4; step < 32; step *= 2) {
        const float u = __shfl_down_sync(0xffffffffu, upper, step);
        const float l = __shfl_down_sync(0xffffffffu, lower, step);
        if (lane + step < 32) {
          upper += u;
          lower += l;
        }
      }
      upper += __shfl_sync(0xffffffffu, lower, quad);
      dg[n][e] = upper;
      dg[n][2 + e] = lower;
      if (group == 0)
        smem.partial[1 + block][col0 + 8 * n + 2 * quad + e] = upper;
    }
  }
  write_keys(out.dk, out.part_dk, dk);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    row_sum[half] = QuadSum(row_sum[half]);
    if (quad == 0) smem.row_part[part][row0 + group + 8 * half] = row_sum[half];
  }
  __syncthreads();
  // dbeta is complete; row_part is free again after the next sync.
  float d_beta = 0;
  if (tid < kChunk) {
    d_beta = smem.row_part[0][tid] + smem.row_part[1][tid] +
             smem.row_part[2][tid] + smem.row_part[3][tid];
    const float b = smem.beta[tid];
    if (tid < chunk.length) {
      out.dbeta[static_cast<int64_t>(chunk.begin + tid) * p.heads + head] =
          d_beta * b * (1.0f - b);
    }
  }
#pragma unroll
  for (int n = 0; n < 4; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int col = col0 + 8 * n + 2 * quad + e;
      float add = smem.partial[0][col];
      for (int b = 3; b > block; --b) add += smem.partial[1 + b][col];
      dg[n][e] += add;
      dg[n][2 + e] += add;
    }
  }
  const GateMath gate{Exp2(kLog2E * p.a_log[head]), p.bound, p.bounded};
  float d_rate = 0;  // of a_log
  if constexpr (kHeadGate) {
    __syncthreads();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = 0;
#pragma unroll
      for (int n = 0; n < 4; ++n) sum += dg[n][2 * half] + dg[n][2 * half + 1];
      sum = QuadSum(sum);
      if (quad == 0) smem.row_part[part][row0 + group + 8 * half] = sum;
    }
    __syncthreads();
    float d_bias = 0;
    if (tid < chunk.length) {
      const float sum = smem.row_part[0][tid] + smem.row_part[1][tid] +
                        smem.row_part[2][tid] + smem.row_part[3][tid];
      const int64_t where =
          static_cast<int64_t>(chunk.begin + tid) * p.heads + head;
      const float x = p.a[where] + p.dt_bias[head];
      d_bias = sum * gate.Slope(x);
      d_rate = sum * gate.RateSlope(x);
      out.da[where] = d_bias;
    }
    if (out.part_dt_bias != nullptr && tid < kChunk) {
      // Two warps of rows.
      for (int mask = 16; mask > 0; mask /= 2) {
        d_bias += ShuffleXor(d_bias, mask);
        d_rate += ShuffleXor(d_rate, mask);
      }
      if (lane == 0) {
        smem.partial[5][warp] = d_bias;
        smem.partial[6][warp] = d_rate;
      }
    }
    if (out.part_dt_bias != nullptr) {
      __syncthreads();
      if (tid == 0) {
        out.part_dt_bias[tile] = smem.partial[5][0] + smem.partial[5][1];
        out.part_a_log[tile] = smem.partial[6][0] + smem.partial[6][1];
      }
    }
  } else {
    const uint16_t* from_z = p.z + p.row(chunk.begin, head);
    uint16_t* to_dz = out.dz + p.row(chunk.begin, head);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const int col = col0 + 8 * n + 2 * quad;
      const float2 bias =
          *reinterpret_cast<const float2*>(p.dt_bias + head * kDim + col);
      float d_bias[2] = {0, 0};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (!live[half]) continue;
        const int where = my_row[half] * p.pitch() + col0 + 2 * quad + 8 * n;
        const uint32_t z = *reinterpret_cast<const uint32_t*>(from_z + where);
        const float x0 = Low(z) + bias.x, x1 = High(z) + bias.y;
        const float d0 = dg[n][2 * half] * gate.Slope(x0);
        const float d1 = dg[n][2 * half + 1] * gate.Slope(x1);
        *reinterpret_cast<uint32_t*>(to_dz + where) = Pack(d0, d1);
        if (out.part_a_log != nullptr) {
          d_bias[0] += d0;
          d_bias[1] += d1;
          d_rate += dg[n][2 * half] * gate.RateSlope(x0) +
                    dg[n][2 * half + 1] * gate.RateSlope(x1);
        }
      }
      if (out.part_dt_bias != nullptr) {
        d_bias[0] = GroupSum(d_bias[0]);
        d_bias[1] = GroupSum(d_bias[1]);
        if (group == 0) {
          smem.d_aqk[block * kDim + col] = d_bias[0];
          smem.d_aqk[block * kDim + col + 1] = d_bias[1];
        }
      }
    }
    if (out.part_dt_bias != nullptr) {
      for (int mask = 16; mask > 0; mask /= 2)
        d_rate += ShuffleXor(d_rate, mask);
      if (lane == 0) smem.d_aqk[4 * kDim + warp] = d_rate;
      __syncthreads();
      if (tid < kDim) {
        out.part_dt_bias[tile * kDim + tid] =
            smem.d_aqk[tid] + smem.d_aqk[kDim + tid] +
            smem.d_aqk[2 * kDim + tid] + smem.d_aqk[3 * kDim + tid];
      }
      if (tid == 0) {
        float sum = 0;
        for (int i = 0; i < kFinishThreads / 32; ++i)
          sum += smem.d_aqk[4 * kDim + i];
        out.part_a_log[tile] = sum;
      }
    }
  }
}

}  // namespace cadre::linear_attention

#endif  // CADRE_KERNELS_LINEAR_ATTENTION_FINISH_CUH_
