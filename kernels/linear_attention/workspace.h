#ifndef CADRE_KERNELS_LINEAR_ATTENTION_WORKSPACE_H_
#define CADRE_KERNELS_LINEAR_ATTENTION_WORKSPACE_H_

// How much device memory the CUDA side of KDA and Gated DeltaNet works in, and
// where what lies there. Private to kernels/{kda,gdn}. Pure functions, no CUDA.
//
// Both passes walk through the heads in groups, so that the workspace does not
// grow with the number of heads beyond a group.

#include <algorithm>
#include <cstdint>

namespace cadre::linear_attention {

struct WorkShape {
  int64_t tokens, heads, key_heads, docs;
  bool backward;
};

// Offsets in bytes; each a multiple of 256. -1: not there.
struct WorkLayout {
  int64_t chunks, first_chunk, segments, first_segment;
  int64_t progress;
  int64_t w, qg, kg, u, aqk, decay;
  int64_t inverse, dx, s, ds, part_a_log, part_dt_bias, part_dq, part_dk;
  int64_t ends, carry_t, d_ends, carry;  // of segments
  int64_t bytes;
};

// Documents start chunks of their own, and one chunk more than can be needed
// keeps the tables from being empty.
inline int64_t MaxChunks(const WorkShape& shape) {
  return shape.tokens / 64 + shape.docs + 1;
}

// Value heads worked on at once: enough to fill the device in the serial part,
// and all that share a key head.
inline int64_t HeadGroup(const WorkShape& shape) {
  if (shape.heads == 0) return 0;
  const int64_t shared = shape.heads / shape.key_heads;
  return std::min(shape.heads, std::max(32 / shared, int64_t{1}) * shared);
}

// How documents are parted for the serial part. With few heads its blocks, two
// a head, leave most of the device idle; parts of a document fill it
// (segments.cuh).
struct Segments {
  int64_t chunks;  // of a segment, at most; 0: documents stay whole
  int64_t max;     // segments of all documents, at most
  int64_t slots;   // ends of segments that are kept, for each head, at most
};

// Up to so many heads: what walking through each segment once more costs grows
// with them, and what it saves does not. A backward has two scans to save on.
inline constexpr int64_t kFewHeads = 8;
inline constexpr int64_t kFewHeadsBackward = 12;
// Blocks that the segments of one long document make: an H200's
// multiprocessors, whatever the device, since results depend on where a
// document is parted.
inline constexpr int64_t kSegmentBlocks = 132;
// Shorter segments cost more to put together than they save.
inline constexpr int64_t kMinSegmentChunks = 16;

inline Segments PlanSegments(const WorkShape& shape) {
  const int64_t chunks = MaxChunks(shape);
  const int64_t few = shape.backward ? kFewHeadsBackward : kFewHeads;
  if (shape.heads == 0 || shape.heads > few ||
      chunks <= 2 * kMinSegmentChunks) {
    return {0, shape.docs, 0};
  }
  const int64_t parts = kSegmentBlocks / (2 * shape.heads);
  return {.chunks = std::max((chunks + parts - 1) / parts, kMinSegmentChunks),
          .max = shape.docs + parts,
          .slots = parts + 1};
}

// Words of 4 bytes that kernels running side by side count on: one a tile and
// one a group of heads.
inline int64_t ProgressWords(const WorkShape& shape) {
  const int64_t group = HeadGroup(shape);
  const int64_t groups = group == 0 ? 0 : (shape.heads + group - 1) / group;
  return MaxChunks(shape) * group + groups;
}

inline WorkLayout LayOutWork(const WorkShape& shape) {
  int64_t end = 0;
  const auto take = [&end](int64_t bytes) {
    const int64_t at = end;
    end += (bytes + 255) / 256 * 256;
    return at;
  };
  const int64_t chunks = MaxChunks(shape), heads = HeadGroup(shape);
  const int64_t tiles = chunks * heads;
  const int64_t wide = tiles * 64 * 128 * 2, square = tiles * 64 * 64 * 2;
  const int64_t state = tiles * 128 * 128 * 2;
  WorkLayout at{};
  at.chunks = take(chunks * 16);
  at.first_chunk = take((shape.docs + 1) * 4);
  const Segments segments = PlanSegments(shape);
  at.segments = take((segments.max + 1) * 16);
  at.first_segment = take((shape.docs + 1) * 4);
  at.progress = take(ProgressWords(shape) * 4);
  at.w = take(wide);
  at.qg = take(wide);
  at.kg = take(wide);
  at.u = take(wide);
  at.aqk = take(square);
  at.decay = take(tiles * 128 * 4);
  at.inverse = at.dx = at.s = at.ds = -1;
  at.part_a_log = at.part_dt_bias = at.part_dq = at.part_dk = -1;
  at.ends = at.carry_t = at.d_ends = at.carry = -1;
  if (segments.chunks > 0) {
    const int64_t ends = segments.slots * heads * 128 * 128 * 4;
    at.ends = take(ends);
    at.carry_t = take(ends);
    if (shape.backward) {
      at.d_ends = take(ends);
      at.carry = take(ends);
    }
  }
  if (shape.backward) {
    at.inverse = take(square);
    at.dx = take(wide);
    at.s = take(state);
    at.ds = take(state);
    at.part_a_log = take(tiles * 4);
    at.part_dt_bias = take(tiles * 128 * 4);
    if (shape.key_heads != shape.heads) {
      const int64_t key_heads = heads * shape.key_heads / shape.heads;
      at.part_dq = take(shape.tokens * key_heads * 128 * 4);
      at.part_dk = take(shape.tokens * key_heads * 128 * 4);
    }
  }
  at.bytes = end;
  return at;
}

}  // namespace cadre::linear_attention

#endif  // CADRE_KERNELS_LINEAR_ATTENTION_WORKSPACE_H_
