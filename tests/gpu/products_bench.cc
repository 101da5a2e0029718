// Throughput of Gemm and GroupedGemm on a GPU, one JSON line per case: median
// and spread of 20 runs after 3. `lognormal` groups have sigma 1.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <random>
#include <vector>

#include "kernels/gemm/gemm.h"
#include "kernels/grouped_gemm/grouped_gemm.h"
#include "kernels/random_fill/random_fill.h"
#include "tests/gpu/device_tensor.h"
#include "worker/device/cuda_stream.h"
#include "worker/device/device.h"

namespace cadre {
namespace {

using testing::DeviceTensor;
using testing::Must;
using Mode = GroupedGemmMode;

DeviceTensor Filled(const Exec& exec, std::vector<int64_t> dims,
                    uint64_t seed) {
  DeviceTensor t;
  int64_t n = 1;
  for (int64_t d : dims) n *= d;
  t.buffer = Must(Buffer::Create(exec, 2 * n, "bench"));
  t.view = t.buffer.View(DType::kBF16, dims);
  Must(RandomFill(exec, {.x = t.view, .seed = seed}));
  return t;
}

void Report(const Exec& exec, const std::string& what, double flops,
            const std::function<absl::Status()>& run) {
  const auto stream = static_cast<cudaStream_t>(exec.stream);
  Event begin = Must(Event::Create(true)), end = Must(Event::Create(true));
  std::vector<float> times;
  for (int i = 0; i < 23; ++i) {
    Must(begin.Record(stream));
    Must(run());
    Must(end.Record(stream));
    Must(Synchronize(exec));
    float ms = 0;
    cudaEventElapsedTime(&ms, begin.get(), end.get());
    if (i >= 3) times.push_back(ms);
  }
  std::sort(times.begin(), times.end());
  std::printf(
      "{\"bench\":\"%s\",\"median_ms\":%.4f,\"min_ms\":%.4f,\"max_ms\":%.4f,"
      "\"tflops\":%.1f}\n",
      what.c_str(), times[times.size() / 2], times.front(), times.back(),
      flops / times[times.size() / 2] * 1e-9);
  std::fflush(stdout);
}

std::vector<int32_t> Offsets(int64_t groups, int64_t rows, bool skewed) {
  std::mt19937_64 bits(1);
  std::lognormal_distribution<double> lognormal(0, 1);
  std::vector<double> share(groups, 1.0);
  if (skewed) {
    for (double& s : share) s = lognormal(bits);
  }
  double sum = 0, at = 0;
  for (double s : share) sum += s;
  std::vector<int32_t> offsets = {0};
  for (double s : share) {
    at += s;
    offsets.push_back(static_cast<int32_t>(
        std::lround(at / sum * static_cast<double>(rows))));
  }
  return offsets;
}

void Grouped(const Exec& exec, int64_t groups, int64_t k, int64_t n,
             int64_t rows, Mode mode, bool skewed) {
  const DeviceTensor x = Filled(exec, {rows, k}, 1);
  const DeviceTensor w = Filled(exec, {groups, n, k}, 2);
  const DeviceTensor y = Filled(exec, {rows, n}, 3);
  const DeviceTensor table =
      testing::Table(exec, Offsets(groups, rows, skewed));
  const char* const names[] = {"NT", "NN", "TN"};
  Report(exec,
         absl::StrCat("grouped_gemm ", names[static_cast<int>(mode)], " E ",
                      groups, " K ", k, " N ", n, " rows ", rows,
                      skewed ? " lognormal" : " balanced"),
         2.0 * static_cast<double>(rows * n) * static_cast<double>(k), [&] {
           return GroupedGemm(exec, {.mode = mode,
                                     .x = x.view,
                                     .w = w.view,
                                     .y = y.view,
                                     .offsets = table.view});
         });
}

void Dense(const Exec& exec, int64_t m, int64_t n, int64_t k) {
  const DeviceTensor a = Filled(exec, {m, k}, 1);
  const DeviceTensor b = Filled(exec, {n, k}, 2);
  const DeviceTensor c = Filled(exec, {m, n}, 3);
  Report(exec, absl::StrCat("gemm NT ", m, "x", n, "x", k),
         2.0 * static_cast<double>(m * n) * static_cast<double>(k), [&] {
           return Gemm(
               exec, {.a = a.view, .b = b.view, .c = c.view, .trans_b = true});
         });
}

}  // namespace
}  // namespace cadre

int main() {
  using namespace cadre;
  const auto device = OpenCudaDevice(0);
  if (!device.ok()) {
    std::fprintf(stderr, "products_bench: %s\n",
                 std::string(device.status().message()).c_str());
    return 1;
  }
  const Exec exec = (*device)->exec();
  Dense(exec, 8192, 8192, 8192);
  Dense(exec, 8192, 4096, 2304);
  Dense(exec, 8192, 16, 2304);
  for (const bool skewed : {false, true}) {
    Grouped(exec, 256, 2304, 1024, 65536, Mode::kNT, skewed);
    Grouped(exec, 256, 2304, 1024, 65536, Mode::kNN, skewed);
    Grouped(exec, 512, 2048, 512, 81920, Mode::kNT, skewed);
    Grouped(exec, 896, 2048, 512, 131072, Mode::kNT, skewed);
    Grouped(exec, 14, 7168, 2048, 131072, Mode::kNT, skewed);
  }
  Grouped(exec, 256, 2304, 2048, 65536, Mode::kNT, false);
  Grouped(exec, 256, 2304, 1024, 65536, Mode::kTN, false);
  return 0;
}
