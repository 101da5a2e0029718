#ifndef CADRE_KERNELS_LINEAR_ATTENTION_CHUNK_CUH_
#define CADRE_KERNELS_LINEAR_ATTENTION_CHUNK_CUH_

// What the chunk-parallel kernels of KDA and Gated DeltaNet share: the problem
// as they see it, the table of chunks, the layouts of the tiles they hand to
// each other, and the gate. Private to kernels/{kda,gdn}.
//
// Notation of one chunk (64 tokens of one document and head), with G the
// inclusive sum of log-decays and Gn its last row:
//   Aqk = K^-1/2 tril(<q_i exp(G_i - G_j), k_j>)
//   Inv = (I + stril(beta_i <k_i exp(G_i - G_j), k_j>))^-1
//   u = Inv beta v      w = Inv beta exp(G) k
//   qg = K^-1/2 exp(G) q      kg = exp(Gn - G) k
//   X = u - w S      o = qg S + Aqk X      S <- exp(Gn) S + kg^T X
// A chunk has four sub-blocks of 16 rows. All exponents are of differences
// taken within or up to the border of a sub-block, so none is positive but the
// one of the key side of a diagonal 16x16 block, which stays below 75 nats or
// is replaced by a scalar path.
//
// Logarithms of decays are to base 2 throughout.

#include <cstdint>

#include "kernels/linear_attention/progress.cuh"
#include "kernels/linear_attention/ptx.cuh"

namespace cadre::linear_attention {

constexpr int kChunk = 64;
constexpr int kDim = 128;  // K = V
constexpr int kSub = 16;
constexpr int kTile = kChunk * kDim;  // elements of a [64,128] tile
constexpr int kSquare = kChunk * kChunk;
constexpr int kState = kDim * kDim;
constexpr float kLog2E = 1.4426950408889634f;
constexpr float kLn2 = 0.6931471805599453f;
constexpr float kScale = 0.08838834764831845f;  // 128^-1/2
// Largest fall of G inside a sub-block (base 2) that the matrix path takes.
constexpr float kMaxFall = 75.0f * kLog2E;

struct Chunk {
  int begin;   // first token
  int length;  // 1 to 64
  int doc;
  int unused;
};

// A run of chunks of a document that is walked through by one block.
struct Segment {
  int first, count;  // chunks; count < 0: there is no such segment
  int doc;
  int begin;  // first token
};

struct Problem {
  const uint16_t* q;  // bf16 [T,Hk,128]
  const uint16_t* k;
  const uint16_t* v;  // bf16 [T,H,128]
  const uint16_t* z;  // KDA: bf16 [T,H,128]
  const float* a;     // GDN: [T,H]
  const float* beta;  // [T,H]
  const float* a_log;
  const float* dt_bias;
  const int32_t* cu_seqlens;
  const float* initial_state;  // or null
  const uint16_t* d_o;         // backward only
  const float* d_final_state;  // or null
  int tokens, docs;
  int heads, key_heads;  // value heads; divisible by key heads
  int first_head;        // this launch works on heads
  int num_heads;         // [first_head, first_head + num_heads)
  int max_chunks, max_segments;
  int segment_chunks;  // of a segment, at most
  bool bounded;
  float bound;  // base 2

  // Workspace. Tiles are indexed by chunk * num_heads + head - first_head.
  Chunk* chunks;       // [max_chunks]
  int* first_chunk;    // [docs + 1]
  Segment* segments;   // [max_segments]
  int* first_segment;  // [docs + 1]
  uint16_t* w;         // wide tiles, of -w
  uint16_t* qg;        // wide tiles
  uint16_t* kg;        // wide tiles
  uint16_t* u;         // sliced tiles
  uint16_t* aqk;       // square tiles
  uint16_t* inverse;   // square tiles; backward only
  float* decay;        // [128] each: exp(Gn)
  // Backward only.
  uint16_t* dx;  // wide tiles
  uint16_t* s;   // state tiles: before the chunk
  uint16_t* ds;  // state tiles: gradient of the state after the chunk
  // f32 [128,128] for each slot and head, where documents are parted: the state
  // after a segment, and the gradient of the one before it, as long as nothing
  // comes from its other side (segments.cuh), and the segment's transition.
  float* ends;
  float* d_ends;   // backward only
  float* carry_t;  // transposed
  float* carry;    // backward only
  // How far the kernels are that run side by side (progress.cuh).
  Progress progress;

  __device__ int key_head(int head) const { return head / (heads / key_heads); }
  __device__ int64_t tile(int chunk, int head) const {
    return static_cast<int64_t>(chunk) * num_heads + head - first_head;
  }
  // A document's last segment and the next one's first share a slot: the one
  // needs what comes before it, the other what comes behind.
  __device__ int64_t slot(int segment, int doc, int head) const {
    return (static_cast<int64_t>(segment - doc) * num_heads + head -
            first_head) *
           kState;
  }
  __device__ int64_t row(int token, int head) const {
    return (static_cast<int64_t>(token) * heads + head) * kDim;
  }
  __device__ int64_t key_row(int token, int head) const {
    return (static_cast<int64_t>(token) * key_heads + key_head(head)) * kDim;
  }
  // From one token to the next.
  __device__ int pitch() const { return heads * kDim; }
  __device__ int key_pitch() const { return key_heads * kDim; }
};

// Layouts, in elements of bf16. Pieces of 16 bytes are permuted so that any
// eight rows of one column of pieces lie in different banks.

// [R,128] as two halves of 64 columns.
template <int kRows = kChunk>
__device__ __forceinline__ int Wide(int row, int col) {
  return (col >> 6) * (kRows * 64) + row * 64 +
         ((((col >> 3) & 7) ^ (row & 7)) << 3) + (col & 7);
}
// [64,64]
__device__ __forceinline__ int Square(int row, int col) {
  return row * 64 + (((col >> 3) ^ (row & 7)) << 3) + (col & 7);
}
// Offsets of Wide(row, 16 step + hi), hi 0 or 8, for step = 0 to 7: one
// exclusive or instead of all of Wide. Row blocks of 16 may be added by hand.
template <int kRows = kChunk>
struct Steps {
  __device__ Steps(int row, int hi)
      : base(row * 64), key((row & 7) ^ (hi >> 3)) {}
  __device__ __forceinline__ int operator()(int step) const {
    return base + (step >> 2) * (kRows * 64) + ((((step & 3) << 1) ^ key) << 3);
  }
  int base, key;
};

// Rows of a [T,heads,128] tensor into a wide tile, zeros behind the end.
template <int kThreads>
__device__ __forceinline__ void CopyWide(uint16_t* tile, const uint16_t* from,
                                         int pitch, int length) {
  const int tid = ThreadIndexAgain();
#pragma unroll
  for (int i = 0; i < kTile / 8 / kThreads; ++i) {
    const int row = i * (kThreads / 16) + (tid >> 4);
    const int col = (tid & 15) * 8;
    const bool valid = row < length;
    CopyAsync16(tile + Wide(row, col), from + (valid ? row : 0) * pitch + col,
                valid);
  }
}

// Where a lane points ldmatrix.x4 so that the four tiles form a 16x16 block in
// the order of an A operand (rows first), or of two B operands.
__device__ __forceinline__ int RowsFirstRow(int lane) { return lane & 15; }
__device__ __forceinline__ int RowsFirstCol(int lane) {
  return (lane >> 4) << 3;
}
__device__ __forceinline__ int ColsFirstRow(int lane) {
  return (lane & 7) | ((lane >> 4) << 3);
}
__device__ __forceinline__ int ColsFirstCol(int lane) { return lane & 8; }

// The gate of one head, base 2.
struct GateMath {
  float rate;   // exp(a_log)
  float bound;  // base 2
  bool bounded;

  __device__ __forceinline__ float Sigmoid(float x) const {
    return Reciprocal(1.0f + Exp2(-kLog2E * x));
  }
  __device__ __forceinline__ float LogDecay(float x) const {
    return bounded ? Decay<true>(x) : Decay<false>(x);
  }
  template <bool kBounded>
  __device__ __forceinline__ float Decay(float x) const {
    if (kBounded) return bound * Sigmoid(rate * x);
    const float e = Exp2(-kLog2E * fabsf(x));
    // log2(1 + e); the series keeps slow decays exact.
    const float series = kLog2E * e * (1.0f - e * (0.5f - e * (1.0f / 3)));
    const float log1p = Select(series, Log2(1.0f + e), 0.01f - e);
    return -rate * (kLog2E * fmaxf(x, 0.0f) + log1p);
  }
  // Of the decay to base e: d/dx, and d/d a_log.
  __device__ __forceinline__ float Slope(float x) const {
    if (!bounded) return -rate * Sigmoid(x);
    const float s = Sigmoid(rate * x);
    return bound * kLn2 * s * (1.0f - s) * rate;
  }
  __device__ __forceinline__ float RateSlope(float x) const {
    return bounded ? Slope(x) * x : kLn2 * LogDecay(x);
  }
};

}  // namespace cadre::linear_attention

#endif  // CADRE_KERNELS_LINEAR_ATTENTION_CHUNK_CUH_
