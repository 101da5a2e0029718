#include <algorithm>

#include "kernels/common/check.h"
#include "kernels/embedding/embedding.h"

namespace cadre {

absl::Status EmbeddingForwardCpu(const Exec& exec,
                                 const EmbeddingForwardArgs& args) {
  return DispatchCpu(args.table.dtype(), [&](auto scalar) {
    using T = decltype(scalar);
    const int64_t width = args.table.dim(1);
    const int32_t* const ids = args.ids.data<int32_t>();
    const T* const table = args.table.data<T>();
    T* const y = args.y.data<T>();
    ParallelFor(exec, args.ids.dim(0), 16, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t)
        std::copy_n(table + ids[t] * width, width, y + t * width);
    });
    return absl::OkStatus();
  });
}

absl::Status EmbeddingBackwardCpu(const Exec& exec,
                                  const EmbeddingBackwardArgs& args) {
  return DispatchCpu(args.dtable.dtype(), [&](auto scalar) {
    using T = decltype(scalar);
    const int64_t num_tokens = args.ids.dim(0);
    const int64_t width = args.dtable.dim(1);
    const int32_t* const ids = args.ids.data<int32_t>();
    const T* const dy = args.dy.data<T>();
    T* const dtable = args.dtable.data<T>();
    // Cut by columns: each piece walks all tokens in order, so that no two
    // threads meet on a row and the order of the sums is fixed.
    ParallelFor(exec, width, 64, [&](int64_t begin, int64_t end) {
      for (int64_t t = 0; t < num_tokens; ++t) {
        if (ids[t] == args.pad_id) continue;
        const T* const source = dy + t * width;
        T* const target = dtable + ids[t] * width;
        for (int64_t d = begin; d < end; ++d) target[d] += source[d];
      }
    });
    return absl::OkStatus();
  });
}

}  // namespace cadre
