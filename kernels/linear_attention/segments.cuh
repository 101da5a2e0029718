#ifndef CADRE_KERNELS_LINEAR_ATTENTION_SEGMENTS_CUH_
#define CADRE_KERNELS_LINEAR_ATTENTION_SEGMENTS_CUH_

// The serial part of long documents with few heads, whose segments are walked
// through side by side. A segment takes the state S before it to
//   A S + B,   A = the product of its chunks' diag(exp Gn) - kg^T w
// and the gradient D behind it to A^T D + C. Three steps:
//   1. of each segment, side by side: B, walking from zero (of a document's
//      first: from the initial state), C likewise backwards, and A, walking
//      from the identity with no values;
//   2. from segment to segment, which is cheap: S <- A S + B, D <- A^T D + C;
//   3. the walks of scan.cuh through each segment, from those.
// `ends` holds B, then the state after the segment; `d_ends` C, then the
// gradient of the state before it. Device code; private to kernels/{kda,gdn}.

#include "kernels/linear_attention/scan.cuh"

namespace cadre::linear_attention {

// Step 1, a block for each kind of walk, segment, head and 64 columns.
__device__ __forceinline__ void WalkSegment(const Problem& p, ScanSmem& smem) {
  const int walks = p.max_segments * p.num_heads * (kDim / kScanColumns);
  const int kind = blockIdx.x / walks, block = blockIdx.x % walks;
  const int index = block / (kDim / kScanColumns) / p.num_heads;
  const Segment& segment = p.segments[index];
  if (segment.count < 0) return;
  const bool first = index == p.first_segment[segment.doc];
  const bool last = index + 1 == p.first_segment[segment.doc + 1];
  if (kind == 0) {
    if (!last) RunScan<Scan::kEnd>(p, {}, smem, block);
  } else if (kind == 1) {
    if (!first && !last) RunScan<Scan::kCarry>(p, {}, smem, block);
  } else {
    if (!first) RunScan<Scan::kReverseEnd>(p, {}, smem, block);
  }
}

constexpr int kJoinThreads = 256;
constexpr int kJoinColumns = 8;  // of the state, a block
constexpr int kJoinBlocks = kDim / kJoinColumns;

struct JoinSmem {
  float carry[2][kState];  // this segment's and the next one's
  float4 state[kDim][2];   // the block's columns
  uint64_t loaded[2];
};

// One segment of step 2: end + carry^T state. A thread has a row and four
// columns.
__device__ __forceinline__ float4 JoinSegment(const float* carry, float4 end,
                                              const float4 (&state)[kDim][2],
                                              int row, int four) {
#pragma unroll 8
  for (int i = 0; i < kDim; ++i) {
    const float a = carry[i * kDim + row];
    const float4 x = state[i][four];
    end.x += a * x.x;
    end.y += a * x.y;
    end.z += a * x.z;
    end.w += a * x.w;
  }
  return end;
}

// Step 2, a block for each direction, document, head and kJoinColumns.
__device__ __forceinline__ void JoinSegments(const Problem& p, JoinSmem& smem) {
  const int column = blockIdx.x % kJoinBlocks * kJoinColumns;
  const int head = p.first_head + blockIdx.x / kJoinBlocks % p.num_heads;
  const int task = blockIdx.x / kJoinBlocks / p.num_heads;
  const bool backwards = task >= p.docs;
  const int doc = backwards ? task - p.docs : task;
  const int first = p.first_segment[doc], last = p.first_segment[doc + 1] - 1;
  const int count = last - first - 1;  // without the two at the ends
  if (count < 1) return;
  const float* const carry = backwards ? p.carry : p.carry_t;
  // Those between, in the order of the walk; -1 is where it starts.
  const auto slot = [&](int n) {
    return p.slot(backwards ? last - 1 - n : first + 1 + n, doc, head);
  };
  const auto load = [&](int n) {
    if (threadIdx.x != 0 || n >= count) return;
    BarrierExpect(&smem.loaded[n & 1], kState * 4);
    BulkCopy(smem.carry[n & 1], carry + slot(n), kState * 4,
             &smem.loaded[n & 1]);
  };
  const int row = threadIdx.x & (kDim - 1), four = threadIdx.x / kDim;
  float* const ends =
      (backwards ? p.d_ends : p.ends) + row * kDim + column + 4 * four;
  const auto end = [&](int n) {
    return reinterpret_cast<float4*>(ends + slot(n));
  };
  if (threadIdx.x == 0) {
    BarrierInit(&smem.loaded[0], 1);
    BarrierInit(&smem.loaded[1], 1);
    BarrierInitFence();
  }
  smem.state[row][four] = *end(-1);
  __syncthreads();
  load(0);
  float4 next = *end(0);
  for (int n = 0; n < count; ++n) {
    load(n + 1);
    const float4 from = next;
    if (n + 1 < count) next = *end(n + 1);
    BarrierWait(&smem.loaded[n & 1], n / 2 & 1);
    const float4 sum =
        JoinSegment(smem.carry[n & 1], from, smem.state, row, four);
    *end(n) = sum;
    __syncthreads();  // the others have read the state before
    smem.state[row][four] = sum;
    __syncthreads();
  }
}

}  // namespace cadre::linear_attention

#endif  // CADRE_KERNELS_LINEAR_ATTENTION_SEGMENTS_CUH_
