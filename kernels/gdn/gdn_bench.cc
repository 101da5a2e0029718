// Times Gated DeltaNet on the device and prints one JSON line a case; last,
// heads of 64, and what stands in front of it in a layer.
//
//   gdn_bench T H [D]     one shape, slow gates, one document; heads of D
//   gdn_bench [--quick]   only T = 8192, 32 value heads; key heads are half

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "base/logging.h"
#include "kernels/common/exec.h"
#include "kernels/gdn/gdn.h"
#include "kernels/gdn/gdn_front_bench.h"
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

void Bench(int64_t tokens, int64_t heads, const std::string& gates, bool packed,
           int64_t dim = 128) {
  const std::vector<int32_t> cu = linear_attention::Borders(tokens, packed);
  const int64_t docs = static_cast<int64_t>(cu.size()) - 1;
  const int64_t key_heads = heads / 2;
  const std::vector<int64_t> wide = {tokens, heads, dim};
  const std::vector<int64_t> keys = {tokens, key_heads, dim};
  const std::vector<int64_t> scalars = {tokens, heads};
  std::vector<DeviceTensor> x;  // q k dq dk, then v d_o o dv
  for (int i = 0; i < 8; ++i) {
    x.emplace_back(DType::kBF16, i < 4 ? keys : wide);
    if (i < 2 || i == 4 || i == 5) FillNormal(x[i], true, 0, 1, i < 2, i + 1);
  }
  std::vector<DeviceTensor> y;  // a beta da dbeta
  for (int i = 0; i < 4; ++i) y.emplace_back(DType::kF32, scalars);
  FillNormal(y[0], false, gates == "slow" ? -3 : 3, 1, false, 8);
  FillNormal(y[1], false, 0, 1, false, 9);
  DeviceTensor a_log(DType::kF32, {heads}), bias(DType::kF32, {heads});
  a_log.Zero();
  bias.Zero();
  TestTensor host_cu = TestTensor::Table(cu);
  const DeviceTensor table = DeviceTensor::Of(DType::kI32, {docs + 1}, host_cu);
  const Exec exec{.backend = Backend::kCuda};
  const GdnInputs in = {.q = x[0].view(),
                        .k = x[1].view(),
                        .v = x[4].view(),
                        .a = y[0].view(),
                        .beta = y[1].view(),
                        .a_log = a_log.view(),
                        .dt_bias = bias.view(),
                        .cu_seqlens = table.view()};
  const int64_t forward = GdnForwardWorkspaceBytes(exec, in);
  const int64_t backward = GdnBackwardWorkspaceBytes(exec, in);
  const DeviceTensor workspace(DType::kU8,
                               {std::max({forward, backward, int64_t{256}})});
  const auto run_forward = [&] {
    CheckOk(GdnForward(
        exec, {.in = in, .o = x[6].view(), .workspace = workspace.view()}));
  };
  const auto run_backward = [&] {
    CheckOk(GdnBackward(exec, {.in = in,
                               .d_o = x[5].view(),
                               .dq = x[2].view(),
                               .dk = x[3].view(),
                               .dv = x[7].view(),
                               .da = y[2].view(),
                               .dbeta = y[3].view(),
                               .workspace = workspace.view()}));
  };
  const double tensor = 2.0 * tokens * heads * dim;
  const double scalars_bytes = 4.0 * tokens * heads;
  const double flops = linear_attention::ForwardFlops(tokens, heads, dim);
  const int runs = tokens * heads > 3000000 ? 10 : 20;
  const std::string op = dim == 128 ? "gdn" : "gdn" + std::to_string(dim);
  Report(op, "forward", tokens, heads, gates, packed,
         Measure(runs, run_forward), 3 * tensor + 2 * scalars_bytes, flops,
         forward);
  Report(op, "forward+backward", tokens, heads, gates, packed,
         Measure(runs,
                 [&] {
                   run_forward();
                   run_backward();
                 }),
         (3 + 6) * tensor + 6 * scalars_bytes, 4 * flops, backward);
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
  cadre::BenchGdnFront(8192, 32);
  return 0;
}
