#ifndef CADRE_KERNELS_COMMON_EXEC_H_
#define CADRE_KERNELS_COMMON_EXEC_H_

// Where an op runs: the backend, its stream (CUDA) or thread pool (CPU). Handed
// to every op as first argument. No CUDA header is needed to include this.
//
// The CUDA side of an op lives in <op>.cu and is linked into the CUDA plugin
// only. The shared entry in <op>.cc declares it weak (CADRE_CUDA_IMPL), so the
// CPU program links without it and answers UNIMPLEMENTED when asked.

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace cadre {

enum class Backend { kCpu, kCuda };

class ThreadPool;  // kernels/common/thread_pool.h

struct Exec {
  Backend backend = Backend::kCpu;
  // CPU: optional, not owned; null runs everything on the calling thread.
  ThreadPool* pool = nullptr;
  // CUDA: a cudaStream_t; not owned.
  void* stream = nullptr;
};

// Runs body(begin, end) over a partition of [0, n) in pieces of at least
// `grain`, on exec.pool where there is one; returns when all are done. The
// partition depends only on n and grain, never on the number of threads, so
// that per-piece results combined in order are reproducible.
void ParallelFor(const Exec& exec, int64_t n, int64_t grain,
                 const std::function<void(int64_t begin, int64_t end)>& body);

// What an op answers when its CUDA side is not linked in.
inline absl::Status NoCudaError(absl::string_view op) {
  return absl::UnimplementedError(absl::StrCat(
      op,
      ": this program holds no CUDA kernels; build with --config=cuda and "
      "load the CUDA plugin"));
}

}  // namespace cadre

// Marks the declaration of an op's CUDA side in its shared entry file:
//   CADRE_CUDA_IMPL absl::Status RmsNormForwardCuda(const Exec&, const Args&);
//   ...
//   if (exec.backend == Backend::kCuda)
//     return RmsNormForwardCuda ? RmsNormForwardCuda(exec, args)
//                               : NoCudaError("rmsnorm");
#define CADRE_CUDA_IMPL __attribute__((weak))

#endif  // CADRE_KERNELS_COMMON_EXEC_H_
