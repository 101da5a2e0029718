// The fused front of linear attention on the device against the CPU.

#include <vector>

#include "kernels/common/column_groups.h"
#include "kernels/common/tensor.h"
#include "kernels/cuda_test/twin.cuh"
#include "kernels/short_conv/conv_front.h"

namespace cadre {
namespace {

using testing::DeviceTest;
using testing::Twin;
using testing::Twins;
using testing::View;

class ConvFrontCuda : public DeviceTest {};
CADRE_FOR_EACH_ACTIVATION(ConvFrontCuda);

struct Case {
  std::vector<int64_t> channels, unit;  // of each part
  int64_t taps;
  bool backward;
};

TEST_P(ConvFrontCuda, AgreesWithTheSteps) {
  // Documents shorter than the filter, empty ones, one over several blocks, and
  // padding behind.
  const std::vector<int32_t> cu = {0, 1, 3, 3, 20, 83, 84, 170};
  const std::vector<Case> cases = {
      {{256, 256, 512}, {128, 128, 0}, 4, true},
      {{64, 192, 36}, {64, 64, 0}, 4, true},
      {{640}, {128}, 2, true},
      {{128, 128}, {0, 0}, 1, true},
      {{96, 5}, {32, 0}, 4, false},  // a launch for each step
      {{256, 10}, {256, 0}, 5, false},
  };
  for (const Case& c : cases) {
    Twins twins(GetParam());
    const int64_t tokens = 177;
    Twin& table = twins.Table(cu);
    std::vector<Twin*> x, w, y, dy, dx, outputs;
    for (const int64_t channels : c.channels) {
      x.push_back(&twins.Act({tokens, channels}));
      w.push_back(&twins.Param({channels, c.taps}));
      y.push_back(&twins.ActOut({tokens, channels}));
      dy.push_back(&twins.Act({tokens, channels}));
      dx.push_back(&twins.ActOut({tokens, channels}));
      outputs.push_back(y.back());
      if (c.backward) outputs.push_back(dx.back());
    }
    twins.Check(
        [&](const Exec& exec, const View& view) -> absl::Status {
          ConvFrontForwardArgs forward{.cu_seqlens = view(table)};
          ConvFrontBackwardArgs backward{.cu_seqlens = view(table)};
          for (size_t i = 0; i < x.size(); ++i) {
            forward.parts.push_back({.x = view(*x[i]),
                                     .w = view(*w[i]),
                                     .y = view(*y[i]),
                                     .unit_dim = c.unit[i]});
            backward.parts.push_back({.x = view(*x[i]),
                                      .w = view(*w[i]),
                                      .dy = view(*dy[i]),
                                      .dx = view(*dx[i]),
                                      .unit_dim = c.unit[i]});
          }
          const absl::Status status = ConvFrontForward(exec, forward);
          if (!status.ok() || !c.backward) return status;
          return ConvFrontBackward(exec, backward);
        },
        outputs);
  }
}

// Queries, keys, values and gates out of one projection, with beta and a out of
// another: grouped by key head, or all of a kind side by side.
struct OneTensor {
  int64_t key_heads, heads_per_key, key_dim, value_dim;
  bool grouped;
  bool weights;  // dw too, which takes a launch for each step

  int64_t group_values() const { return heads_per_key * value_dim; }
  int64_t channels(int part) const {
    return key_heads * (part < 2 ? key_dim : group_values());
  }
  int64_t group_width() const { return 2 * key_dim + 2 * group_values(); }
  int64_t width() const {
    return grouped ? key_heads * group_width() : 2 * channels(0) + channels(2);
  }
  ColumnGroups at(int part) const {
    if (!grouped) return {.first = part * channels(0), .group = channels(part)};
    return {.first = part * key_dim,
            .group = part < 2 ? key_dim : group_values(),
            .pitch = group_width()};
  }
};

void CheckOneTensor(DType dtype, const OneTensor& one,
                    const std::vector<int32_t>& cu, int64_t tokens,
                    int64_t taps) {
  SCOPED_TRACE(::testing::Message()
               << one.key_heads << " key heads of " << one.key_dim << ", "
               << one.heads_per_key << " value heads each of " << one.value_dim
               << ", grouped " << one.grouped << ", dw " << one.weights
               << ", tokens " << tokens << ", taps " << taps);
  Twins twins(dtype);
  Twin& table = twins.Table(cu);
  Twin& x = twins.Act({tokens, one.width()});
  Twin& dx = twins.Zeros(dtype, {tokens, one.width()});
  std::vector<Twin*> w, y, dy, dw, spare, narrow, outputs = {&dx};
  for (int part = 0; part < 3; ++part) {
    const int64_t channels = one.channels(part);
    w.push_back(&twins.Param({channels, taps}));
    y.push_back(&twins.ActOut({tokens, channels}));
    dy.push_back(&twins.Act({tokens, channels}));
    dw.push_back(&twins.Zeros(DType::kF32, {channels, taps}));
    spare.push_back(&twins.ActOut({tokens, channels}));
    outputs.push_back(y.back());
    if (one.weights) outputs.push_back(dw.back());
  }
  const int64_t group = one.heads_per_key, heads = one.key_heads * group;
  Twin& wide = twins.Param({tokens, 2 * heads});
  Twin& back = twins.ParamOut({tokens, 2 * heads});
  for (int i = 0; i < 2; ++i)
    narrow.push_back(&twins.ParamOut({tokens, heads}));
  outputs.insert(outputs.end(), {&back, narrow[0], narrow[1]});
  twins.Check(
      [&](const Exec& exec, const View& view) -> absl::Status {
        ConvFrontForwardArgs forward{.cu_seqlens = view(table)};
        ConvFrontBackwardArgs backward{.cu_seqlens = view(table)};
        for (int i = 0; i < 3; ++i) {
          // Norms of separate steps leave their gradients there.
          if (exec.backend == Backend::kCuda) dy[i]->Reset();
          const int64_t unit = i < 2 ? one.key_dim : 0;
          forward.parts.push_back({.x = view(x),
                                   .w = view(*w[i]),
                                   .y = view(*y[i]),
                                   .unit_dim = unit,
                                   .at = one.at(i)});
          backward.parts.push_back({.x = view(x),
                                    .w = view(*w[i]),
                                    .dy = view(*dy[i]),
                                    .dx = view(dx),
                                    .dw = one.weights ? view(*dw[i]) : Tensor(),
                                    .unit_dim = unit,
                                    .at = one.at(i),
                                    .spare = view(*spare[i])});
        }
        for (int i = 0; i < 2; ++i) {
          const ColumnGroups at{
              .first = i * group, .group = group, .pitch = 2 * group};
          forward.moves.push_back(
              {.wide = view(wide), .narrow = view(*narrow[i]), .at = at});
          backward.moves.push_back(
              {.wide = view(back), .narrow = view(*narrow[i]), .at = at});
        }
        const absl::Status status = ConvFrontForward(exec, forward);
        return status.ok() ? ConvFrontBackward(exec, backward) : status;
      },
      outputs);
}

TEST_P(ConvFrontCuda, PartsOfOneTensorAgree) {
  const std::vector<int32_t> ragged = {0, 1, 3, 3, 20, 83, 84, 170};
  for (const bool grouped : {true, false}) {
    for (const OneTensor& one : {OneTensor{2, 2, 128, 128, grouped, false},
                                 OneTensor{5, 3, 64, 128, grouped, false},
                                 OneTensor{1, 1, 128, 64, grouped, false},
                                 // A launch for each step.
                                 OneTensor{2, 2, 128, 128, grouped, true},
                                 OneTensor{3, 2, 16, 5, grouped, false}}) {
      CheckOneTensor(GetParam(), one, ragged, 177, 4);
      CheckOneTensor(GetParam(), one, {0, 1}, 1, 4);
      CheckOneTensor(GetParam(), one, ragged, 170, 2);
    }
  }
}

}  // namespace
}  // namespace cadre
