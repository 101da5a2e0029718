#ifndef CADRE_WORKER_DEVICE_ARENA_H_
#define CADRE_WORKER_DEVICE_ARENA_H_

// Step-scoped memory where an Exec computes: a bump allocator with marks. It
// grows while the first step shows how much is needed; later steps of the same
// shapes allocate nothing. On the host it grows by blocks, which Reset() folds
// into one; on CUDA in place (worker/device/region.h). Owns its memory; the
// tensors it hands out are valid until the mark before them is released. Not
// thread-safe.
//
//   Arena::Mark mark = arena.mark();
//   Tensor scratch = arena.Allocate(DType::kF32, {rows, width});
//   ...
//   arena.Release(mark);
//
// When memory runs out, Allocate answers with a tensor without memory (a null
// pointer), which every op refuses, and status() says what happened: who drives
// a step reports that in place of the op's error.

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "kernels/common/exec.h"
#include "kernels/common/tensor.h"
#include "worker/device/region.h"

namespace cadre {

class Arena {
 public:
  struct Mark {
    size_t block = 0;
    int64_t offset = 0;
  };

  // On the host.
  Arena() = default;
  // `name` is what errors call it: "activations".
  Arena(const Exec& exec, absl::string_view name)
      : exec_(exec), name_(name.data(), name.size()) {}
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // 256-byte aligned on CUDA, 64 on the host; contents unspecified. 0 elements
  // are fine.
  Tensor Allocate(DType dtype, std::initializer_list<int64_t> dims);
  // The same, all zero (on CUDA: behind the stream's work).
  Tensor AllocateZero(DType dtype, std::initializer_list<int64_t> dims);

  // On the host, before the first allocation or behind a Reset: one block of so
  // much, unless there is as much already. Pages count when they are touched.
  void Reserve(int64_t bytes);

  Mark mark() const { return {block_, offset_}; }
  // Everything allocated since `mark` is free again.
  void Release(const Mark& mark);
  // Everything is free again.
  void Reset();

  // The first failure since construction or since TakeStatus.
  const absl::Status& status() const { return status_; }
  absl::Status TakeStatus();

  // Calls to the system allocator since construction.
  int64_t num_allocations() const { return num_allocations_; }
  // Most bytes in use at once since construction.
  int64_t peak_bytes() const { return peak_bytes_; }
  // Likewise, since RestartRecentPeak.
  int64_t recent_peak_bytes() const { return recent_peak_bytes_; }
  void RestartRecentPeak() { recent_peak_bytes_ = earlier_ + offset_; }
  int64_t reserved_bytes() const;

 private:
  struct Block {
    std::unique_ptr<char[]> storage;
    char* base = nullptr;  // aligned
    int64_t size = 0;
    int64_t used = 0;  // of a block before the current one
  };
  void AddBlock(int64_t size);
  char* AllocateOnHost(int64_t bytes);
  char* AllocateOnCuda(int64_t bytes);

  Exec exec_;
  std::string name_ = "arena";
  std::vector<Block> blocks_;       // host
  std::unique_ptr<Region> region_;  // CUDA
  size_t block_ = 0;                // current block
  int64_t offset_ = 0;   // free bytes of the current block start here
  int64_t earlier_ = 0;  // bytes in use in the blocks before the current one
  int64_t num_allocations_ = 0;
  int64_t peak_bytes_ = 0, recent_peak_bytes_ = 0;
  absl::Status status_;
};

// Releases on destruction what was allocated during its life.
class ArenaScope {
 public:
  explicit ArenaScope(Arena* arena) : arena_(arena), mark_(arena->mark()) {}
  ~ArenaScope() { arena_->Release(mark_); }
  ArenaScope(const ArenaScope&) = delete;
  ArenaScope& operator=(const ArenaScope&) = delete;

 private:
  Arena* arena_;
  Arena::Mark mark_;
};

}  // namespace cadre

#endif  // CADRE_WORKER_DEVICE_ARENA_H_
