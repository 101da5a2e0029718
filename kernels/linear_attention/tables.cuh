#ifndef CADRE_KERNELS_LINEAR_ATTENTION_TABLES_CUH_
#define CADRE_KERNELS_LINEAR_ATTENTION_TABLES_CUH_

// The tables of chunks and of segments, built on the device since the host does
// not know where documents end. Device code; private to kernels/{kda,gdn}.

#include "kernels/linear_attention/chunk.cuh"

namespace cadre::linear_attention {

constexpr int kTableThreads = 1024;

// first[d] = size(0) + ... + size(d - 1), for d up to `docs`; returns the last.
// One block; `sums` is a word a thread in shared memory.
template <typename Size>
__device__ __forceinline__ int CountDocuments(int docs, int* sums, int* first,
                                              Size&& size) {
  const int tid = threadIdx.x;
  // Each thread counts a run of documents, then the runs are summed.
  const int run = (docs + kTableThreads - 1) / kTableThreads;
  const int begin = min(tid * run, docs), end = min(begin + run, docs);
  int count = 0;
  for (int d = begin; d < end; ++d) count += size(d);
  sums[tid] = count;
  __syncthreads();
  for (int step = 1; step < kTableThreads; step *= 2) {
    const int add = tid >= step ? sums[tid - step] : 0;
    __syncthreads();
    sums[tid] += add;
    __syncthreads();
  }
  int offset = sums[tid] - count;
  for (int d = begin; d < end; ++d) {
    first[d] = offset;
    offset += size(d);
  }
  const int total = sums[kTableThreads - 1];
  if (tid == 0) first[docs] = total;
  __syncthreads();
  return total;
}

// The document with first[document] <= index < first[document + 1].
__device__ __forceinline__ int FindDocument(const int* first, int docs,
                                            int index) {
  int low = 0, high = docs;
  while (high - low > 1) {
    const int mid = (low + high) / 2;
    (first[mid] <= index ? low : high) = mid;
  }
  return low;
}

__device__ __forceinline__ int ChunksOf(const Problem& p, int doc) {
  return (p.cu_seqlens[doc + 1] - p.cu_seqlens[doc] + kChunk - 1) / kChunk;
}
// A document without tokens has one segment, too: its state passes through.
__device__ __forceinline__ int SegmentsOf(const Problem& p, int doc) {
  return max(1, (ChunksOf(p, doc) - 1) / p.segment_chunks + 1);
}

// Fills the tables. One block of kTableThreads.
__device__ __forceinline__ void BuildTables(const Problem& p, int* sums) {
  const int total = CountDocuments(p.docs, sums, p.first_chunk,
                                   [&p](int doc) { return ChunksOf(p, doc); });
  for (int c = threadIdx.x; c < p.max_chunks; c += kTableThreads) {
    Chunk chunk{0, 0, 0, 0};
    if (c < total) {
      const int doc = FindDocument(p.first_chunk, p.docs, c);
      const int begin = p.cu_seqlens[doc] + (c - p.first_chunk[doc]) * kChunk;
      chunk = {begin, min(kChunk, p.cu_seqlens[doc + 1] - begin), doc, 0};
    }
    p.chunks[c] = chunk;
  }
  const int segments =
      CountDocuments(p.docs, sums, p.first_segment,
                     [&p](int doc) { return SegmentsOf(p, doc); });
  for (int s = threadIdx.x; s < p.max_segments; s += kTableThreads) {
    Segment segment{0, -1, 0, 0};
    if (s < segments) {
      const int doc = FindDocument(p.first_segment, p.docs, s);
      const int chunks = ChunksOf(p, doc), parts = SegmentsOf(p, doc);
      // All of about one length, and none without chunks.
      const int each = (chunks + parts - 1) / parts;
      const int skip = (s - p.first_segment[doc]) * each;
      segment = {p.first_chunk[doc] + skip, min(each, chunks - skip), doc,
                 p.cu_seqlens[doc] + skip * kChunk};
    }
    p.segments[s] = segment;
  }
}

}  // namespace cadre::linear_attention

#endif  // CADRE_KERNELS_LINEAR_ATTENTION_TABLES_CUH_
