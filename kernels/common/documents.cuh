#ifndef CADRE_KERNELS_COMMON_DOCUMENTS_CUH_
#define CADRE_KERNELS_COMMON_DOCUMENTS_CUH_

// Where a packed token's document begins and ends, read from cu_seqlens on the
// device. Device code, pure.

#include <cstdint>

namespace cadre {

// The document of token t: the last one that begins at or before it (empty ones
// before it are passed over), or `docs` for padding behind the last document.
__device__ __forceinline__ int DocumentOf(const int32_t* cu, int docs,
                                          int64_t t) {
  if (t >= cu[docs]) return docs;
  int low = 0, high = docs;  // cu[low] <= t < cu[high]
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (cu[middle] <= t) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// The bounds of token t's document; begin = end = t for padding.
struct DocumentRange {
  int64_t begin, end;
};
__device__ __forceinline__ DocumentRange DocumentAt(const int32_t* cu, int docs,
                                                    int64_t t) {
  const int doc = DocumentOf(cu, docs, t);
  if (doc == docs) return {t, t};
  return {cu[doc], cu[doc + 1]};
}

}  // namespace cadre

#endif  // CADRE_KERNELS_COMMON_DOCUMENTS_CUH_
