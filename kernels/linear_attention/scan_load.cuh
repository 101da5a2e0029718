#ifndef CADRE_KERNELS_LINEAR_ATTENTION_SCAN_LOAD_CUH_
#define CADRE_KERNELS_LINEAR_ATTENTION_SCAN_LOAD_CUH_

// What scan.cuh walks through: the kinds of scans, and the warp that moves
// tiles, kStages chunks ahead. Private to kernels/{kda,gdn}.

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
  // Of a segment, before those three; each writes where it ends and no more:
  kEnd,         // forwards, from the initial state, or from zero
  kCarry,       // forwards, from the identity and with no values
  kReverseEnd,  // backwards, from the final state's gradient, or from zero
};
template <Scan kScan>
constexpr bool kBackwards =
    kScan == Scan::kReverse || kScan == Scan::kReverseEnd;
// Whether it writes anything on its way.
template <Scan kScan>
constexpr bool kWritesTiles = kScan == Scan::kStates || kScan == Scan::kReverse;

struct ScanOutput {
  uint16_t* o;             // kOutput, bf16 [T,H,128]
  float* final_state;      // kOutput; or null
  float* d_initial_state;  // kReverse; or null
};

// The n-th chunk that a scan comes to.
template <Scan kScan>
__device__ __forceinline__ int ChunkAt(const Segment& segment, int n) {
  return segment.first + (kBackwards<kScan> ? segment.count - 1 - n : n);
}

// What the loading warp does.
template <Scan kScan>
__device__ __forceinline__ void LoadChunks(const Problem& p, ScanSmem& smem,
                                           int head, int column,
                                           const Segment& segment) {
  const int lane = threadIdx.x & 31;
  const int end = p.cu_seqlens[segment.doc + 1];
  for (int n = 0; n < segment.count; ++n) {
    const int chunk_index = ChunkAt<kScan>(segment, n);
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
    constexpr bool kScores = kScan == Scan::kOutput || kBackwards<kScan>;
    constexpr uint32_t kBytes =
        2 * (2 * kTile + (kScores ? kTile + kSquare : 0)) + 4 * kDim;
    if constexpr (kBackwards<kScan>) {
      if (lane == 0) BarrierExpect(full, kBytes);
      const int chunk_begin =
          segment.begin + (chunk_index - segment.first) * kChunk;
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
    } else if constexpr (kScan == Scan::kCarry) {
      if (lane == 0) BarrierExpect(full, kBytes);
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

}  // namespace cadre::linear_attention

#endif  // CADRE_KERNELS_LINEAR_ATTENTION_SCAN_LOAD_CUH_
