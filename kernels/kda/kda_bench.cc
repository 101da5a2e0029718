// Times KDA on the device and prints one JSON line a case.
//
//   kda_bench [--quick]     only T = 8192, H = 32

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "base/logging.h"
#include "kernels/common/exec.h"
#include "kernels/kda/kda.h"
#include "kernels/linear_attention/bench.cuh"
#include "kernels/linear_attention/device_tensor.cuh"

namespace cadre {
namespace {

using linear_attention::FillNormal;
using linear_attention::Measure;
using linear_attention::Report;
using testing::DeviceTensor;
using testing::TestTensor;

void CheckOk(const absl::Status& status) {
  CADRE_CHECK(status.ok()) << std::string(status.message());
}

void Bench(int64_t tokens, int64_t heads, const std::string& gates,
           bool packed) {
  constexpr int64_t kDim = 128;
  const std::vector<int32_t> cu = linear_attention::Borders(tokens, packed);
  const int64_t docs = static_cast<int64_t>(cu.size()) - 1;
  const std::vector<int64_t> wide = {tokens, heads, kDim};
  std::vector<DeviceTensor> x;  // q k v z d_o, then o dq dk dv dz
  for (int i = 0; i < 10; ++i) {
    x.emplace_back(DType::kBF16, wide);
    // Slow: HF initialisation, 0.005 to 0.5 nats a token.
    const bool gate = i == 3;
    const double mean = gate ? (gates == "slow" ? -3 : 3) : 0;
    if (i < 5) FillNormal(x[i], true, mean, 1, i < 2, i + 1);
  }
  DeviceTensor beta(DType::kF32, {tokens, heads});
  DeviceTensor dbeta(DType::kF32, {tokens, heads});
  FillNormal(beta, false, 0, 1, false, 9);
  DeviceTensor a_log(DType::kF32, {heads}), bias(DType::kF32, {heads * kDim});
  a_log.Zero();
  bias.Zero();
  TestTensor host_cu = TestTensor::Table(cu);
  const DeviceTensor table = DeviceTensor::Of(DType::kI32, {docs + 1}, host_cu);
  const int64_t forward = KdaForwardWorkspaceBytes(tokens, heads, docs);
  const int64_t backward = KdaBackwardWorkspaceBytes(tokens, heads, docs);
  const DeviceTensor workspace(DType::kU8, {std::max(forward, backward)});

  const Exec exec{.backend = Backend::kCuda};
  const KdaInputs in = {.q = x[0].view(),
                        .k = x[1].view(),
                        .v = x[2].view(),
                        .z = x[3].view(),
                        .beta = beta.view(),
                        .a_log = a_log.view(),
                        .dt_bias = bias.view(),
                        .cu_seqlens = table.view()};
  const auto run_forward = [&] {
    CheckOk(KdaForward(
        exec, {.in = in, .o = x[5].view(), .workspace = workspace.view()}));
  };
  const auto run_backward = [&] {
    CheckOk(KdaBackward(exec, {.in = in,
                               .d_o = x[4].view(),
                               .dq = x[6].view(),
                               .dk = x[7].view(),
                               .dv = x[8].view(),
                               .dz = x[9].view(),
                               .dbeta = dbeta.view(),
                               .workspace = workspace.view()}));
  };
  const double tensor = 2.0 * tokens * heads * kDim;
  const double scalars = 4.0 * tokens * heads;
  const double flops = linear_attention::ForwardFlops(tokens, heads);
  const int runs = tokens * heads > 3000000 ? 10 : 20;
  Report("kda", "forward", tokens, heads, gates, packed,
         Measure(runs, run_forward), 5 * tensor + scalars, flops, forward);
  Report("kda", "forward+backward", tokens, heads, gates, packed,
         Measure(runs,
                 [&] {
                   run_forward();
                   run_backward();
                 }),
         (5 + 9) * tensor + 3 * scalars, 4 * flops, backward);
}

}  // namespace
}  // namespace cadre

int main(int argc, char** argv) {
  const std::string why = cadre::testing::WhyNoDevice();
  if (!why.empty()) {
    std::printf("no device to measure on: %s\n", why.c_str());
    return 0;
  }
  const bool quick = argc > 1 && std::strcmp(argv[1], "--quick") == 0;
  for (int64_t tokens : {2048, 8192, 32768, 131072}) {
    for (int64_t heads : {16, 32, 64, 96}) {
      if (quick && (tokens != 8192 || heads != 32)) continue;
      for (const char* gates : {"slow", "fast"})
        cadre::Bench(tokens, heads, gates, false);
      cadre::Bench(tokens, heads, "slow", true);
    }
  }
  return 0;
}
