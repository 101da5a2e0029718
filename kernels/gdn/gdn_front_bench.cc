#include "kernels/gdn/gdn_front_bench.h"

#include <cstdio>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/logging.h"
#include "kernels/common/column_groups.h"
#include "kernels/common/exec.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/gated_rmsnorm/gated_rmsnorm.h"
#include "kernels/l2norm/l2norm.h"
#include "kernels/linear_attention/bench.cuh"
#include "kernels/linear_attention/device_tensor.cuh"
#include "kernels/short_conv/conv_front.h"
#include "kernels/short_conv/short_conv.h"

namespace cadre {
namespace {

using linear_attention::FillNormal;
using linear_attention::Measure;
using testing::DeviceTensor;
using testing::TestTensor;

constexpr int64_t kDim = 128, kPerKey = 2, kTaps = 4;
constexpr int64_t kGroup = (2 + 2 * kPerKey) * kDim;  // columns of a key head

class FrontBench {
 public:
  FrontBench(int64_t tokens, int64_t value_heads)
      : T_(tokens),
        heads_(value_heads / kPerKey),
        host_cu_(TestTensor::Table({0, static_cast<int32_t>(tokens)})) {
    CADRE_CHECK(value_heads % kPerKey == 0) << value_heads;
    qkvz_ = Make(DType::kBF16, {T_, heads_ * kGroup}, 1);
    d_qkvz_ = Make(DType::kBF16, {T_, heads_ * kGroup});
    ba_ = Make(DType::kF32, {T_, 2 * value_heads}, 2);
    taps_ = Make(DType::kF32, {channels(), kTaps}, 3);
    norm_ = Make(DType::kF32, {kDim}, 4);
    // Side by side, as the steps have it.
    for (DeviceTensor* x : {&qkv_, &pre_, &post_})
      *x = Make(DType::kBF16, {T_, channels()}, 5);
    for (int part = 0; part < 4; ++part) {
      y_[part] = Make(DType::kBF16, {T_, width(part)}, 6 + part);
      dy_[part] = Make(DType::kBF16, {T_, width(part)}, 10 + part);
    }
    for (DeviceTensor& x : logits_)
      x = Make(DType::kF32, {T_, value_heads}, 14);
    cu_ = DeviceTensor::Of(DType::kI32, {2}, host_cu_);
  }

  void Run() {
    const int64_t copies = 6 * heads_;
    Line(
        "front", "forward", 1, copies + 6, [&] { Front(); },
        [&] { FrontSteps(); });
    Line(
        "front", "backward", 1, copies + 6, [&] { FrontBackward(); },
        [&] { FrontBackwardSteps(); });
    Line(
        "gated norm", "forward", 1, 1, [&] { Norm(qkvz_, At(3)); },
        [&] { Norm(y_[3], {}); });
    Line(
        "gated norm", "backward", 1, 1,
        [&] { NormBackward(qkvz_, d_qkvz_, At(3)); },
        [&] { NormBackward(y_[3], dy_[3], {}); });
  }

 private:
  static DeviceTensor Make(DType dtype, std::vector<int64_t> dims,
                           uint64_t seed = 0) {
    DeviceTensor x(dtype, std::move(dims));
    FillNormal(x, dtype == DType::kBF16, 0, 1, false, seed);
    return x;
  }
  static void CheckOk(const absl::Status& status) {
    CADRE_CHECK(status.ok()) << std::string(status.message());
  }
  // Of q, k, v and z.
  int64_t width(int part) const {
    return heads_ * kDim * (part < 2 ? 1 : kPerKey);
  }
  int64_t channels() const { return 2 * width(0) + width(2); }
  int64_t first(int part) const { return part * width(0); }
  ColumnGroups At(int part) const {
    const int64_t starts[] = {0, kDim, 2 * kDim, (2 + kPerKey) * kDim};
    return {.first = starts[part],
            .group = part < 2 ? kDim : kPerKey * kDim,
            .pitch = kGroup};
  }
  Tensor Taps(int part) const {
    return taps_.view().Rows(first(part), first(part) + width(part));
  }
  Tensor Heads(const DeviceTensor& x) const {
    return x.view().Reshape({T_, x.view().dim(1) / kDim, kDim});
  }
  std::vector<ConvFrontMove> Logits() const {
    const auto at = [](int64_t first) {
      return ColumnGroups{
          .first = first, .group = kPerKey, .pitch = 2 * kPerKey};
    };
    return {
        {.wide = ba_.view(), .narrow = logits_[0].view(), .at = at(0)},
        {.wide = ba_.view(), .narrow = logits_[1].view(), .at = at(kPerKey)}};
  }

  void Line(const char* op, const char* pass, int64_t fused_launches,
            int64_t step_launches, const std::function<void()>& fused,
            const std::function<void()>& steps) const {
    const double fused_ms = Measure(20, fused).median;
    const double steps_ms = Measure(20, steps).median;
    std::printf(
        "{\"op\":\"gdn %s\",\"pass\":\"%s\",\"T\":%lld,\"H\":%lld,"
        "\"fused_ms\":%.4f,\"fused_launches\":%lld,\"steps_ms\":%.4f,"
        "\"steps_launches\":%lld,\"ratio\":%.2f}\n",
        op, pass, static_cast<long long>(T_),
        static_cast<long long>(kPerKey * heads_), fused_ms,
        static_cast<long long>(fused_launches), steps_ms,
        static_cast<long long>(step_launches), steps_ms / fused_ms);
  }

  void Front() {
    ConvFrontForwardArgs args{.cu_seqlens = cu_.view(), .moves = Logits()};
    for (int part = 0; part < 3; ++part) {
      args.parts.push_back({.x = qkvz_.view(),
                            .w = Taps(part),
                            .y = y_[part].view(),
                            .unit_dim = part < 2 ? kDim : 0,
                            .at = At(part)});
    }
    CheckOk(ConvFrontForward(exec_, args));
  }
  void FrontBackward() {
    ConvFrontBackwardArgs args{.cu_seqlens = cu_.view(), .moves = Logits()};
    for (int part = 0; part < 3; ++part) {
      args.parts.push_back({.x = qkvz_.view(),
                            .w = Taps(part),
                            .dy = dy_[part].view(),
                            .dx = d_qkvz_.view(),
                            .unit_dim = part < 2 ? kDim : 0,
                            .at = At(part),
                            .spare = y_[part].view()});
    }
    CheckOk(ConvFrontBackward(exec_, args));
  }

  void Copy(const DeviceTensor& src, int64_t src_column,
            const DeviceTensor& dst, int64_t dst_column, int64_t width) {
    CheckOk(CopyColumns(exec_, {.src = src.view(),
                                .dst = dst.view(),
                                .rows = T_,
                                .src_column = src_column,
                                .dst_column = dst_column,
                                .width = width}));
  }
  // Between the grouped projections (of values or gradients) and what the steps
  // work on.
  void Regroup(const DeviceTensor& wide, const DeviceTensor& gate, bool out) {
    const auto move = [&](const DeviceTensor& grouped, int64_t from,
                          const DeviceTensor& part, int64_t to, int64_t width) {
      if (out) {
        Copy(grouped, from, part, to, width);
      } else {
        Copy(part, to, grouped, from, width);
      }
    };
    for (int64_t g = 0; g < heads_; ++g) {
      for (int part = 0; part < 4; ++part) {
        const ColumnGroups at = At(part);
        move(wide, at.first + g * at.pitch, part < 3 ? pre_ : gate,
             (part < 3 ? first(part) : 0) + g * at.group, at.group);
      }
      for (int i = 0; i < 2; ++i)
        move(ba_, (2 * g + i) * kPerKey, logits_[i], g * kPerKey, kPerKey);
    }
  }
  void FrontSteps() {
    Regroup(qkvz_, y_[3], /*out=*/true);
    CheckOk(ShortConvForward(exec_, {.x = pre_.view(),
                                     .w = taps_.view(),
                                     .cu_seqlens = cu_.view(),
                                     .y = post_.view()}));
    for (int part = 0; part < 3; ++part)
      Copy(post_, first(part), y_[part], 0, width(part));
    for (int part = 0; part < 2; ++part) {
      const Tensor y = Heads(y_[part]);
      CheckOk(L2NormForward(exec_, {.x = y, .y = y}));
    }
  }
  void FrontBackwardSteps() {
    for (int part = 0; part < 2; ++part) {
      CheckOk(L2NormBackward(exec_, {.x = Heads(y_[part]),
                                     .dy = Heads(dy_[part]),
                                     .dx = Heads(dy_[part])}));
    }
    for (int part = 0; part < 3; ++part)
      Copy(dy_[part], 0, post_, first(part), width(part));
    CheckOk(ShortConvBackward(exec_, {.x = qkv_.view(),
                                      .w = taps_.view(),
                                      .cu_seqlens = cu_.view(),
                                      .dy = post_.view(),
                                      .dx = pre_.view()}));
    Regroup(d_qkvz_, dy_[3], /*out=*/false);
  }

  void Norm(const DeviceTensor& gate, const ColumnGroups& at) {
    CheckOk(GatedRmsNormForward(
        exec_, {.x = Heads(y_[2]),
                .gate = at.group == 0 ? Heads(gate) : gate.view(),
                .w = norm_.view(),
                .y = Heads(dy_[2]),
                .activation = GateActivation::kSilu,
                .gate_at = at}));
  }
  void NormBackward(const DeviceTensor& gate, const DeviceTensor& dgate,
                    const ColumnGroups& at) {
    const bool dense = at.group == 0;
    CheckOk(GatedRmsNormBackward(exec_,
                                 {.x = Heads(y_[2]),
                                  .gate = dense ? Heads(gate) : gate.view(),
                                  .w = norm_.view(),
                                  .dy = Heads(dy_[2]),
                                  .dx = Heads(dy_[2]),
                                  .dgate = dense ? Heads(dgate) : dgate.view(),
                                  .activation = GateActivation::kSilu,
                                  .gate_at = at}));
  }

  const Exec exec_{.backend = Backend::kCuda};
  const int64_t T_, heads_;  // key heads
  TestTensor host_cu_;
  DeviceTensor qkvz_, d_qkvz_, ba_, taps_, norm_, pre_, post_, qkv_, cu_;
  DeviceTensor y_[4], dy_[4], logits_[2];
};

}  // namespace

void BenchGdnFront(int64_t tokens, int64_t value_heads) {
  FrontBench(tokens, value_heads).Run();
}

}  // namespace cadre
