#ifndef CADRE_KERNELS_SHORT_CONV_CONV_WALK_CUH_
#define CADRE_KERNELS_SHORT_CONV_CONV_WALK_CUH_

// How a thread of a convolution walks along tokens. Device code.

#include <cstdint>

#include "kernels/common/documents.cuh"

namespace cadre {

// Which document the walk is in.
struct Walk {
  __device__ Walk(const int32_t* cu, int docs, int64_t t)
      : cu(cu), docs(docs), doc(DocumentOf(cu, docs, t)) {}
  // Moves on to token t, which is not before the last one.
  __device__ void To(int64_t t) {
    while (doc < docs && t >= cu[doc + 1]) ++doc;
  }
  __device__ bool padding() const { return doc == docs; }
  __device__ int64_t start() const { return cu[doc]; }
  const int32_t* cu;
  int docs;
  int doc;
};

}  // namespace cadre

#endif  // CADRE_KERNELS_SHORT_CONV_CONV_WALK_CUH_
