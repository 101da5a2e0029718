#ifndef CADRE_WORKER_SHARD_PARAMETER_LANE_H_
#define CADRE_WORKER_SHARD_PARAMETER_LANE_H_

// Trained parameters of which every rank of a group holds all values (adapters,
// routed experts), in a row that is cut into one slice per rank: the gradients
// are summed into the slices, each rank updates its own, the values are put
// together again (parallelism.md section 3, "LoRA lane"). Moves through buffers
// of bounded size, so that many small tensors cost few collectives. Not
// thread-safe; parameters and communicators must outlive it.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/common/exec.h"
#include "worker/comm/communicator.h"
#include "worker/device/buffer.h"
#include "worker/model/dense_units.h"
#include "worker/model/parameters.h"
#include "worker/shard/owned_slice.h"

namespace cadre {

struct LaneGroups {
  // The ranks that share the work; null: this rank does it all.
  Communicator* slices = nullptr;
  // Ranks with the same slice, over which its gradient is summed afterwards.
  Communicator* copies = nullptr;
};

class ParameterLane {
 public:
  // Buffers hold at most about `max_elements` floats. Everything travels as
  // f32; UNIMPLEMENTED where a gradient is not f32 or a value is wider. On a
  // GPU values may be bf16, which come out as the same bits.
  static absl::StatusOr<ParameterLane> Create(
      const Exec& exec, std::vector<Parameter*> parameters,
      const LaneGroups& groups, int64_t max_elements = int64_t{16} << 20);

  // Afterwards this rank's slice of the gradients is the sum over all ranks of
  // both groups; the rest of them is unspecified.
  absl::Status ReduceGradients();
  // Every rank's slice of the values, to everyone.
  absl::Status GatherValues();

  // Parts of this rank's slice; `counted` is true.
  std::vector<OwnedSlice> Owned() const;
  int64_t buffer_bytes() const { return buffer_.num_bytes(); }

 private:
  enum class Which { kValue, kGrad };

  explicit ParameterLane(const Exec& exec) : exec_(exec) {}
  // Elements [begin, begin + n) of the row, where n is the size of the buffer's
  // part; beyond the last parameter: zeros, or ignored.
  absl::Status Read(Which which, int64_t begin, const Tensor& out) const;
  absl::Status Write(Which which, int64_t begin, const Tensor& in) const;
  template <typename Visit>
  absl::Status ForEachPart(int64_t begin, int64_t n, Visit visit) const;
  Tensor BufferPart(int64_t begin, int64_t n) const {
    return FlatPart(buffer_.View(DType::kF32, {0}), begin, begin + n);
  }

  Exec exec_;
  std::vector<Parameter*> parameters_;
  std::vector<int64_t> begins_;  // of each; the last entry is the end
  LaneGroups groups_;
  int num_slices_ = 1, slice_ = 0;
  int64_t slice_elements_ = 0;
  int64_t piece_elements_ = 0;  // of a slice, moved at a time
  // num_slices_ pieces, then one more. Kept: a step allocates nothing.
  Buffer buffer_;
};

}  // namespace cadre

#endif  // CADRE_WORKER_SHARD_PARAMETER_LANE_H_
