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

// One segment of step 2: end <- carry^T state + end, and the same into `state`
// [128][8]. A thread has a row and four columns.
__device__ __forceinline__ void JoinSegment(const float* carry, float* end,
                                            int column,
                                            float4 (&state)[kDim][2]) {
  const int row = threadIdx.x & (kDim - 1), four = threadIdx.x / kDim;
  float4* to = reinterpret_cast<float4*>(end + row * kDim + column + 4 * four);
  float4 sum = *to;
  constexpr int kAhead = 16;  // loads under way
#pragma unroll 2
  for (int i = 0; i < kDim; i += kAhead) {
    float a[kAhead];
#pragma unroll
    for (int j = 0; j < kAhead; ++j) a[j] = carry[(i + j) * kDim + row];
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      const float4 x = state[i + j][four];
      sum.x += a[j] * x.x;
      sum.y += a[j] * x.y;
      sum.z += a[j] * x.z;
      sum.w += a[j] * x.w;
    }
  }
  *to = sum;
  __syncthreads();  // the others have read the state before
  state[row][four] = sum;
  __syncthreads();
}

// Step 2, a block for each direction, document, head and kJoinColumns.
__device__ __forceinline__ void JoinSegments(const Problem& p,
                                             float4 (&state)[kDim][2]) {
  const int column = blockIdx.x % kJoinBlocks * kJoinColumns;
  const int head = p.first_head + blockIdx.x / kJoinBlocks % p.num_heads;
  const int task = blockIdx.x / kJoinBlocks / p.num_heads;
  const bool backwards = task >= p.docs;
  const int doc = backwards ? task - p.docs : task;
  const int first = p.first_segment[doc], last = p.first_segment[doc + 1] - 1;
  if (last - first < 2) return;
  float* const ends = backwards ? p.d_ends : p.ends;
  const float* const carry = backwards ? p.carry : p.carry_t;
  const int from = backwards ? last : first, step = backwards ? -1 : 1;
  const int row = threadIdx.x & (kDim - 1), four = threadIdx.x / kDim;
  state[row][four] = *reinterpret_cast<const float4*>(
      ends + p.slot(from, doc, head) + row * kDim + column + 4 * four);
  __syncthreads();
  for (int index = from + step; index > first && index < last; index += step) {
    const int64_t slot = p.slot(index, doc, head);
    JoinSegment(carry + slot, ends + slot, column, state);
  }
}

}  // namespace cadre::linear_attention

#endif  // CADRE_KERNELS_LINEAR_ATTENTION_SEGMENTS_CUH_
