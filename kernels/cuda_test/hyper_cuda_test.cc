// Hyper-connections on the device against the CPU.

#include "kernels/cuda_test/twin.cuh"
#include "kernels/hyper_connection/hyper_connection.h"

namespace cadre {
namespace {

using testing::DeviceTest;
using testing::Twin;
using testing::Twins;
using testing::View;

class HyperConnectionCuda : public DeviceTest {};
CADRE_FOR_EACH_ACTIVATION(HyperConnectionCuda);

struct Case {
  int64_t tokens, streams, width, iterations;
  bool trains = true;  // the mapping itself
};

const std::vector<Case> kCases = {
    {0, 4, 16, 3},   {1, 1, 1, 1},   {5, 2, 7, 2},   {9, 3, 40, 64},
    {6, 4, 300, 20}, {7, 8, 129, 5}, {3, 8, 64, 64}, {33, 4, 512, 20, false}};

TEST_P(HyperConnectionCuda, ReadAndWriteBothWays) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(::testing::Message()
                 << c.tokens << " tokens, " << c.streams << " streams of "
                 << c.width << ", " << c.iterations << " iterations");
    Twins twins(GetParam());
    const int64_t n = c.tokens, m = c.streams, h = c.width, q = (2 + m) * m;
    Twin& streams = twins.Act({n, m, h});
    Twin& fn = twins.Param({q, m * h}, 1 / std::sqrt(static_cast<double>(h)));
    Twin& base = twins.Param({q});
    Twin& scale = twins.Param({3}, 0.3, 0.7);
    Twin& x = twins.ActOut({n, h});
    Twin& pre = twins.ParamOut({n, m});
    Twin& post = twins.ParamOut({n, m});
    Twin& comb = twins.ParamOut({n, m, m});
    Twin& logits = twins.ParamOut({n, q});
    Twin& rstd = twins.ParamOut({n});
    auto parameters = [&](const View& view) {
      return HyperConnectionParameters{.fn = view(fn),
                                       .base = view(base),
                                       .scale = view(scale),
                                       .sinkhorn_iters = c.iterations};
    };
    twins.Check(
        [&](const Exec& exec, const View& view) {
          return HyperConnectionRead(exec, {.streams = view(streams),
                                            .parameters = parameters(view),
                                            .x = view(x),
                                            .pre = view(pre),
                                            .post = view(post),
                                            .comb = view(comb),
                                            .logits = view(logits),
                                            .rstd = view(rstd)});
        },
        {&x, &pre, &post, &comb, &logits, &rstd});

    Twin& o = twins.Act({n, h});
    Twin& next = twins.ActOut({n, m, h});
    twins.Check(
        [&](const Exec& exec, const View& view) {
          return HyperConnectionWrite(exec, {.streams = view(streams),
                                             .o = view(o),
                                             .post = view(post),
                                             .comb = view(comb),
                                             .streams_out = view(next)});
        },
        {&next});

    Twin& dstreams = twins.Act({n, m, h});  // in place
    Twin& d_o = twins.ActOut({n, h});
    Twin& dpost = twins.ParamOut({n, m});
    Twin& dcomb = twins.ParamOut({n, m, m});
    twins.Check(
        [&](const Exec& exec, const View& view) {
          return HyperConnectionWriteBackward(exec,
                                              {.streams = view(streams),
                                               .o = view(o),
                                               .post = view(post),
                                               .comb = view(comb),
                                               .dstreams_out = view(dstreams),
                                               .d_o = view(d_o),
                                               .dpost = view(dpost),
                                               .dcomb = view(dcomb),
                                               .dstreams = view(dstreams)});
        },
        {&d_o, &dpost, &dcomb, &dstreams});

    Twin& dx = twins.Act({n, h});
    Twin& into = twins.Act({n, m, h});
    Twin& workspace = twins.ParamOut({n, q});
    Twin& dfn = twins.Param({q, m * h});
    Twin& dbase = twins.Param({q});
    Twin& dscale = twins.Param({3});
    auto trained = [&](const View& view, Twin& t) {
      return c.trains ? view(t) : Tensor();
    };
    twins.Check(
        [&](const Exec& exec, const View& view) {
          return HyperConnectionReadBackward(exec,
                                             {.streams = view(streams),
                                              .parameters = parameters(view),
                                              .pre = view(pre),
                                              .post = view(post),
                                              .logits = view(logits),
                                              .rstd = view(rstd),
                                              .dx = view(dx),
                                              .dpost = view(dpost),
                                              .dcomb = view(dcomb),
                                              .dstreams = view(into),
                                              .workspace = view(workspace),
                                              .dfn = trained(view, dfn),
                                              .dbase = trained(view, dbase),
                                              .dscale = trained(view, dscale)});
        },
        {&into, &dfn, &dbase, &dscale}, {.f32 = 5e-5, .bf16 = 1e-2});
  }
}

TEST_P(HyperConnectionCuda, WriteMayReplaceTheStreams) {
  Twins twins(GetParam());
  Twin& streams = twins.Act({5, 4, 70});
  Twin& o = twins.Act({5, 70});
  Twin& post = twins.Param({5, 4});
  Twin& comb = twins.Param({5, 4, 4});
  twins.Check(
      [&](const Exec& exec, const View& view) {
        return HyperConnectionWrite(exec, {.streams = view(streams),
                                           .o = view(o),
                                           .post = view(post),
                                           .comb = view(comb),
                                           .streams_out = view(streams)});
      },
      {&streams});
}

TEST_P(HyperConnectionCuda, BroadcastAndSum) {
  Twins twins(GetParam());
  Twin& x = twins.Act({6, 130});
  Twin& streams = twins.ActOut({6, 3, 130});
  Twin& sum = twins.ActOut({6, 130});
  twins.Check(
      [&](const Exec& exec, const View& view) {
        return StreamsBroadcast(
            exec, {.x = view(x), .streams = view(streams), .factor = 0.3});
      },
      {&streams});
  twins.Check(
      [&](const Exec& exec, const View& view) {
        return StreamsSum(
            exec, {.x = view(sum), .streams = view(streams), .factor = 0.7});
      },
      {&sum}, {.f32 = 2e-5, .bf16 = 1e-2});
}

}  // namespace
}  // namespace cadre
