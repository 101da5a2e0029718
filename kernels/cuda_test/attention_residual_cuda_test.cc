// Attention residuals on the device against the CPU.

#include "kernels/attention_residual/attention_residual.h"
#include "kernels/cuda_test/twin.cuh"

namespace cadre {
namespace {

using testing::DeviceTest;
using testing::Twin;
using testing::Twins;
using testing::View;

class AttentionResidualCuda : public DeviceTest {};
CADRE_FOR_EACH_ACTIVATION(AttentionResidualCuda);

TEST_P(AttentionResidualCuda, BothWays) {
  struct Case {
    int64_t tokens, rows, width;
  };
  for (const Case& c : {Case{0, 2, 16}, Case{1, 1, 1}, Case{5, 3, 129},
                        Case{33, 9, 512}, Case{3, 32, 300}}) {
    SCOPED_TRACE(::testing::Message() << c.tokens << " tokens, " << c.rows
                                      << " rows of " << c.width);
    Twins twins(GetParam());
    std::vector<Twin*> rows, drows;
    for (int64_t i = 0; i < c.rows; ++i) {
      rows.push_back(&twins.Act({c.tokens, c.width}));
      drows.push_back(&twins.Act({c.tokens, c.width}));  // in place
    }
    Twin& norm = twins.Param({c.width}, 0.2, 1);
    Twin& proj =
        twins.Param({c.width}, 1 / std::sqrt(static_cast<double>(c.width)));
    Twin& y = twins.ActOut({c.tokens, c.width});
    Twin& p = twins.ParamOut({c.tokens, c.rows});
    Twin& rstd = twins.ParamOut({c.tokens, c.rows});
    const auto all = [](const View& view, const std::vector<Twin*>& from) {
      std::vector<Tensor> out;
      for (Twin* twin : from) out.push_back(view(*twin));
      return out;
    };
    twins.Check(
        [&](const Exec& exec, const View& view) {
          return AttentionResidualForward(exec, {.rows = all(view, rows),
                                                 .norm_weight = view(norm),
                                                 .proj = view(proj),
                                                 .y = view(y),
                                                 .p = view(p),
                                                 .rstd = view(rstd)});
        },
        {&y, &p, &rstd});
    Twin& dy = twins.Act({c.tokens, c.width});
    Twin& dnorm = twins.Param({c.width});
    Twin& dproj = twins.Param({c.width});
    Twin& slopes = twins.ParamOut({c.tokens, c.rows});
    std::vector<Twin*> results = drows;
    results.push_back(&dnorm);
    results.push_back(&dproj);
    twins.Check(
        [&](const Exec& exec, const View& view) {
          return AttentionResidualBackward(exec, {.rows = all(view, rows),
                                                  .norm_weight = view(norm),
                                                  .proj = view(proj),
                                                  .p = view(p),
                                                  .rstd = view(rstd),
                                                  .dy = view(dy),
                                                  .drows = all(view, drows),
                                                  .dnorm_weight = view(dnorm),
                                                  .dproj = view(dproj),
                                                  .slopes = view(slopes)});
        },
        results);
  }
}

}  // namespace
}  // namespace cadre
