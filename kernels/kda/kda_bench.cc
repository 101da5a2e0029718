// Times KDA on the device and prints one JSON line a case; last, heads of 64
// and the layer from convolutions to gated norm, fused and with a kernel for
// each step.
//
//   kda_bench T H [D]     one shape, slow gates, one document; heads of D
//   kda_bench [--quick]   only T = 8192, H = 32

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "base/logging.h"
#include "kernels/common/exec.h"
#include "kernels/gated_rmsnorm/gated_rmsnorm.h"
#include "kernels/kda/kda.h"
#include "kernels/kda/kda_unfused.h"
#include "kernels/linear_attention/bench.cuh"
#include "kernels/linear_attention/device_tensor.cuh"
#include "kernels/short_conv/conv_front.h"

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

void Bench(int64_t tokens, int64_t heads, const std::string& gates, bool packed,
           int64_t dim = 128) {
  const std::vector<int32_t> cu = linear_attention::Borders(tokens, packed);
  const int64_t docs = static_cast<int64_t>(cu.size()) - 1;
  const std::vector<int64_t> wide = {tokens, heads, dim};
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
  DeviceTensor a_log(DType::kF32, {heads}), bias(DType::kF32, {heads * dim});
  a_log.Zero();
  bias.Zero();
  TestTensor host_cu = TestTensor::Table(cu);
  const DeviceTensor table = DeviceTensor::Of(DType::kI32, {docs + 1}, host_cu);
  const Exec exec{.backend = Backend::kCuda};
  const KdaInputs in = {.q = x[0].view(),
                        .k = x[1].view(),
                        .v = x[2].view(),
                        .z = x[3].view(),
                        .beta = beta.view(),
                        .a_log = a_log.view(),
                        .dt_bias = bias.view(),
                        .cu_seqlens = table.view()};
  const int64_t forward = KdaForwardWorkspaceBytes(exec, in);
  const int64_t backward = KdaBackwardWorkspaceBytes(exec, in);
  const DeviceTensor workspace(DType::kU8,
                               {std::max({forward, backward, int64_t{256}})});
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
  const double tensor = 2.0 * tokens * heads * dim;
  const double scalars = 4.0 * tokens * heads;
  const double flops = linear_attention::ForwardFlops(tokens, heads, dim);
  const int runs = tokens * heads > 3000000 ? 10 : 20;
  const std::string op = dim == 128 ? "kda" : "kda" + std::to_string(dim);
  Report(op, "forward", tokens, heads, gates, packed,
         Measure(runs, run_forward), 5 * tensor + scalars, flops, forward);
  Report(op, "forward+backward", tokens, heads, gates, packed,
         Measure(runs,
                 [&] {
                   run_forward();
                   run_backward();
                 }),
         (5 + 9) * tensor + 3 * scalars, 4 * flops, backward);
}

// The forward of a layer without its projections, both ways.
void BenchLayer(int64_t tokens, int64_t heads) {
  constexpr int64_t kDim = 128;
  const std::vector<int64_t> wide = {tokens, heads, kDim};
  const std::vector<int64_t> flat = {tokens, heads * kDim};
  // q k v before and after their convolutions, z, gate, o, y of both ways.
  std::vector<DeviceTensor> x;
  for (int i = 0; i < 11; ++i) {
    x.emplace_back(DType::kBF16, wide);
    FillNormal(x[i], true, i == 6 ? -3 : 0, 1, false, i + 1);
  }
  std::vector<DeviceTensor> taps;
  for (int i = 0; i < 3; ++i) {
    taps.emplace_back(DType::kF32, std::vector<int64_t>{heads * kDim, 4});
    FillNormal(taps[i], false, 0, 0.5, false, i + 20);
  }
  DeviceTensor beta(DType::kF32, {tokens, heads}), norm(DType::kF32, {kDim});
  FillNormal(beta, false, 0, 1, false, 9);
  FillNormal(norm, false, 1, 0.1, false, 10);
  DeviceTensor a_log(DType::kF32, {heads}), bias(DType::kF32, {heads * kDim});
  a_log.Zero();
  bias.Zero();
  TestTensor host_cu = TestTensor::Table(linear_attention::Borders(tokens, 0));
  const DeviceTensor table = DeviceTensor::Of(DType::kI32, {2}, host_cu);
  const DeviceTensor workspace(
      DType::kU8, {std::max(UnfusedKdaBytes(tokens, heads),
                            KdaForwardWorkspaceBytes(tokens, heads, 1))});
  const Exec exec{.backend = Backend::kCuda};
  const auto rows = [&](int i) {
    return Tensor(x[i].raw(), DType::kBF16, flat);
  };

  const auto fused = [&] {
    ConvFrontForwardArgs front{.cu_seqlens = table.view()};
    for (int i = 0; i < 3; ++i) {
      front.parts.push_back({.x = rows(i),
                             .w = taps[i].view(),
                             .y = rows(3 + i),
                             .unit_dim = i < 2 ? kDim : 0});
    }
    CheckOk(ConvFrontForward(exec, front));
    CheckOk(KdaForward(exec, {.in = {.q = x[3].view(),
                                     .k = x[4].view(),
                                     .v = x[5].view(),
                                     .z = x[6].view(),
                                     .beta = beta.view(),
                                     .a_log = a_log.view(),
                                     .dt_bias = bias.view(),
                                     .cu_seqlens = table.view()},
                              .o = x[8].view(),
                              .workspace = workspace.view()}));
    CheckOk(GatedRmsNormForward(exec, {.x = x[8].view(),
                                       .gate = x[7].view(),
                                       .w = norm.view(),
                                       .y = x[9].view()}));
  };
  int launches = 0;
  const auto unfused = [&] {
    CheckOk(UnfusedKdaForward(exec,
                              {.q = rows(0),
                               .k = rows(1),
                               .v = rows(2),
                               .q_w = taps[0].view(),
                               .k_w = taps[1].view(),
                               .v_w = taps[2].view(),
                               .z = x[6].view(),
                               .beta = beta.view(),
                               .a_log = a_log.view(),
                               .dt_bias = bias.view(),
                               .cu_seqlens = table.view(),
                               .gate = x[7].view(),
                               .norm_w = norm.view(),
                               .y = x[10].view(),
                               .workspace = workspace.view()},
                              &launches));
  };
  const double fused_ms = Measure(20, fused).median;
  const double unfused_ms = Measure(20, unfused).median;
  std::printf(
      "{\"op\":\"kda layer\",\"pass\":\"forward\",\"T\":%lld,\"H\":%lld,"
      "\"fused_ms\":%.4f,\"unfused_ms\":%.4f,\"unfused_launches\":%d,"
      "\"ratio\":%.2f,\"difference\":%.5f}\n",
      static_cast<long long>(tokens), static_cast<long long>(heads), fused_ms,
      unfused_ms, launches, unfused_ms / fused_ms,
      testing::RelativeError(x[10].ToHost(), x[9].ToHost()));
}

}  // namespace
}  // namespace cadre

int main(int argc, char** argv) {
  const std::string why = cadre::testing::WhyNoDevice();
  if (!why.empty()) {
    std::printf("no device to measure on: %s\n", why.c_str());
    return 0;
  }
  const bool quick = argc == 2 && std::strcmp(argv[1], "--quick") == 0;
  if (argc == 3 || argc == 4) {
    cadre::Bench(std::atoll(argv[1]), std::atoll(argv[2]), "slow", false,
                 argc == 4 ? std::atoll(argv[3]) : 128);
    return 0;
  }
  for (int64_t tokens : {2048, 8192, 32768, 131072}) {
    for (int64_t heads : {16, 32, 64, 96}) {
      if (quick && (tokens != 8192 || heads != 32)) continue;
      for (const char* gates : {"slow", "fast"})
        cadre::Bench(tokens, heads, gates, false);
      cadre::Bench(tokens, heads, "slow", true);
    }
  }
  cadre::Bench(8192, 32, "slow", false, 64);
  cadre::BenchLayer(8192, 32);
  return 0;
}
