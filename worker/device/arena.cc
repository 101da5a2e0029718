#include "worker/device/arena.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/device/cuda_calls.h"
#include "worker/device/transfer.h"

namespace cadre {
namespace {

constexpr int64_t kAlignment = 64;
constexpr int64_t kCudaAlignment = 256;
constexpr int64_t kFirstBlockBytes = int64_t{1} << 20;

int64_t RoundUp(int64_t n, int64_t alignment) {
  return (n + alignment - 1) / alignment * alignment;
}

}  // namespace

void Arena::AddBlock(int64_t size) {
  Block block;
  // Uninitialised on purpose: a page is touched when it is first used.
  block.storage.reset(new char[size + kAlignment]);
  const auto address = reinterpret_cast<uintptr_t>(block.storage.get());
  block.base = block.storage.get() + (kAlignment - address % kAlignment);
  block.size = size;
  blocks_.push_back(std::move(block));
  ++num_allocations_;
}

char* Arena::AllocateOnHost(int64_t bytes) {
  bytes = RoundUp(bytes, kAlignment);
  while (block_ >= blocks_.size() || offset_ + bytes > blocks_[block_].size) {
    if (block_ < blocks_.size()) {
      blocks_[block_].used = offset_;
      earlier_ += offset_;
      ++block_;
      offset_ = 0;
    }
    if (block_ == blocks_.size()) {
      const int64_t last = blocks_.empty() ? 0 : blocks_.back().size;
      AddBlock(std::max({bytes, 2 * last, kFirstBlockBytes}));
    }
  }
  char* data = blocks_[block_].base + offset_;
  offset_ += bytes;
  return data;
}

char* Arena::AllocateOnCuda(int64_t bytes) {
  bytes = RoundUp(bytes, kCudaAlignment);
  if (!status_.ok()) return nullptr;
  if (region_ == nullptr) {
    if (CudaReserveRegion == nullptr) {
      status_ = NoCudaError(name_);
      return nullptr;
    }
    absl::StatusOr<std::unique_ptr<Region>> region =
        CudaReserveRegion(exec_.stream, name_);
    if (!region.ok()) {
      status_ = region.status();
      return nullptr;
    }
    region_ = *std::move(region);
  }
  if (offset_ + bytes > region_->size()) {
    ++num_allocations_;
    status_ = region_->GrowTo(offset_ + bytes);
    if (!status_.ok()) return nullptr;
  }
  char* data = region_->base() + offset_;
  offset_ += bytes;
  return data;
}

Tensor Arena::Allocate(DType dtype, std::initializer_list<int64_t> dims) {
  int64_t bytes = SizeOf(dtype);
  for (int64_t d : dims) bytes *= d;
  char* data = exec_.backend == Backend::kCpu ? AllocateOnHost(bytes)
                                              : AllocateOnCuda(bytes);
  recent_peak_bytes_ = std::max(recent_peak_bytes_, earlier_ + offset_);
  peak_bytes_ = std::max(peak_bytes_, recent_peak_bytes_);
  return Tensor(data, dtype, dims);
}

Tensor Arena::AllocateZero(DType dtype, std::initializer_list<int64_t> dims) {
  Tensor out = Allocate(dtype, dims);
  if (out.raw() == nullptr) return out;
  const absl::Status status = SetZero(exec_, out);
  if (status_.ok()) status_ = status;
  return out;
}

absl::Status Arena::TakeStatus() {
  return std::exchange(status_, absl::OkStatus());
}

void Arena::Release(const Mark& mark) {
  while (block_ > mark.block) {
    --block_;
    earlier_ -= blocks_[block_].used;
  }
  offset_ = mark.offset;
}

void Arena::Reset() {
  if (blocks_.size() > 1) {
    // Ends of blocks that were left empty do not count: one block of what was
    // in use holds the same step.
    blocks_.clear();
    AddBlock(peak_bytes_);
  }
  block_ = 0;
  offset_ = 0;
  earlier_ = 0;
}

void Arena::Reserve(int64_t bytes) {
  if (exec_.backend != Backend::kCpu || bytes <= reserved_bytes()) return;
  blocks_.clear();
  AddBlock(RoundUp(bytes, kAlignment));
  Reset();
}

int64_t Arena::reserved_bytes() const {
  int64_t sum = region_ == nullptr ? 0 : region_->size();
  for (const Block& block : blocks_) sum += block.size;
  return sum;
}

}  // namespace cadre
