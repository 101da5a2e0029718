#include "worker/device/arena.h"

#include <algorithm>
#include <cstring>

namespace cadre {
namespace {

constexpr int64_t kAlignment = 64;
constexpr int64_t kFirstBlockBytes = int64_t{1} << 20;

int64_t RoundUp(int64_t n) {
  return (n + kAlignment - 1) / kAlignment * kAlignment;
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

Tensor Arena::Allocate(DType dtype, std::initializer_list<int64_t> dims) {
  int64_t bytes = SizeOf(dtype);
  for (int64_t d : dims) bytes *= d;
  bytes = RoundUp(bytes);
  while (block_ >= blocks_.size() || offset_ + bytes > blocks_[block_].size) {
    if (block_ < blocks_.size()) {
      earlier_ += blocks_[block_].size;
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
  peak_bytes_ = std::max(peak_bytes_, earlier_ + offset_);
  return Tensor(data, dtype, dims);
}

Tensor Arena::AllocateZero(DType dtype, std::initializer_list<int64_t> dims) {
  Tensor out = Allocate(dtype, dims);
  if (out.num_bytes() > 0) std::memset(out.raw(), 0, out.num_bytes());
  return out;
}

void Arena::Release(const Mark& mark) {
  while (block_ > mark.block) {
    --block_;
    earlier_ -= blocks_[block_].size;
  }
  offset_ = mark.offset;
}

void Arena::Reset() {
  if (blocks_.size() > 1) {
    // peak_bytes_ counts what was lost at the ends of blocks too, so one block
    // of that size holds the same step.
    blocks_.clear();
    AddBlock(peak_bytes_);
  }
  block_ = 0;
  offset_ = 0;
  earlier_ = 0;
}

int64_t Arena::reserved_bytes() const {
  int64_t sum = 0;
  for (const Block& block : blocks_) sum += block.size;
  return sum;
}

}  // namespace cadre
