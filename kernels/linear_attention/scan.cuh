#ifndef CADRE_KERNELS_LINEAR_ATTENTION_SCAN_CUH_
#define CADRE_KERNELS_LINEAR_ATTENTION_SCAN_CUH_

// The serial part: the state walks through a document's chunks, forwards, or
// its gradient backwards. Private to kernels/{kda,gdn}.
//
// A warp owns 16 value columns of the state and keeps them, transposed and in
// f32, in accumulators: [16 of V, 128 of K]. Columns of the state never mix, so
// warps do not talk to each other. With everything transposed, accumulators of
// one product are operands of the next:
//   X^T = u^T + S^T (-w)^T       o^T = S^T qg^T + X^T Aqk^T
//   S^T <- S^T exp(Gn) + X^T kg
// and backwards, dS the gradient of the state leaving the chunk:
//   dX^T = dO^T Aqk + dS^T kg^T
//   dS^T <- dS^T exp(Gn) + dO^T qg + dX^T (-w)
// The last warp only moves tiles, kStages chunks ahead.

#include "kernels/linear_attention/chunk.cuh"

namespace cadre::linear_attention {

constexpr int kStages = 3;

template <int kWarps>
struct ScanStage {
  uint16_t w[kTile];
  uint16_t qg[kTile];
  uint16_t kg[kTile];
  uint16_t aqk[kSquare];
  uint16_t values[kChunk * 16 * kWarps];  // u, sliced; or dO, by rows
  float decay[kDim];
};

template <int kWarps>
struct ScanSmem {
  ScanStage<kWarps> stage[kStages];
  uint16_t out[kWarps][kDim * kSub];
  uint64_t full[kStages];
  uint64_t empty[kStages];
};

enum class Scan {
  kOutput,   // forward: writes o and the final state
  kStates,   // forward half of the backward: writes X, S
  kReverse,  // reverse half: writes dX, dS and the initial state's gradient
};

struct ScanOutput {
  uint16_t* o;             // kOutput, bf16 [T,H,128]
  float* final_state;      // kOutput; or null
  float* d_initial_state;  // kReverse; or null
};

// Accumulators [16,16] as the A operand they are.
__device__ __forceinline__ void ToOperand(uint32_t (&a)[4],
                                          const float (&low)[4],
                                          const float (&high)[4]) {
  a[0] = Pack(low[0], low[1]);
  a[1] = Pack(low[2], low[3]);
  a[2] = Pack(high[0], high[1]);
  a[3] = Pack(high[2], high[3]);
}

// What the loading warp does.
template <int kWarps, Scan kScan>
__device__ __forceinline__ void LoadChunks(const Problem& p,
                                           ScanSmem<kWarps>& smem, int head,
                                           int column, int first, int count) {
  const int lane = threadIdx.x & 31;
  constexpr int kColumns = 16 * kWarps;
  for (int n = 0; n < count; ++n) {
    const int chunk_index =
        kScan == Scan::kReverse ? first + count - 1 - n : first + n;
    const int slot = n % kStages;
    ScanStage<kWarps>& stage = smem.stage[slot];
    uint64_t* full = &smem.full[slot];
    if (n >= kStages) BarrierWait(&smem.empty[slot], (n / kStages - 1) & 1);
    const int64_t tile = p.tile(chunk_index, head);
    constexpr bool kScores = kScan != Scan::kStates;
    constexpr uint32_t kBytes =
        2 * (2 * kTile + (kScores ? kTile + kSquare : 0)) + 4 * kDim;
    if constexpr (kScan == Scan::kReverse) {
      const Chunk chunk = p.chunks[chunk_index];
      if (lane == 0) {
        BarrierArriveExpect(full, kBytes + chunk.length * kColumns * 2);
      }
      __syncwarp();
      for (int row = lane; row < chunk.length; row += 32) {
        BulkCopy(&stage.values[row * kColumns],
                 p.d_o + p.row(chunk.begin + row, head) + column, kColumns * 2,
                 full);
      }
    } else {
      if (lane == 0) {
        BarrierArriveExpect(full, kBytes + kChunk * kColumns * 2);
        BulkCopy(stage.values, p.u + tile * kTile + column * kChunk,
                 kChunk * kColumns * 2, full);
      }
    }
    if (lane == 0) {
      BulkCopy(stage.w, p.w + tile * kTile, kTile * 2, full);
      BulkCopy(stage.kg, p.kg + tile * kTile, kTile * 2, full);
      BulkCopy(stage.decay, p.decay + tile * kDim, kDim * 4, full);
      if constexpr (kScores) {
        BulkCopy(stage.qg, p.qg + tile * kTile, kTile * 2, full);
        BulkCopy(stage.aqk, p.aqk + tile * kSquare, kSquare * 2, full);
      }
    }
  }
}

// 16 value columns of `rows`, transposed from accumulators [16, 64], into
// `staging` [64,16], then out by 32-byte rows: address(row) + 16-byte half.
template <typename Put>
__device__ __forceinline__ void WriteColumns(const float (&acc)[8][4],
                                             uint16_t* staging, Put&& put) {
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int t = 0; t < 4; ++t) {
    uint32_t a[4];
    ToOperand(a, acc[2 * t], acc[2 * t + 1]);
    // Tiles (v, row): (0,0) (8,0) (0,8) (8,8); stored transposed.
    const int row = 16 * t + ColsFirstRow(lane);
    const int half = (ColsFirstCol(lane) >> 3) ^ ((row >> 2) & 1);
    StoreMatrix4Trans(staging + row * 16 + half * 8, a);
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int piece = i * 32 + lane;
    const int row = piece >> 1, half = piece & 1;
    put(row, half,
        *reinterpret_cast<const uint4*>(staging + row * 16 +
                                        (half ^ ((row >> 2) & 1)) * 8));
  }
  __syncwarp();
}

// The state, rounded, into a state tile [V,K].
__device__ __forceinline__ void WriteState(const uint32_t (&s)[8][4],
                                           uint16_t* staging, uint16_t* tile,
                                           int value) {
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int t = 0; t < 8; ++t) {
    StoreMatrix4(
        staging + Wide<16>(RowsFirstRow(lane), 16 * t + RowsFirstCol(lane)),
        s[t]);
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    // Pieces stay where they are inside a row: value is a multiple of 8.
    const int piece = i * 32 + lane;
    const int half = piece >> 7, row = (piece >> 3) & 15, unit = piece & 7;
    *reinterpret_cast<uint4*>(tile + half * (kDim * 64) + (value + row) * 64 +
                              unit * 8) =
        *reinterpret_cast<const uint4*>(staging + half * 1024 + row * 64 +
                                        unit * 8);
  }
  __syncwarp();
}

// blockIdx.x: column block fastest, then head, then document.
template <int kWarps, Scan kScan>
__device__ __forceinline__ void RunScan(const Problem& p, const ScanOutput& out,
                                        ScanSmem<kWarps>& smem, int block) {
  constexpr int kBlocks = kDim / (16 * kWarps);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int group = lane >> 2, quad = lane & 3;
  const int column = (block % kBlocks) * 16 * kWarps;
  const int head = p.first_head + block / kBlocks % p.num_heads;
  const int doc = block / kBlocks / p.num_heads;
  const int first = p.first_chunk[doc];
  const int count = p.first_chunk[doc + 1] - first;
  const int begin = p.cu_seqlens[doc], end = p.cu_seqlens[doc + 1];
  const int value = column + warp * 16;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      BarrierInit(&smem.full[i], 1);
      BarrierInit(&smem.empty[i], kWarps);
    }
    BarrierInitFence();
  }
  __syncthreads();
  if (warp == kWarps) {
    LoadChunks<kWarps, kScan>(p, smem, head, column, first, count);
    return;
  }

  float s[16][4];
  const int64_t state = (static_cast<int64_t>(doc) * p.heads + head) * kState;
  const float* start =
      kScan == Scan::kReverse ? p.d_final_state : p.initial_state;
#pragma unroll
  for (int n = 0; n < 16; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = 8 * n + 2 * quad + (i & 1);
      const int v = value + group + 8 * (i >> 1);
      s[n][i] = start != nullptr ? start[state + key * kDim + v] : 0.0f;
    }
  }

  for (int n = 0; n < count; ++n) {
    const int chunk_index =
        kScan == Scan::kReverse ? first + count - 1 - n : first + n;
    const int slot = n % kStages;
    const ScanStage<kWarps>& stage = smem.stage[slot];
    const int chunk_begin = begin + (chunk_index - first) * kChunk;
    const int length = min(kChunk, end - chunk_begin);
    const int64_t tile = p.tile(chunk_index, head);
    uint32_t a[8][4];
#pragma unroll
    for (int t = 0; t < 8; ++t) ToOperand(a[t], s[2 * t], s[2 * t + 1]);
    if constexpr (kScan == Scan::kStates) {
      WriteState(a, smem.out[warp], p.s + tile * kState, value);
    } else if constexpr (kScan == Scan::kReverse) {
      WriteState(a, smem.out[warp], p.ds + tile * kState, value);
    }
    BarrierWait(&smem.full[slot], (n / kStages) & 1);

    float x[8][4];
    uint32_t d_o[4][4];  // kReverse: dO^T as A operands
    if constexpr (kScan == Scan::kReverse) {
      constexpr int kColumns = 16 * kWarps;
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        const int row = 16 * t + ColsFirstRow(lane);
        LoadMatrix4Trans(
            d_o[t],
            &stage.values[row * kColumns + warp * 16 + ColsFirstCol(lane)]);
        // Rows behind the chunk's end hold anything.
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int at = 16 * t + 8 * (i >> 1) + 2 * quad;
          if (at >= length) {
            d_o[t][i] = 0;
          } else if (at + 1 >= length) {
            d_o[t][i] &= 0xffffu;
          }
        }
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) x[i][0] = x[i][1] = x[i][2] = x[i][3] = 0;
    } else {
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        // Tiles of u [row, v], transposed: (v 0, row 0) (8, 0) (0, 8) (8, 8).
        uint32_t u[4];
        const int row = 16 * t + ColsFirstRow(lane);
        LoadMatrix4Trans(
            u, &stage.values[Sliced(row, warp * 16 + ColsFirstCol(lane))]);
        x[2 * t][0] = Low(u[0]);
        x[2 * t][1] = High(u[0]);
        x[2 * t][2] = Low(u[1]);
        x[2 * t][3] = High(u[1]);
        x[2 * t + 1][0] = Low(u[2]);
        x[2 * t + 1][1] = High(u[2]);
        x[2 * t + 1][2] = Low(u[3]);
        x[2 * t + 1][3] = High(u[3]);
      }
    }
    const uint16_t* in = kScan == Scan::kReverse ? stage.kg : stage.w;
    const uint16_t* back = kScan == Scan::kReverse ? stage.w : stage.kg;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        uint32_t b[4];
        LoadMatrix4(b, in + Wide(16 * t + ColsFirstRow(lane),
                                 16 * k + ColsFirstCol(lane)));
        MmaBf16(x[2 * t], a[k], b[0], b[1]);
        MmaBf16(x[2 * t + 1], a[k], b[2], b[3]);
      }
    }
    if constexpr (kScan == Scan::kReverse) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
#pragma unroll
        for (int t = 0; t <= k; ++t) {
          uint32_t b[4];
          LoadMatrix4Trans(b, &stage.aqk[Square(16 * k + RowsFirstRow(lane),
                                                16 * t + RowsFirstCol(lane))]);
          MmaBf16(x[2 * t], d_o[k], b[0], b[1]);
          MmaBf16(x[2 * t + 1], d_o[k], b[2], b[3]);
        }
      }
    }
    uint32_t xa[4][4];
#pragma unroll
    for (int t = 0; t < 4; ++t) ToOperand(xa[t], x[2 * t], x[2 * t + 1]);

    // The state goes on.
#pragma unroll
    for (int t = 0; t < 16; ++t) {
      const float2 f =
          *reinterpret_cast<const float2*>(&stage.decay[8 * t + 2 * quad]);
      s[t][0] *= f.x;
      s[t][1] *= f.y;
      s[t][2] *= f.x;
      s[t][3] *= f.y;
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) {
#pragma unroll
      for (int t = 0; t < 8; ++t) {
        uint32_t b[4];
        const int offset =
            Wide(16 * k + RowsFirstRow(lane), 16 * t + RowsFirstCol(lane));
        LoadMatrix4Trans(b, back + offset);
        MmaBf16(s[2 * t], xa[k], b[0], b[1]);
        MmaBf16(s[2 * t + 1], xa[k], b[2], b[3]);
        if constexpr (kScan == Scan::kReverse) {
          LoadMatrix4Trans(b, stage.qg + offset);
          MmaBf16(s[2 * t], d_o[k], b[0], b[1]);
          MmaBf16(s[2 * t + 1], d_o[k], b[2], b[3]);
        }
      }
    }

    if constexpr (kScan == Scan::kOutput) {
      float o[8][4] = {};
#pragma unroll
      for (int k = 0; k < 8; ++k) {
#pragma unroll
        for (int t = 0; t < 4; ++t) {
          uint32_t b[4];
          LoadMatrix4(b, stage.qg + Wide(16 * t + ColsFirstRow(lane),
                                         16 * k + ColsFirstCol(lane)));
          MmaBf16(o[2 * t], a[k], b[0], b[1]);
          MmaBf16(o[2 * t + 1], a[k], b[2], b[3]);
        }
      }
#pragma unroll
      for (int k = 0; k < 4; ++k) {
#pragma unroll
        for (int t = k; t < 4; ++t) {
          uint32_t b[4];
          LoadMatrix4(b, &stage.aqk[Square(16 * t + ColsFirstRow(lane),
                                           16 * k + ColsFirstCol(lane))]);
          MmaBf16(o[2 * t], xa[k], b[0], b[1]);
          MmaBf16(o[2 * t + 1], xa[k], b[2], b[3]);
        }
      }
      __syncwarp();
      if (lane == 0) BarrierArrive(&smem.empty[slot]);
      WriteColumns(o, smem.out[warp], [&](int row, int half, uint4 piece) {
        if (row < length) {
          *reinterpret_cast<uint4*>(out.o + p.row(chunk_begin + row, head) +
                                    value + half * 8) = piece;
        }
      });
    } else {
      __syncwarp();
      if (lane == 0) BarrierArrive(&smem.empty[slot]);
      uint16_t* to = (kScan == Scan::kReverse ? p.dx : p.x) + tile * kTile;
      WriteColumns(x, smem.out[warp], [&](int row, int half, uint4 piece) {
        *reinterpret_cast<uint4*>(to + Wide(row, value + half * 8)) = piece;
      });
    }
  }
  float* last = kScan == Scan::kReverse ? out.d_initial_state : out.final_state;
  if (kScan != Scan::kStates && last != nullptr) {
#pragma unroll
    for (int n = 0; n < 16; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = 8 * n + 2 * quad + (i & 1);
        const int v = value + group + 8 * (i >> 1);
        last[state + key * kDim + v] = s[n][i];
      }
    }
  }
}

}  // namespace cadre::linear_attention

#endif  // CADRE_KERNELS_LINEAR_ATTENTION_SCAN_CUH_
