#ifndef CADRE_KERNELS_LINEAR_ATTENTION_BENCH_CUH_
#define CADRE_KERNELS_LINEAR_ATTENTION_BENCH_CUH_

// What the benches of KDA and Gated DeltaNet share: inputs of realistic
// statistics, timing, the roofline, and JSON lines. One thread.

#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "kernels/linear_attention/device_tensor.cuh"

namespace cadre::linear_attention {

// Measured ceilings of an H200 (docs/benchmarks.md).
constexpr double kBytesPerSecond = 4.25e12;
constexpr double kFlopsPerSecond = 681e12;

// Fills `tensor` with normal values; rows of 128 to unit length if asked. A
// pattern of 2^20 values is repeated: nobody looks for the period.
inline void FillNormal(testing::DeviceTensor& tensor, bool bf16, double mean,
                       double dev, bool unit, uint64_t seed) {
  constexpr int64_t kPattern = 1 << 20;
  static std::vector<double> base;
  if (base.empty()) {
    std::mt19937_64 bits(1);
    std::normal_distribution<double> normal;
    for (int64_t i = 0; i < kPattern; ++i) base.push_back(normal(bits));
  }
  const int64_t shift = seed * 77777 % kPattern / 128 * 128;
  std::vector<unsigned char> bytes(kPattern * (bf16 ? 2 : 4));
  for (int64_t i = 0; i < kPattern; ++i) {
    double x = base[(i + shift) % kPattern] * dev + mean;
    if (unit) x /= std::sqrt(128.0);
    if (bf16) {
      const uint16_t narrow = testing::RoundToBf16(x);
      std::memcpy(&bytes[2 * i], &narrow, 2);
    } else {
      const float narrow = static_cast<float>(x);
      std::memcpy(&bytes[4 * i], &narrow, 4);
    }
  }
  char* to = static_cast<char*>(tensor.raw());
  const int64_t total = tensor.size() * (bf16 ? 2 : 4);
  const int64_t first =
      std::min<int64_t>(total, static_cast<int64_t>(bytes.size()));
  testing::CheckCuda(
      cudaMemcpy(to, bytes.data(), first, cudaMemcpyHostToDevice));
  for (int64_t done = first; done < total; done *= 2) {
    testing::CheckCuda(cudaMemcpy(to + done, to, std::min(done, total - done),
                                  cudaMemcpyDeviceToDevice));
  }
}

// Document borders: one document, or ragged ones of 64 to 4,096 tokens.
inline std::vector<int32_t> Borders(int64_t tokens, bool packed) {
  std::vector<int32_t> cu = {0};
  std::mt19937_64 bits(7);
  while (cu.back() < tokens) {
    const double length =
        packed ? 64 * std::exp2(6.0 * (bits() % 1000) / 1000) : double(tokens);
    cu.push_back(static_cast<int32_t>(
        std::min<double>(tokens, cu.back() + std::floor(length))));
  }
  return cu;
}

struct Timing {
  double median, low, high;  // ms; the 10th and 90th percentiles
};

inline Timing Measure(int runs, const std::function<void()>& body) {
  for (int i = 0; i < 3; ++i) body();
  std::vector<cudaEvent_t> events(runs + 1);
  for (cudaEvent_t& event : events) testing::CheckCuda(cudaEventCreate(&event));
  testing::CheckCuda(cudaEventRecord(events[0]));
  for (int i = 0; i < runs; ++i) {
    body();
    testing::CheckCuda(cudaEventRecord(events[i + 1]));
  }
  testing::CheckCuda(cudaDeviceSynchronize());
  std::vector<double> ms;
  for (int i = 0; i < runs; ++i) {
    float one;
    testing::CheckCuda(cudaEventElapsedTime(&one, events[i], events[i + 1]));
    ms.push_back(one);
  }
  for (cudaEvent_t event : events) cudaEventDestroy(event);
  std::sort(ms.begin(), ms.end());
  return {ms[runs / 2], ms[runs / 10], ms[runs - 1 - runs / 10]};
}

// Multiplications and additions of the chunk form, lower triangles counted as
// such: two score matrices, the inverse, u and w, and the four products of the
// scan. The backward repeats all that and adds about twice as much.
inline double ForwardFlops(double tokens, double heads, double k = 128) {
  const double c = 64;
  return tokens * heads *
         (2 * c * k + c * c / 3 + 2 * c * k + 3 * 2 * k * k + c * k);
}

inline void Report(const std::string& op, const std::string& pass,
                   int64_t tokens, int64_t heads, const std::string& gates,
                   bool packed, const Timing& t, double bytes, double flops,
                   double workspace) {
  const double floor =
      std::max(bytes / kBytesPerSecond, flops / kFlopsPerSecond) * 1e3;
  std::printf(
      "{\"op\":\"%s\",\"pass\":\"%s\",\"T\":%lld,\"H\":%lld,\"gates\":\"%s\","
      "\"packed\":%s,\"ms\":%.4f,\"p10\":%.4f,\"p90\":%.4f,\"GBps\":%.0f,"
      "\"TFLOPs\":%.1f,\"floor_ms\":%.4f,\"times_floor\":%.2f,"
      "\"workspace_MB\":%.0f}\n",
      op.c_str(), pass.c_str(), static_cast<long long>(tokens),
      static_cast<long long>(heads), gates.c_str(), packed ? "true" : "false",
      t.median, t.low, t.high, bytes / t.median * 1e-6, flops / t.median * 1e-9,
      floor, t.median / floor, workspace / 1e6);
  std::fflush(stdout);
}

}  // namespace cadre::linear_attention

#endif  // CADRE_KERNELS_LINEAR_ATTENTION_BENCH_CUH_
