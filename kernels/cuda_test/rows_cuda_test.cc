// Row-local ops on the device against the CPU.

#include "kernels/adamw/adamw.h"
#include "kernels/cuda_test/twin.cuh"
#include "kernels/elementwise/elementwise.h"
#include "kernels/embedding/embedding.h"
#include "kernels/gated_rmsnorm/gated_rmsnorm.h"
#include "kernels/glu/glu.h"
#include "kernels/l2norm/l2norm.h"
#include "kernels/layernorm/layernorm.h"
#include "kernels/rmsnorm/rmsnorm.h"
#include "kernels/rope/rope.h"
#include "kernels/short_conv/short_conv.h"

namespace cadre {
namespace {

using testing::DeviceTest;
using testing::Twin;
using testing::Twins;
using testing::View;

class RowsCuda : public DeviceTest {};
CADRE_FOR_EACH_ACTIVATION(RowsCuda);

// Rows, and widths with and without vector accesses, of a warp and a block.
// (Rows of one element have gradients that are nothing but cancellation.)
const std::vector<std::pair<int64_t, int64_t>> kShapes = {
    {0, 8}, {1, 2}, {3, 7}, {65, 128}, {17, 129}, {5, 2304}, {9, 1001}};

TEST_P(RowsCuda, RmsNorm) {
  for (const auto& [rows, d] : kShapes) {
    for (const bool unit_offset : {false, true}) {
      Twins twins(GetParam());
      Twin& x = twins.Act({rows, d}, 2);
      Twin& w = twins.Param({d}, 0.3, 1);
      Twin& y = twins.ActOut({rows, d});
      Twin& rstd = twins.ParamOut({rows});
      twins.Check(
          [&](const Exec& exec, const View& view) {
            return RmsNormForward(exec, {.x = view(x),
                                         .w = view(w),
                                         .y = view(y),
                                         .rstd = view(rstd),
                                         .unit_offset = unit_offset});
          },
          {&y, &rstd});
      Twin& dy = twins.Act({rows, d});
      Twin& given = twins.Param({rows}, 0.1, 1);
      Twin& dx = twins.Act({rows, d});
      Twin& dw = twins.Param({d});
      twins.Check(
          [&](const Exec& exec, const View& view) {
            return RmsNormBackward(exec, {.x = view(x),
                                          .w = view(w),
                                          .rstd = view(given),
                                          .dy = view(dy),
                                          .dx = view(dx),
                                          .dw = view(dw),
                                          .unit_offset = unit_offset,
                                          .accumulate_dx = true});
          },
          {&dx, &dw});
    }
  }
}

TEST_P(RowsCuda, LayerNormAndL2Norm) {
  for (const auto& [rows, d] : kShapes) {
    Twins twins(GetParam());
    Twin& x = twins.Act({rows, d}, 2, 3);
    Twin& w = twins.Param({d});
    Twin& b = twins.Param({d});
    Twin& y = twins.ActOut({rows, d});
    Twin& z = twins.ActOut({rows, d});
    Twin& dy = twins.Act({rows, d});
    Twin& dx = twins.ActOut({rows, d});
    twins.Check(
        [&](const Exec& exec, const View& view) {
          const absl::Status status = LayerNormForward(
              exec, {.x = view(x), .w = view(w), .b = view(b), .y = view(y)});
          if (!status.ok()) return status;
          const absl::Status forward =
              L2NormForward(exec, {.x = view(x), .y = view(z)});
          if (!forward.ok()) return forward;
          return L2NormBackward(exec,
                                {.x = view(x), .dy = view(dy), .dx = view(dx)});
        },
        {&y, &z, &dx}, {.f32 = 5e-5});
  }
}

TEST_P(RowsCuda, GatedRmsNorm) {
  for (const auto& [rows, d] : kShapes) {
    for (const auto activation :
         {GateActivation::kSigmoid, GateActivation::kSilu}) {
      Twins twins(GetParam());
      Twin& x = twins.Act({rows, d}, 2);
      Twin& gate = twins.Act({rows, d}, 2);
      Twin& w = twins.Param({d});
      Twin& y = twins.ActOut({rows, d});
      twins.Check(
          [&](const Exec& exec, const View& view) {
            return GatedRmsNormForward(exec, {.x = view(x),
                                              .gate = view(gate),
                                              .w = view(w),
                                              .y = view(y),
                                              .activation = activation});
          },
          {&y});
      Twin& dx = twins.Act({rows, d});  // dy, replaced
      Twin& dgate = twins.ActOut({rows, d});
      Twin& dw = twins.Param({d});
      twins.Check(
          [&](const Exec& exec, const View& view) {
            return GatedRmsNormBackward(exec, {.x = view(x),
                                               .gate = view(gate),
                                               .w = view(w),
                                               .dy = view(dx),
                                               .dx = view(dx),
                                               .dgate = view(dgate),
                                               .dw = view(dw),
                                               .activation = activation});
          },
          {&dx, &dgate, &dw});
    }
  }
}

TEST_P(RowsCuda, GatedRmsNormOfAGateInAWiderMatrix) {
  struct Case {
    int64_t heads, d, width;
    ColumnGroups at;
  };
  // Grouped by key head, with and without vectors; one group; odd columns.
  for (const auto& [heads, d, width, at] :
       {Case{4, 128, 1536, {.first = 512, .group = 256, .pitch = 768}},
        Case{6, 64, 1440, {.first = 288, .group = 192, .pitch = 480}},
        Case{2, 128, 600, {.first = 104, .group = 256}},
        Case{2, 128, 602, {.first = 105, .group = 128, .pitch = 260}},
        Case{3, 5, 40, {.first = 2, .group = 5, .pitch = 12}}}) {
    for (const int64_t tokens : {1, 37}) {
      Twins twins(GetParam());
      Twin& x = twins.Act({tokens, heads, d}, 2);
      Twin& gate = twins.Act({tokens, width}, 2);
      Twin& w = twins.Param({d});
      Twin& y = twins.ActOut({tokens, heads, d});
      Twin& dy = twins.Act({tokens, heads, d});
      Twin& dx = twins.ActOut({tokens, heads, d});
      Twin& dgate = twins.Zeros(GetParam(), {tokens, width});
      Twin& dw = twins.Param({d});
      const ColumnGroups where = at;
      twins.Check(
          [&](const Exec& exec, const View& view) {
            const absl::Status status =
                GatedRmsNormForward(exec, {.x = view(x),
                                           .gate = view(gate),
                                           .w = view(w),
                                           .y = view(y),
                                           .activation = GateActivation::kSilu,
                                           .gate_at = where});
            if (!status.ok()) return status;
            return GatedRmsNormBackward(exec,
                                        {.x = view(x),
                                         .gate = view(gate),
                                         .w = view(w),
                                         .dy = view(dy),
                                         .dx = view(dx),
                                         .dgate = view(dgate),
                                         .dw = view(dw),
                                         .activation = GateActivation::kSilu,
                                         .gate_at = where});
          },
          {&y, &dx, &dgate, &dw});
    }
  }
}

TEST_P(RowsCuda, ShortConv) {
  // Documents shorter than the filter, empty ones, and padding behind.
  const std::vector<int32_t> cu = {0, 1, 3, 3, 20, 83, 84};
  for (const auto& [channels, taps] : std::vector<std::pair<int64_t, int64_t>>{
           {64, 4}, {7, 4}, {516, 4}, {5, 1}, {12, 3}, {3, 8}}) {
    Twins twins(GetParam());
    const int64_t tokens = 90;
    Twin& x = twins.Act({tokens, channels});
    Twin& w = twins.Param({channels, taps});
    Twin& table = twins.Table(cu);
    Twin& y = twins.ActOut({tokens, channels});
    Twin& dy = twins.Act({tokens, channels});
    Twin& dx = twins.ActOut({tokens, channels});
    Twin& dw = twins.Param({channels, taps});
    twins.Check(
        [&](const Exec& exec, const View& view) {
          const absl::Status status =
              ShortConvForward(exec, {.x = view(x),
                                      .w = view(w),
                                      .cu_seqlens = view(table),
                                      .y = view(y)});
          if (!status.ok()) return status;
          return ShortConvBackward(exec, {.x = view(x),
                                          .w = view(w),
                                          .cu_seqlens = view(table),
                                          .dy = view(dy),
                                          .dx = view(dx),
                                          .dw = view(dw)});
        },
        {&y, &dx, &dw});
  }
}

TEST_P(RowsCuda, Rope) {
  for (const bool interleaved : {false, true}) {
    for (const int64_t half : {0, 3, 32, 100}) {
      Twins twins(GetParam());
      const int64_t heads = 5, pitch = 2 * half + 9;
      std::vector<int32_t> positions = {0, 1, 77, 1'000'003, 131'071, 5, 0};
      Twin& x = twins.Act({7, heads, pitch});
      Twin& back = twins.Act({7, heads, pitch});
      Twin& at = twins.Table(positions);
      // f32 on both sides.
      testing::TestTensor inverse =
          testing::TestTensor::Zeros(DType::kF32, {half});
      for (int64_t i = 0; i < half; ++i)
        inverse.Set(i, std::pow(1e4, -double(i) / double(half)));
      Twin& device_inverse = twins.Zeros(DType::kF32, {half});
      CADRE_CHECK(cudaMemcpy(device_inverse.device().raw(),
                             inverse.view().raw(), half * 4,
                             cudaMemcpyHostToDevice) == cudaSuccess);
      twins.Check(
          [&](const Exec& exec, const View& view) {
            RopeArgs args = {.x = view(x),
                             .positions = view(at),
                             .inv_freq = exec.backend == Backend::kCpu
                                             ? inverse.view()
                                             : device_inverse.device(),
                             .offset = 4,
                             .interleaved = interleaved,
                             .attention_factor = 1.25};
            const absl::Status status = RopeForward(exec, args);
            if (!status.ok()) return status;
            args.x = view(back);
            return RopeBackward(exec, args);
          },
          {&x, &back}, {.f32 = 1e-6});
    }
  }
}

TEST_P(RowsCuda, Glu) {
  using Kind = GluActivation::Kind;
  for (const int64_t width : {1, 24, 1024}) {
    for (const Kind kind : {Kind::kSwiGlu, Kind::kClampedSwiGlu, Kind::kSiTu}) {
      const GluActivation activation = {
          .kind = kind, .limit = 1.5, .beta = 4, .linear_beta = 25};
      Twins twins(GetParam());
      Twin& gate = twins.Act({33, width}, 2);
      Twin& up = twins.Act({33, width}, 2);
      Twin& both = twins.Act({33, 2 * width}, 2);
      Twin& h = twins.ActOut({33, width});
      Twin& h2 = twins.ActOut({33, width});
      Twin& dh = twins.Act({33, width});
      Twin& dgate = twins.ActOut({33, width});
      Twin& dup = twins.ActOut({33, width});
      Twin& dboth = twins.ActOut({33, 2 * width});
      twins.Check(
          [&](const Exec& exec, const View& view) {
            for (const absl::Status& status :
                 {GluForward(exec, {.gate = view(gate),
                                    .up = view(up),
                                    .activation = activation,
                                    .h = view(h)}),
                  GluForward(exec, {.gate_up = view(both),
                                    .activation = activation,
                                    .h = view(h2)}),
                  GluBackward(exec, {.gate = view(gate),
                                     .up = view(up),
                                     .activation = activation,
                                     .dh = view(dh),
                                     .dgate = view(dgate),
                                     .dup = view(dup)}),
                  GluBackward(exec, {.gate_up = view(both),
                                     .activation = activation,
                                     .dh = view(dh),
                                     .dgate_up = view(dboth)})}) {
              if (!status.ok()) return status;
            }
            return absl::OkStatus();
          },
          {&h, &h2, &dgate, &dup, &dboth});
    }
  }
}

TEST_P(RowsCuda, Elementwise) {
  for (const int64_t width : {1, 6, 64}) {
    Twins twins(GetParam());
    Twin& x = twins.Act({37, width});
    Twin& sum = twins.Act({37, width});
    Twin& gate = twins.Act({37, width}, 2);
    Twin& row_gate = twins.Act({37});
    Twin& wide = twins.Act({37, width + 8});
    Twin& y = twins.ActOut({37, width});
    Twin& y2 = twins.ActOut({37, width});
    Twin& dx = twins.ActOut({37, width});
    Twin& dgate = twins.ActOut({37, width});
    Twin& dx2 = twins.ActOut({37, width});
    Twin& drow = twins.ActOut({37});
    Twin& dropped = twins.Act({37, width});
    twins.Check(
        [&](const Exec& exec, const View& view) {
          for (const absl::Status& status :
               {AddInPlace(exec, view(x), view(sum)),
                CopyColumns(exec, {.src = view(x),
                                   .dst = view(wide),
                                   .rows = 37,
                                   .dst_column = 8,
                                   .width = width,
                                   .accumulate = true}),
                SigmoidGateForward(exec, view(x), view(gate), view(y)),
                SigmoidGateForward(exec, view(x), view(row_gate), view(y2)),
                SigmoidGateBackward(exec, {.x = view(x),
                                           .gate = view(gate),
                                           .dy = view(sum),
                                           .dx = view(dx),
                                           .dgate = view(dgate)}),
                SigmoidGateBackward(exec, {.x = view(x),
                                           .gate = view(row_gate),
                                           .dy = view(sum),
                                           .dx = view(dx2),
                                           .dgate = view(drow)}),
                Dropout(exec, {.x = view(x),
                               .y = view(dropped),
                               .probability = 0.3,
                               .seed = 12345,
                               .accumulate = true})}) {
            if (!status.ok()) return status;
          }
          return absl::OkStatus();
        },
        {&sum, &wide, &y, &y2, &dx, &dgate, &dx2, &drow, &dropped},
        {.bf16 = 1e-2});
  }
}

TEST_P(RowsCuda, Embedding) {
  for (const int64_t width : {5, 128}) {
    std::vector<int32_t> ids;
    for (int i = 0; i < 700; ++i) ids.push_back((i * i + 3) % 11);
    Twins twins(GetParam());
    Twin& table = twins.Act({12, width});
    Twin& at = twins.Table(ids);
    Twin& y = twins.ActOut({700, width});
    Twin& dy = twins.Act({700, width});
    Twin& dtable = twins.Param({12, width});
    twins.Check(
        [&](const Exec& exec, const View& view) {
          const absl::Status status = EmbeddingForward(
              exec, {.ids = view(at), .table = view(table), .y = view(y)});
          if (!status.ok()) return status;
          return EmbeddingBackward(exec, {.ids = view(at),
                                          .dy = view(dy),
                                          .dtable = view(dtable),
                                          .pad_id = 4});
        },
        {&y, &dtable});
  }
}

TEST_P(RowsCuda, AdamWAndSumOfSquares) {
  for (const int64_t n : {0, 1, 1000, 70'001}) {
    Twins twins(GetParam());
    Twin& p = twins.Param({n});
    Twin& m = twins.Param({n}, 0.1);
    Twin& v = twins.Param({n}, 0.01, 1);
    Twin& g = twins.Param({n});
    Twin& x = twins.Act({n});
    Twin& sum = twins.Zeros(DType::kF64, {1});
    twins.Check(
        [&](const Exec& exec, const View& view) {
          const absl::Status status = AdamW(exec, {.p = view(p),
                                                   .m = view(m),
                                                   .v = view(v),
                                                   .g = view(g),
                                                   .learning_rate = 1e-2,
                                                   .weight_decay = 0.1,
                                                   .step = 3,
                                                   .grad_scale = 0.5});
          if (!status.ok()) return status;
          return SumOfSquares(exec, {.x = view(x), .sum = view(sum)});
        },
        {&p, &m, &v, &sum}, {.f32 = 1e-6, .bf16 = 1e-6});
  }
}

}  // namespace
}  // namespace cadre
