// The fused front of linear attention on the device against the CPU.

#include <vector>

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

}  // namespace
}  // namespace cadre
