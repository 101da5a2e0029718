#ifndef CADRE_KERNELS_LINEAR_ATTENTION_SCAN_CUH_
#define CADRE_KERNELS_LINEAR_ATTENTION_SCAN_CUH_

// The serial part: the state walks through a document's chunks, or through
// those of one of its segments (segments.cuh), forwards, or its gradient
// backwards. Private to kernels/{kda,gdn}.
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
// A fifth warp only moves tiles.

#include "kernels/linear_attention/scan_load.cuh"

namespace cadre::linear_attention {

// Accumulators [16,16] as the A operand they are.
__device__ __forceinline__ void ToOperand(uint32_t (&a)[4],
                                          const float (&low)[4],
                                          const float (&high)[4]) {
  a[0] = Pack(low[0], low[1]);
  a[1] = Pack(low[2], low[3]);
  a[2] = Pack(high[0], high[1]);
  a[3] = Pack(high[2], high[3]);
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

// Where the state that a scan starts from lies; null: at zero.
template <Scan kScan>
__device__ __forceinline__ const float* ScanStart(const Problem& p, int head,
                                                  int index,
                                                  const Segment& segment) {
  const int doc = segment.doc;
  const int64_t state = (static_cast<int64_t>(doc) * p.heads + head) * kState;
  if constexpr (kBackwards<kScan>) {
    if (index + 1 == p.first_segment[doc + 1])
      return p.d_final_state == nullptr ? nullptr : p.d_final_state + state;
    return kScan == Scan::kReverse ? p.d_ends + p.slot(index + 1, doc, head)
                                   : nullptr;
  } else {
    if (index == p.first_segment[doc])
      return p.initial_state == nullptr ? nullptr : p.initial_state + state;
    return kScan == Scan::kEnd ? nullptr
                               : p.ends + p.slot(index - 1, doc, head);
  }
}
// Where it goes when the scan has ended; null: nowhere.
template <Scan kScan>
__device__ __forceinline__ float* ScanEnd(const Problem& p,
                                          const ScanOutput& out, int head,
                                          int index, const Segment& segment) {
  const int doc = segment.doc;
  const int64_t state = (static_cast<int64_t>(doc) * p.heads + head) * kState;
  const int64_t slot = p.slot(index, doc, head);
  if constexpr (kScan == Scan::kOutput) {
    const bool last = index + 1 == p.first_segment[doc + 1];
    return last && out.final_state != nullptr ? out.final_state + state
                                              : nullptr;
  } else if constexpr (kScan == Scan::kReverse) {
    const bool first = index == p.first_segment[doc];
    return first && out.d_initial_state != nullptr ? out.d_initial_state + state
                                                   : nullptr;
  } else if constexpr (kScan == Scan::kReverseEnd) {
    return p.d_ends + slot;
  } else if constexpr (kScan == Scan::kCarry) {
    return p.carry == nullptr ? nullptr : p.carry + slot;
  } else {
    return kScan == Scan::kEnd ? p.ends + slot : nullptr;
  }
}

// `block`: column block fastest, then head, then segment.
template <Scan kScan>
__device__ __forceinline__ void RunScan(const Problem& p, const ScanOutput& out,
                                        ScanSmem& smem, int block) {
  constexpr int kBlocks = kDim / kScanColumns;
  constexpr bool kBack = kBackwards<kScan>;
  const int lane = threadIdx.x & 31, warp = WarpIndex();
  const int group = lane >> 2, quad = lane & 3;
  const int column = (block % kBlocks) * kScanColumns;
  const int head = p.first_head + block / kBlocks % p.num_heads;
  const int index = block / kBlocks / p.num_heads;
  const Segment segment = p.segments[index];
  const int count = segment.count;
  if (count < 0) return;
  const int value = column + warp * 16;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      BarrierInit(&smem.full[i], kBack ? 33 : 1);
      BarrierInit(&smem.empty[i], 32 * kScanWarps);
    }
    BarrierInitFence();
  }
  __syncthreads();
  if (warp == kScanWarps) {
    LoadChunks<kScan>(p, smem, head, column, segment);
    return;
  }

  float s[16][4];
  // Calls visit(element, offset in a state [K,V]) for the thread's elements.
  const auto for_state = [&](auto&& visit) {
#pragma unroll
    for (int n = 0; n < 16; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = 8 * n + 2 * quad + (i & 1);
        visit(s[n][i], key, value + group + 8 * (i >> 1));
      }
    }
  };
  if constexpr (kScan == Scan::kCarry) {
    for_state([](float& x, int key, int v) { x = key == v ? 1.0f : 0.0f; });
  } else {
    const float* start = ScanStart<kScan>(p, head, index, segment);
    for_state([start](float& x, int key, int v) {
      x = start != nullptr ? start[key * kDim + v] : 0.0f;
    });
  }

  uint32_t done[4][4] = {};  // kOutput: o of the chunk before, until written
  auto write_o = [&](int n) {
    const int chunk_begin = segment.begin + n * kChunk;
    const int length = min(kChunk, p.cu_seqlens[segment.doc + 1] - chunk_begin);
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
    const int slot = n % kStages;
    const ScanStage& stage = smem.stage[slot];
    const int64_t tile = p.tile(ChunkAt<kScan>(segment, n), head);
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
    uint32_t d_o[4][4];  // backwards: dO^T as A operands
    if constexpr (kBack) {
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
    const uint16_t* in = kBack ? stage.kg : stage.w;
    const uint16_t* back = kBack ? stage.w : stage.kg;
    auto half_step = [](const uint16_t* tile, int k) {
      return RowsOfN(tile + (k >> 2) * (kChunk * 64) + (k & 3) * 16);
    };
    auto row_step = [](const uint16_t* tile, int k) {
      return RowsOfK(tile + k * 16 * 64, kChunk * 128);
    };
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      if (k == 0 && !kBack) {
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
    if constexpr (kBack) {
      WgmmaFence();
#pragma unroll
      for (int k = 0; k < 4; ++k)
        GroupMma<true>(s, d_o[k], row_step(stage.qg, k));
      WgmmaCommit();
    }
    if constexpr (kWritesTiles<kScan>) {
      WriteState(a, smem.out[warp], (kBack ? p.ds : p.s) + tile * kState,
                 value);
    }
    WgmmaWait<kScan == Scan::kOutput || kBack ? 1 : 0>();
    Pin(x);
    if constexpr (!kBack && kScan != Scan::kCarry) {
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
      if constexpr (kWritesTiles<kScan>) {
        uint16_t* to = (kBack ? p.dx : p.u) + tile * kTile;
        WriteColumns(xa, smem.out[warp], [&](int row, int half, uint4 piece) {
          *reinterpret_cast<uint4*>(to + Wide(row, value + half * 8)) = piece;
        });
      }
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
  float* end = ScanEnd<kScan>(p, out, head, index, segment);
  if (end != nullptr) {
    for_state([end](float x, int key, int v) { end[key * kDim + v] = x; });
  }
  if constexpr (kScan == Scan::kCarry) {
    float* transposed = p.carry_t + p.slot(index, segment.doc, head);
    for_state([transposed](float x, int key, int v) {
      transposed[v * kDim + key] = x;
    });
  }
}

}  // namespace cadre::linear_attention

#endif  // CADRE_KERNELS_LINEAR_ATTENTION_SCAN_CUH_
