#ifndef CADRE_KERNELS_LINEAR_ATTENTION_PAD_PLAN_H_
#define CADRE_KERNELS_LINEAR_ATTENTION_PAD_PLAN_H_

// The copies that widen keys and values of 64 to the 128 of the chunked kernels
// and cut results off again: zeros, which add nothing to any product, and for z
// a logit of no decay. The scale K^-1/2, which those kernels have for 128, is
// put right in q and in its gradient. Private to kernels/{kda,gdn}. Host side,
// no CUDA; not thread-safe, owns no memory.

#include <cmath>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "kernels/common/tensor.h"
#include "kernels/linear_attention/pad.h"

namespace cadre::linear_attention {

// What a copy does with an element on its way.
enum class PadKind {
  kCopy,
  kScaleBf16,  // times the job's scale
  kAddFloat,   // onto what is there
};

// A tensor [n,rows,units] of 16-byte units becomes one of other rows and units:
// cut off, or filled up with `fill`.
struct PadJob {
  const void* from;
  void* to;
  int64_t units;            // of `to`, all
  int log_units, log_rows;  // of `to`
  int from_units, from_rows;
  PadKind kind;
  float scale;
  uint32_t fill;
};

struct PadJobs {
  static constexpr int kMax = 9;
  PadJob job[kMax];
  int count = 0;
};

// The unit of `from` that comes to unit `at` of `to`; -1: the fill.
constexpr int64_t PadSource(const PadJob& job, int64_t at) {
  const int unit = static_cast<int>(at) & ((1 << job.log_units) - 1);
  const int row =
      static_cast<int>(at >> job.log_units) & ((1 << job.log_rows) - 1);
  if (unit >= job.from_units || row >= job.from_rows) return -1;
  const int64_t n = at >> (job.log_units + job.log_rows);
  return (n * job.from_rows + row) * job.from_units + unit;
}

// -1e30 in bf16, twice: the decay is exactly 1 under both gates and its slope
// 0. A logit of 0 would decay fast under a large a_log, and the chunk would
// take the slow path for channels that are not there.
inline constexpr uint32_t kNoDecay = 0xf149f149;

// Rows and 16-byte units of what lies between two steps of the outermost
// dimensions.
struct PadExtent {
  int rows, units;
};
inline PadExtent Bf16Row(int64_t dim) { return {1, static_cast<int>(dim / 8)}; }
inline PadExtent FloatRow(int64_t dim) {
  return {1, static_cast<int>(dim / 4)};
}
inline PadExtent FloatState(int64_t keys, int64_t values) {
  return {static_cast<int>(keys), static_cast<int>(values / 4)};
}

inline int Log2Of(int power) {
  int log = 0;
  while ((1 << log) < power) ++log;
  return log;
}

// Collects the copies of a pass, and points the kernels to them. A tensor that
// is absent, or wide already (offset < 0), stays as it is.
class PadPlan {
 public:
  PadPlan(const PadShape& shape, void* workspace)
      : shape_(shape),
        at_(LayOutPad(shape)),
        base_(static_cast<char*>(workspace)) {}

  const PadLayout& at() const { return at_; }
  const PadJobs& widen() const { return widen_; }
  const PadJobs& narrow() const { return narrow_; }
  Tensor Work() const {
    return Tensor(base_ + at_.work, DType::kU8, {at_.bytes - at_.work});
  }
  // Both ways, so that the scale is that of K channels.
  float QueryScale() const {
    return static_cast<float>(
        std::sqrt(static_cast<double>(kPaddedDim) / shape_.key_dim));
  }

  void Keys(const uint16_t*& x, int64_t offset, float scale = 1) {
    In(x, offset, KeyRows(), Bf16Row(shape_.key_dim), Bf16Row(kPaddedDim),
       {.kind = scale == 1 ? PadKind::kCopy : PadKind::kScaleBf16,
        .scale = scale});
  }
  void Values(const uint16_t*& x, int64_t offset) {
    In(x, offset, Rows(), Bf16Row(shape_.value_dim), Bf16Row(kPaddedDim), {});
  }
  void Gates(const uint16_t*& z, int64_t offset) {
    In(z, offset, Rows(), Bf16Row(shape_.key_dim), Bf16Row(kPaddedDim),
       {.fill = kNoDecay});
  }
  void Bias(const float*& bias, int64_t offset) {
    In(bias, offset, shape_.work.heads, FloatRow(shape_.key_dim),
       FloatRow(kPaddedDim), {});
  }
  void State(const float*& state, int64_t offset) {
    In(state, offset, States(), FloatState(shape_.key_dim, shape_.value_dim),
       FloatState(kPaddedDim, kPaddedDim), {});
  }

  void KeysOut(uint16_t*& x, int64_t offset, float scale = 1) {
    Out(x, offset, KeyRows(), Bf16Row(kPaddedDim), Bf16Row(shape_.key_dim),
        {.kind = scale == 1 ? PadKind::kCopy : PadKind::kScaleBf16,
         .scale = scale});
  }
  void ValuesOut(uint16_t*& x, int64_t offset) {
    Out(x, offset, Rows(), Bf16Row(kPaddedDim), Bf16Row(shape_.value_dim), {});
  }
  void GatesOut(uint16_t*& dz, int64_t offset) {
    Out(dz, offset, Rows(), Bf16Row(kPaddedDim), Bf16Row(shape_.key_dim), {});
  }
  // Added to, so the kernels start from zeros.
  void BiasOut(float*& bias, int64_t offset) {
    Out(bias, offset, shape_.work.heads, FloatRow(kPaddedDim),
        FloatRow(shape_.key_dim), {.kind = PadKind::kAddFloat});
    if (bias != nullptr && offset >= 0)
      Add(widen_, nullptr, bias, shape_.work.heads, {0, 0},
          FloatRow(kPaddedDim), {});
  }
  void StateOut(float*& state, int64_t offset) {
    Out(state, offset, States(), FloatState(kPaddedDim, kPaddedDim),
        FloatState(shape_.key_dim, shape_.value_dim), {});
  }

  // OK, or which pointer of the caller's is not aligned to 16 bytes.
  absl::Status CheckAligned(absl::string_view op) const {
    for (const PadJobs* jobs : {&widen_, &narrow_}) {
      for (int i = 0; i < jobs->count; ++i) {
        const PadJob& job = jobs->job[i];
        if ((reinterpret_cast<uintptr_t>(job.from) |
             reinterpret_cast<uintptr_t>(job.to)) %
                16 !=
            0) {
          return absl::InvalidArgumentError(absl::StrCat(
              op, ": a tensor of bf16 keys or values of ", shape_.key_dim,
              " and ", shape_.value_dim,
              ", or a state or bias beside them, is not aligned to 16 bytes; "
              "start each tensor at a multiple of 16"));
        }
      }
    }
    return absl::OkStatus();
  }

 private:
  int64_t KeyRows() const { return shape_.work.tokens * shape_.work.key_heads; }
  int64_t Rows() const { return shape_.work.tokens * shape_.work.heads; }
  int64_t States() const { return shape_.work.docs * shape_.work.heads; }

  struct How {
    PadKind kind = PadKind::kCopy;
    float scale = 1;
    uint32_t fill = 0;
  };
  static void Add(PadJobs& jobs, const void* from, void* to, int64_t n,
                  PadExtent narrow, PadExtent wide, const How& how) {
    jobs.job[jobs.count++] = {
        .from = from,
        .to = to,
        .units = n * wide.rows * wide.units,
        .log_units = Log2Of(wide.units),
        .log_rows = Log2Of(wide.rows),
        .from_units = narrow.units,
        .from_rows = narrow.rows,
        .kind = how.kind,
        .scale = how.scale,
        .fill = how.fill,
    };
  }
  template <typename T>
  void In(const T*& x, int64_t offset, int64_t n, PadExtent from, PadExtent to,
          const How& how) {
    if (x == nullptr || offset < 0) return;
    Add(widen_, x, base_ + offset, n, from, to, how);
    x = reinterpret_cast<const T*>(base_ + offset);
  }
  template <typename T>
  void Out(T*& x, int64_t offset, int64_t n, PadExtent from, PadExtent to,
           const How& how) {
    if (x == nullptr || offset < 0) return;
    Add(narrow_, base_ + offset, x, n, from, to, how);
    x = reinterpret_cast<T*>(base_ + offset);
  }

  PadShape shape_;
  PadLayout at_;
  char* base_;
  PadJobs widen_, narrow_;
};

}  // namespace cadre::linear_attention

#endif  // CADRE_KERNELS_LINEAR_ATTENTION_PAD_PLAN_H_
