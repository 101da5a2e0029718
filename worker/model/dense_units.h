#ifndef CADRE_WORKER_MODEL_DENSE_UNITS_H_
#define CADRE_WORKER_MODEL_DENSE_UNITS_H_

// Dense parameters that are shared out over a group of ranks, each of which
// holds one slice of them. A unit is what is gathered together: one block
// without its routed experts, the embedding, the head. The tensors of a unit
// lie in flat regions, one per type, each padded to as many equal slices as
// there are ranks.
//
// While a unit is not gathered, Parameter::value (and grad, where it is
// trained) keep their dims, but point to nothing. Whoever runs the model calls
// UnitAccess around each use of a unit; who implements it moves the data
// (worker/shard). Plain values; not thread-safe.

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/common/exec.h"
#include "kernels/common/tensor.h"
#include "worker/device/buffer.h"
#include "worker/model/parameters.h"

namespace cadre {

// Elements [begin, end) of `t`, seen as one row.
inline Tensor FlatPart(const Tensor& t, int64_t begin, int64_t end) {
  return Tensor(static_cast<char*>(t.raw()) + begin * SizeOf(t.dtype()),
                t.dtype(), {end - begin});
}

// Which slice of the dense parameters is here.
struct DenseSharding {
  int num_shards = 1;  // 1: everything is here and there are no units
  int shard = 0;
};

// Tensors of one type in one piece of memory.
struct FlatRegion {
  struct Member {
    Parameter* parameter = nullptr;
    int64_t begin = 0;  // its first element in the region
  };
  DType dtype = DType::kF32;
  std::vector<Member> members;
  // With padding: slice r is [r * slice_elements, (r + 1) * slice_elements).
  int64_t num_elements = 0;
  int64_t slice_elements = 0;
  Tensor slice;          // this rank's, [slice_elements]
  bool trained = false;  // one of the members is

  int64_t num_bytes() const { return num_elements * SizeOf(dtype); }
};

struct DenseUnit {
  std::string name;  // "embedding", "layer 3", "head"
  std::vector<FlatRegion> regions;

  bool trained() const {
    for (const FlatRegion& region : regions) {
      if (region.trained) return true;
    }
    return false;
  }
  int64_t num_bytes() const {
    int64_t bytes = 0;
    for (const FlatRegion& region : regions) bytes += region.num_bytes();
    return bytes;
  }
};

// Lays out units and owns the slices.
class DenseUnits {
 public:
  DenseUnits(const Exec& exec, const DenseSharding& sharding)
      : exec_(exec), sharding_(sharding) {}

  // The parameters' values must have dims, not memory.
  absl::Status Add(const std::string& name,
                   absl::Span<Parameter* const> parameters);
  // Keeps the part of `whole`, a tensor's full value on the exec's device, that
  // belongs to this rank.
  absl::Status Store(const Parameter& parameter, const Tensor& whole);

  const Exec& exec() const { return exec_; }
  const DenseSharding& sharding() const { return sharding_; }
  const std::vector<DenseUnit>& units() const { return units_; }

 private:
  const Exec exec_;
  const DenseSharding sharding_;
  std::vector<DenseUnit> units_;
  std::deque<Buffer> slices_;
};

// What one use of a unit needs.
enum class UnitUse {
  kValues,
  kValuesAndGradients,  // a backward pass with values: gradients start at zero
  kGradients,           // a backward pass that reads no value (embedding)
};

struct UnitStep {
  int unit = 0;
  UnitUse use = UnitUse::kValues;
};

// Called by the model, on the training thread. The steps of a pass are the same
// on every rank, so that no collective depends on data.
class UnitAccess {
 public:
  virtual ~UnitAccess() = default;
  // A pass begins that will use units in this order; `steps` outlives it. What
  // a pass before left undone, after an error, is given up.
  virtual absl::Status BeginPass(absl::Span<const UnitStep> steps) = 0;
  // The next step of the pass: when it returns, the unit's parameters point to
  // their values (and to gradients of zero).
  virtual absl::Status Acquire() = 0;
  // The step is over: values and gradients are let go, gradients summed.
  virtual absl::Status Release() = 0;
};

}  // namespace cadre

#endif  // CADRE_WORKER_MODEL_DENSE_UNITS_H_
