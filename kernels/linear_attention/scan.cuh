#ifndef CADRE_KERNELS_LINEAR_ATTENTION_SCAN_CUH_
#define CADRE_KERNELS_LINEAR_ATTENTION_SCAN_CUH_

// The serial part: the state walks through a document's chunks, forwards, or
// its gradient backwards. Private to kernels/{kda,gdn}.
//
// A block is one warpgroup and owns 64 value columns of the state, transposed
// and in f32, in accumulators [64 of V, 128 of K]; each of its warps has 16
// rows of that and does not talk to the others. With everything transposed,
// accumulators of one product are operands of the next:
//   X^T = u^T + S^T (-w)^T       o^T = S^T qg^T + X^T Aqk^T
//   S^T <- S^T exp(Gn) + X^T kg
// and backwards, dS the gradient of the state leaving the chunk:
//   dX^T = dO^T Aqk + dS^T kg^T
//   dS^T <- dS^T exp(Gn) + dO^T qg + dX^T (-w)
// A fifth warp only moves tiles, kStages chunks ahead.

#include "kernels/linear_attention/chunk.cuh"

namespace cadre::linear_attention {

constexpr int kStages = 3;
constexpr int kScanWarps = 4;
constexpr int kScanThreads = 32 * kScanWarps + 32;
constexpr int kScanColumns = 64;
struct ScanStage {  // a multiple of 1024 bytes
  uint16_t w[kTile];
  uint16_t qg[kTile];
  uint16_t kg[kTile];
  uint16_t aqk[kSquare];
  uint16_t values[kSquare];  // 64 columns of u or dO, as half a wide tile
};

struct ScanSmem {
  ScanStage stage[kStages];
  float decay[kStages][kDim];
  uint16_t out[kScanWarps][kDim * kSub];
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
template <Scan kScan>
__device__ __forceinline__ void LoadChunks(const Problem& p, ScanSmem& smem,
                                           int head, int column, int first,
                                           int count, int begin, int end) {
  const int lane = threadIdx.x & 31;
  for (int n = 0; n < count; ++n) {
    const int chunk_index =
        kScan == Scan::kReverse ? first + count - 1 - n : first + n;
    const int slot = n % kStages;
    ScanStage& stage = smem.stage[slot];
    uint64_t* full = &smem.full[slot];
    const int64_t tile = p.tile(chunk_index, head);
    if constexpr (kScan == Scan::kOutput) {
      if (lane == 0) Await(p.progress.prepared + tile, p.progress.turn);
      // The others must not spin on the barrier below meanwhile: that can keep
      // the one that is waited for from ever going on.
      __syncwarp();
    }
    if (n >= kStages) BarrierWait(&smem.empty[slot], (n / kStages - 1) & 1);
    constexpr bool kScores = kScan != Scan::kStates;
    constexpr uint32_t kBytes =
        2 * (2 * kTile + (kScores ? kTile + kSquare : 0)) + 4 * kDim;
    if constexpr (kScan == Scan::kReverse) {
      if (lane == 0) BarrierExpect(full, kBytes);
      const int chunk_begin = begin + (chunk_index - first) * kChunk;
      const int length = min(kChunk, end - chunk_begin);
      const uint16_t* from = p.d_o + p.row(chunk_begin, head) + column;
#pragma unroll 4
      for (int i = 0; i < 16; ++i) {
        const int row = i * 4 + (lane >> 3), col = (lane & 7) * 8;
        const bool valid = row < length;
        CopyAsync16(&stage.values[Square(row, col)],
                    from + (valid ? row : 0) * p.pitch() + col, valid);
      }
      BarrierArriveAfterCopies(full);
    } else {
      if (lane == 0) {
        BarrierExpect(full, kBytes + kSquare * 2);
        BulkCopy(stage.values, p.u + tile * kTile + column * kChunk,
                 kSquare * 2, full);
      }
    }
    if (lane == 0) {
      BulkCopy(stage.w, p.w + tile * kTile, kTile * 2, full);
      BulkCopy(stage.kg, p.kg + tile * kTile, kTile * 2, full);
      BulkCopy(smem.decay[slot], p.decay + tile * kDim, kDim * 4, full);
      if constexpr (kScores) {
        BulkCopy(stage.qg, p.qg + tile * kTile, kTile * 2, full);
        BulkCopy(stage.aqk, p.aqk + tile * kSquare, kSquare * 2, full);
      }
    }
  }
}

// 16 value columns, transposed from accumulators [16,64] rounded, into
// `staging` [64,16], then out by 32-byte rows: address(row) + 16-byte half.
template <typename Put>
__device__ __forceinline__ void WriteColumns(const uint32_t (&columns)[4][4],
                                             uint16_t* staging, Put&& put) {
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int t = 0; t < 4; ++t) {
    // Tiles (v, row): (0,0) (8,0) (0,8) (8,8); stored transposed.
    const int row = 16 * t + ColsFirstRow(lane);
    const int half = (ColsFirstCol(lane) >> 3) ^ ((row >> 2) & 1);
    StoreMatrix4Trans(staging + row * 16 + half * 8, columns[t]);
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
template <Scan kScan>
__device__ __forceinline__ void RunScan(const Problem& p, const ScanOutput& out,
                                        ScanSmem& smem, int block) {
  constexpr int kBlocks = kDim / kScanColumns;
  const int lane = threadIdx.x & 31, warp = WarpIndex();
  const int group = lane >> 2, quad = lane & 3;
  const int column = (block % kBlocks) * kScanColumns;
  const int head = p.first_head + block / kBlocks % p.num_heads;
  const int doc = block / kBlocks / p.num_heads;
  const int first = p.first_chunk[doc];
  const int count = p.first_chunk[doc + 1] - first;
  const int begin = p.cu_seqlens[doc], end = p.cu_seqlens[doc + 1];
  const int value = column + warp * 16;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      BarrierInit(&smem.full[i], kScan == Scan::kReverse ? 33 : 1);
      BarrierInit(&smem.empty[i], 32 * kScanWarps);
    }
    BarrierInitFence();
  }
  __syncthreads();
  if (warp == kScanWarps) {
    LoadChunks<kScan>(p, smem, head, column, first, count, begin, end);
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

  uint32_t done[4][4] = {};  // kOutput: o of the chunk before, until written
  auto write_o = [&](int n) {
    const int chunk_begin = begin + n * kChunk;
    const int length = min(kChunk, end - chunk_begin);
    uint16_t* to = out.o + p.row(chunk_begin, head) + value;
    const int64_t pitch = static_cast<int64_t>(p.heads) * kDim;
    WriteColumns(done, smem.out[warp], [&](int row, int half, uint4 piece) {
      if (row < length)
        *reinterpret_cast<uint4*>(to + row * pitch + half * 8) = piece;
    });
  };
  // Every reader arrives for itself: one arrival a warp after __syncwarp would
  // do as well, but racecheck does not follow that and reports hazards.
  auto release = [&](int slot) { BarrierArrive(&smem.empty[slot]); };

  for (int n = 0; n < count; ++n) {
    const int chunk_index =
        kScan == Scan::kReverse ? first + count - 1 - n : first + n;
    const int slot = n % kStages;
    const ScanStage& stage = smem.stage[slot];
    const int64_t tile = p.tile(chunk_index, head);
    uint32_t a[8][4];
#pragma unroll
    for (int t = 0; t < 8; ++t) ToOperand(a[t], s[2 * t], s[2 * t + 1]);
    BarrierWait(&smem.full[slot], (n / kStages) & 1);

#pragma unroll
    for (int t = 0; t < 16; ++t) {
      const float2 f =
          *reinterpret_cast<const float2*>(&smem.decay[slot][8 * t + 2 * quad]);
      s[t][0] *= f.x;
      s[t][1] *= f.y;
      s[t][2] *= f.x;
      s[t][3] *= f.y;
    }
    Pin(s);
    float x[8][4], o[8][4];
    uint32_t d_o[4][4];  // kReverse: dO^T as A operands
    if constexpr (kScan == Scan::kReverse) {
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        LoadMatrix4Trans(d_o[t],
                         &stage.values[Square(16 * t + ColsFirstRow(lane),
                                              warp * 16 + ColsFirstCol(lane))]);
      }
      WgmmaFence();
      GroupMma<true, false>(x, d_o[0], RowsOfK(stage.aqk, 0));
#pragma unroll
      for (int k = 1; k < 4; ++k)
        GroupMma<true>(x, d_o[k], RowsOfK(stage.aqk + k * 16 * 64, 0));
    } else {
      WgmmaFence();
    }
    const uint16_t* in = kScan == Scan::kReverse ? stage.kg : stage.w;
    const uint16_t* back = kScan == Scan::kReverse ? stage.w : stage.kg;
    auto half_step = [](const uint16_t* tile, int k) {
      return RowsOfN(tile + (k >> 2) * (kChunk * 64) + (k & 3) * 16);
    };
    auto row_step = [](const uint16_t* tile, int k) {
      return RowsOfK(tile + k * 16 * 64, kChunk * 128);
    };
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      if (k == 0 && kScan != Scan::kReverse) {
        GroupMma<false, false>(x, a[k], half_step(in, k));
      } else {
        GroupMma<false>(x, a[k], half_step(in, k));
      }
    }
    WgmmaCommit();

    // While that runs: the output of the chunk before, the state's decay, and
    // all products that do not wait for X.
    if constexpr (kScan == Scan::kOutput) {
      GroupMma<false, false>(o, a[0], half_step(stage.qg, 0));
#pragma unroll
      for (int k = 1; k < 8; ++k)
        GroupMma<false>(o, a[k], half_step(stage.qg, k));
      WgmmaCommit();
      if (n > 0) write_o(n - 1);
    }
    if constexpr (kScan == Scan::kReverse) {
      WgmmaFence();
#pragma unroll
      for (int k = 0; k < 4; ++k)
        GroupMma<true>(s, d_o[k], row_step(stage.qg, k));
      WgmmaCommit();
      WriteState(a, smem.out[warp], p.ds + tile * kState, value);
    } else if constexpr (kScan == Scan::kStates) {
      WriteState(a, smem.out[warp], p.s + tile * kState, value);
    }
    WgmmaWait<kScan == Scan::kStates ? 0 : 1>();
    Pin(x);
    if constexpr (kScan != Scan::kReverse) {
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        // Tiles of u [row, v], transposed: (v 0, row 0) (8, 0) (0, 8) (8, 8).
        uint32_t u[4];
        LoadMatrix4Trans(u,
                         &stage.values[Square(16 * t + ColsFirstRow(lane),
                                              warp * 16 + ColsFirstCol(lane))]);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          x[2 * t + (i >> 1)][2 * (i & 1)] += Low(u[i]);
          x[2 * t + (i >> 1)][2 * (i & 1) + 1] += High(u[i]);
        }
      }
    }
    uint32_t xa[4][4];
#pragma unroll
    for (int t = 0; t < 4; ++t) ToOperand(xa[t], x[2 * t], x[2 * t + 1]);

    // The state goes on.
    WgmmaFence();
#pragma unroll
    for (int k = 0; k < 4; ++k) GroupMma<true>(s, xa[k], row_step(back, k));
    WgmmaCommit();
    if constexpr (kScan == Scan::kOutput) {
#pragma unroll
      for (int k = 0; k < 4; ++k)
        GroupMma<false>(o, xa[k], RowsOfN(stage.aqk + k * 16));
      WgmmaCommit();
      WgmmaWait<0>();
      Pin(s);
      Pin(o);
      release(slot);
#pragma unroll
      for (int t = 0; t < 4; ++t) ToOperand(done[t], o[2 * t], o[2 * t + 1]);
    } else {
      uint16_t* to = (kScan == Scan::kReverse ? p.dx : p.u) + tile * kTile;
      WriteColumns(xa, smem.out[warp], [&](int row, int half, uint4 piece) {
        *reinterpret_cast<uint4*>(to + Wide(row, value + half * 8)) = piece;
      });
      WgmmaWait<0>();
      Pin(s);
      release(slot);
    }
  }
  if constexpr (kScan == Scan::kOutput) {
    if (count > 0) {
      write_o(count - 1);
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
