#ifndef CADRE_KERNELS_ATTENTION_ATTENTION_DEVICE_CUH_
#define CADRE_KERNELS_ATTENTION_ATTENTION_DEVICE_CUH_

// Private to the CUDA attention kernels: their arguments, and which keys a
// query may read.
//
// Tiles of queries and keys are cut from the packed tokens, not from documents,
// so that no table of work has to be built: query t may read keys
// [begin(t), t], where begin(t) is its document's first token, and a tile that
// spans documents is masked. Padding tokens have no keys.

#include <cmath>
#include <cstdint>

#include "absl/status/status.h"
#include "kernels/attention/attention.h"
#include "kernels/common/documents.cuh"
#include "kernels/common/launch.cuh"

namespace cadre::attention_device {

template <typename T>
struct Params {
  const T* q;
  const T* k;
  const T* v;
  const T* o;
  const T* d_o;
  T* out;  // o of the forward
  T* dq;
  T* dk;
  T* dv;
  float* lse;
  const int32_t* cu;
  const int32_t* selected;  // null = all keys up to the query
  const int32_t* num_valid;
  int docs;
  int width;  // of a selection row
  int heads, kv_heads, qk_dim, v_dim;
  int64_t tokens;
  float scale;
  bool vector;  // rows allow accesses of 16 bytes

  __host__ __device__ int64_t QPitch() const { return int64_t(heads) * qk_dim; }
  __host__ __device__ int64_t KPitch() const {
    return int64_t(kv_heads) * qk_dim;
  }
  __host__ __device__ int64_t VPitch() const {
    return int64_t(kv_heads) * v_dim;
  }
  __host__ __device__ int64_t OPitch() const { return int64_t(heads) * v_dim; }
  // The key head that query head h reads.
  __device__ int KvHead(int h) const { return h / (heads / kv_heads); }
  // Tokens before the padding.
  __device__ int64_t Real() const {
    return cu[docs] < tokens ? cu[docs] : tokens;
  }
};

// The first key that query t may read; behind t for padding.
template <typename T>
__device__ __forceinline__ int32_t FirstKey(const Params<T>& p, int64_t t) {
  if (t >= p.Real()) return static_cast<int32_t>(t) + 1;
  return p.cu[DocumentOf(p.cu, p.docs, t)];
}

// Which of the 64 keys from `key` on query t selected, as bits. Tiles must be
// asked for in ascending order.
class SelectionCursor {
 public:
  template <typename T>
  __device__ SelectionCursor(const Params<T>& p, int64_t t) {
    if (t >= p.Real()) return;
    first_ = FirstKey(p, t);
    row_ = p.selected + t * p.width;
    count_ = p.num_valid[t];
  }
  // Passes over the keys before `key` in few steps.
  __device__ void Seek(int32_t key) {
    int low = 0, high = count_;  // entries before low are too small
    while (low < high) {
      const int middle = (low + high) / 2;
      if (first_ + row_[middle] < key) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    at_ = low;
  }
  __device__ uint64_t Take(int32_t key) {
    uint64_t bits = 0;
    for (; at_ < count_; ++at_) {
      const int32_t offset = first_ + row_[at_] - key;
      if (offset >= 64) break;
      if (offset >= 0) bits |= uint64_t{1} << offset;
    }
    return bits;
  }

  // Of any tile, in any order.
  __device__ uint64_t Peek(int32_t key) {
    Seek(key);
    return Take(key);
  }

 private:
  int32_t first_ = 0;
  const int32_t* row_ = nullptr;
  int count_ = 0;
  int at_ = 0;
};

// Delta = <do, o> of a query and head, between the kernels of the backward
// pass: parked in the first bytes of its row of dq, which the last kernel
// overwrites. (bf16 rows need two elements for it.)
__device__ __forceinline__ void ParkDelta(float* dq, float delta) {
  *dq = delta;
}
__device__ __forceinline__ float ParkedDelta(const float* dq) { return *dq; }
__device__ __forceinline__ void ParkDelta(__nv_bfloat16* dq, float delta) {
  const uint32_t bits = __float_as_uint(delta);
  dq[0] = __ushort_as_bfloat16(static_cast<unsigned short>(bits >> 16));
  dq[1] = __ushort_as_bfloat16(static_cast<unsigned short>(bits));
}
__device__ __forceinline__ float ParkedDelta(const __nv_bfloat16* dq) {
  return __uint_as_float(uint32_t(__bfloat16_as_ushort(dq[0])) << 16 |
                         __bfloat16_as_ushort(dq[1]));
}

// attention_bf16_forward.cu, attention_bf16_backward.cu
absl::Status ForwardBf16(const Exec& exec, const Params<__nv_bfloat16>& params);
absl::Status BackwardBf16(const Exec& exec,
                          const Params<__nv_bfloat16>& params);
// attention_f32.cu
absl::Status ForwardF32(const Exec& exec, const Params<float>& params);
absl::Status BackwardF32(const Exec& exec, const Params<float>& params);

}  // namespace cadre::attention_device

#endif  // CADRE_KERNELS_ATTENTION_ATTENTION_DEVICE_CUH_
