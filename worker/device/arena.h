#ifndef CADRE_WORKER_DEVICE_ARENA_H_
#define CADRE_WORKER_DEVICE_ARENA_H_

// Step-scoped memory: a bump allocator with marks. It grows while the first
// step shows how much is needed; Reset() then folds its blocks into one, so
// that later steps of the same shapes allocate nothing. Owns its memory; the
// tensors it hands out are valid until the mark before them is released. Not
// thread-safe.
//
//   Arena::Mark mark = arena.mark();
//   Tensor scratch = arena.Allocate(DType::kF32, {rows, width});
//   ...
//   arena.Release(mark);

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <vector>

#include "kernels/common/tensor.h"

namespace cadre {

class Arena {
 public:
  struct Mark {
    size_t block = 0;
    int64_t offset = 0;
  };

  Arena() = default;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // 64-byte aligned, contents unspecified. 0 elements are fine.
  Tensor Allocate(DType dtype, std::initializer_list<int64_t> dims);
  // The same, all zero.
  Tensor AllocateZero(DType dtype, std::initializer_list<int64_t> dims);

  Mark mark() const { return {block_, offset_}; }
  // Everything allocated since `mark` is free again.
  void Release(const Mark& mark);
  // Everything is free again.
  void Reset();

  // Calls to the system allocator since construction.
  int64_t num_allocations() const { return num_allocations_; }
  // Most bytes in use at once since construction.
  int64_t peak_bytes() const { return peak_bytes_; }
  int64_t reserved_bytes() const;

 private:
  struct Block {
    std::unique_ptr<char[]> storage;
    char* base = nullptr;  // aligned
    int64_t size = 0;
  };
  void AddBlock(int64_t size);

  std::vector<Block> blocks_;
  size_t block_ = 0;     // current block
  int64_t offset_ = 0;   // free bytes of the current block start here
  int64_t earlier_ = 0;  // bytes of the blocks before the current one
  int64_t num_allocations_ = 0;
  int64_t peak_bytes_ = 0;
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
