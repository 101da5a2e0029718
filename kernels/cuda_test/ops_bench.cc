// Times ops on the device: one JSON line each, with the bytes they must move or
// the products they must form over the median of 20 runs.

#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <vector>

#include "base/logging.h"
#include "kernels/adamw/adamw.h"
#include "kernels/attention/attention.h"
#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/gated_rmsnorm/gated_rmsnorm.h"
#include "kernels/glu/glu.h"
#include "kernels/moe_permute/moe_permute.h"
#include "kernels/rmsnorm/rmsnorm.h"
#include "kernels/router/router.h"
#include "kernels/router/router_overflow.h"
#include "kernels/short_conv/short_conv.h"

namespace cadre {
namespace {

void Ok(cudaError_t error) {
  CADRE_CHECK(error == cudaSuccess) << cudaGetErrorString(error);
}
void Ok(const absl::Status& status) {
  CADRE_CHECK(status.ok()) << status.ToString();
}

// Device memory of pseudo-random small values, never freed: the program ends.
Tensor Make(DType dtype, std::initializer_list<int64_t> dims) {
  Tensor shape(nullptr, dtype, dims);
  void* data = nullptr;
  Ok(cudaMalloc(&data, shape.num_bytes() + 256));
  std::vector<unsigned char> host(shape.num_bytes());
  uint32_t state = 1;
  for (int64_t i = 0; i < shape.num_elements(); ++i) {
    state = state * 1664525 + 1013904223;
    const float value = float(state >> 8) / float(1 << 23) - 1;  // [-1, 1)
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    if (dtype == DType::kBF16) {
      const uint16_t half = uint16_t(bits >> 16);
      std::memcpy(host.data() + 2 * i, &half, 2);
    } else if (dtype == DType::kF32) {
      std::memcpy(host.data() + 4 * i, &bits, 4);
    }
  }
  Ok(cudaMemcpy(data, host.data(), host.size(), cudaMemcpyHostToDevice));
  return Tensor(data, dtype, dims);
}
Tensor Table(const std::vector<int32_t>& values,
             std::initializer_list<int64_t> dims) {
  const Tensor out = Make(DType::kI32, dims);
  Ok(cudaMemcpy(out.raw(), values.data(), out.num_bytes(),
                cudaMemcpyHostToDevice));
  return out;
}

// `bytes` or `flops` may be 0.
void Time(const char* name, double bytes, double flops,
          const std::function<absl::Status()>& op) {
  cudaEvent_t begin, end;
  Ok(cudaEventCreate(&begin));
  Ok(cudaEventCreate(&end));
  for (int i = 0; i < 3; ++i) Ok(op());
  std::vector<float> ms;
  for (int i = 0; i < 20; ++i) {
    float one = 0;
    Ok(cudaEventRecord(begin));
    Ok(op());
    Ok(cudaEventRecord(end));
    Ok(cudaEventSynchronize(end));
    Ok(cudaEventElapsedTime(&one, begin, end));
    ms.push_back(one);
  }
  std::sort(ms.begin(), ms.end());
  std::printf(
      "{\"op\":\"%s\",\"ms\":%.4f,\"ms_min\":%.4f,\"ms_max\":%.4f,"
      "\"gb_s\":%.0f,\"tflop_s\":%.1f}\n",
      name, ms[10], ms[0], ms[19], bytes / ms[10] * 1e-6,
      flops / ms[10] * 1e-9);
  std::fflush(stdout);
}

const Exec kExec = {.backend = Backend::kCuda};
constexpr DType kAct = DType::kBF16;
constexpr DType kParam = DType::kF32;

void Attention(const char* forward, const char* backward, int64_t tokens,
               int64_t heads, int64_t kv_heads, int64_t qk, int64_t v) {
  const Tensor q = Make(kAct, {tokens, heads, qk});
  const Tensor k = Make(kAct, {tokens, kv_heads, qk});
  const Tensor value = Make(kAct, {tokens, kv_heads, v});
  const Tensor cu = Table({0, int32_t(tokens)}, {2});
  const Tensor o = Make(kAct, {tokens, heads, v});
  const Tensor lse = Make(kParam, {tokens, heads});
  const Tensor d_o = Make(kAct, {tokens, heads, v});
  const Tensor dq = Make(kAct, {tokens, heads, qk});
  const Tensor dk = Make(kAct, {tokens, kv_heads, qk});
  const Tensor dv = Make(kAct, {tokens, kv_heads, v});
  const double scale = 1 / std::sqrt(double(qk));
  const double pairs = double(tokens) * double(tokens) / 2 * double(heads);
  Time(forward, 0, pairs * 2 * double(qk + v), [&] {
    return AttentionForward(kExec, {.q = q,
                                    .k = k,
                                    .v = value,
                                    .cu_seqlens = cu,
                                    .scale = scale,
                                    .o = o,
                                    .lse = lse});
  });
  // Counted as the five products of the textbook, two of them made twice.
  Time(backward, 0, pairs * 2 * double(3 * qk + 2 * v), [&] {
    return AttentionBackward(kExec, {.q = q,
                                     .k = k,
                                     .v = value,
                                     .cu_seqlens = cu,
                                     .scale = scale,
                                     .o = o,
                                     .lse = lse,
                                     .d_o = d_o,
                                     .dq = dq,
                                     .dk = dk,
                                     .dv = dv});
  });
  for (const Tensor& t : {q, k, value, cu, o, lse, d_o, dq, dk, dv})
    Ok(cudaFree(t.raw()));
}

void Rows() {
  const int64_t tokens = 32768, hidden = 2304, heads = 32;
  const Tensor x = Make(kAct, {tokens, hidden});
  const Tensor y = Make(kAct, {tokens, hidden});
  const Tensor dx = Make(kAct, {tokens, hidden});
  const Tensor w = Make(kParam, {hidden});
  const Tensor rstd = Make(kParam, {tokens});
  const double row_bytes = double(tokens) * double(hidden) * 2;
  Time("rmsnorm_forward", 2 * row_bytes, 0, [&] {
    return RmsNormForward(kExec, {.x = x, .w = w, .y = y, .rstd = rstd});
  });
  Time("rmsnorm_backward", 4 * row_bytes, 0, [&] {
    return RmsNormBackward(kExec, {.x = x,
                                   .w = w,
                                   .rstd = rstd,
                                   .dy = y,
                                   .dx = dx,
                                   .accumulate_dx = true});
  });
  const Tensor head_x = Make(kAct, {tokens, heads, 128});
  const Tensor gate = Make(kAct, {tokens, heads, 128});
  const Tensor head_y = Make(kAct, {tokens, heads, 128});
  const Tensor head_w = Make(kParam, {128});
  const double head_bytes = double(tokens) * double(heads) * 128 * 2;
  Time("gated_rmsnorm_forward", 3 * head_bytes, 0, [&] {
    return GatedRmsNormForward(
        kExec, {.x = head_x, .gate = gate, .w = head_w, .y = head_y});
  });
  Time("glu_forward", 3 * head_bytes, 0, [&] {
    return GluForward(kExec, {.gate = head_x.Reshape({tokens, heads * 128}),
                              .up = gate.Reshape({tokens, heads * 128}),
                              .h = head_y.Reshape({tokens, heads * 128})});
  });
  const Tensor taps = Make(kParam, {heads * 128, 4});
  const Tensor cu = Table({0, 1000, int32_t(tokens)}, {3});
  Time("short_conv_forward", 2 * head_bytes, 0, [&] {
    return ShortConvForward(kExec,
                            {.x = head_x.Reshape({tokens, heads * 128}),
                             .w = taps,
                             .cu_seqlens = cu,
                             .y = head_y.Reshape({tokens, heads * 128})});
  });
  const int64_t n = int64_t{1} << 27;
  const AdamWArgs adamw = {.p = Make(kParam, {n}),
                           .m = Make(kParam, {n}),
                           .v = Make(kParam, {n}),
                           .g = Make(kParam, {n}),
                           .value = Make(kAct, {n}),
                           .learning_rate = 1e-3};
  Time("adamw", double(n) * 30, 0, [&] { return AdamW(kExec, adamw); });
  const Tensor sum = Make(DType::kF64, {1});
  Time("sum_of_squares", double(n) * 4, 0,
       [&] { return SumOfSquares(kExec, {.x = adamw.g, .sum = sum}); });
}

void Moe() {
  const int64_t tokens = 8192, experts = 256, k = 8, hidden = 2304;
  const Tensor logits = Make(kParam, {tokens, experts});
  const Tensor ids = Make(DType::kI32, {tokens, k});
  const Tensor weights = Make(kParam, {tokens, k});
  const Tensor counts = Make(DType::kI64, {experts});
  Time("router_forward", double(tokens) * double(experts) * 4, 0, [&] {
    return RouterForward(
        kExec,
        {.logits = logits, .ids = ids, .weights = weights, .counts = counts});
  });
  const Tensor routed = Make(DType::kI32, {tokens, k});
  const Tensor sum = Make(kParam, {tokens});
  const Tensor overflow = Make(DType::kI64, {kNumOverflowCounts});
  const Tensor memory =
      Make(DType::kU8, {RouterOverflowWorkspaceBytes(tokens, k, experts)});
  for (const auto& [name, policy] :
       {std::pair("router_overflow_drop", OverflowPolicy::kDropByWeight),
        std::pair("router_overflow_remap", OverflowPolicy::kRemap)}) {
    Time(name, double(tokens * k) * 12, 0, [&, policy = policy] {
      return RouterOverflow(kExec, {.logits = logits,
                                    .policy = policy,
                                    .capacity = tokens * k / experts,
                                    .ids = ids,
                                    .weights = weights,
                                    .routed_ids = routed,
                                    .weight_sum = sum,
                                    .counts = overflow,
                                    .workspace = memory});
    });
  }
  const Tensor offsets = Make(DType::kI32, {experts + 1});
  const Tensor source = Make(DType::kI32, {tokens * k});
  const Tensor row_of = Make(DType::kI32, {tokens, k});
  Time("moe_permute", double(tokens * k) * 20, 0, [&] {
    return MoePermute(kExec, {.ids = ids,
                              .offsets = offsets,
                              .row_source = source,
                              .row_of = row_of});
  });
  const Tensor x = Make(kAct, {tokens, hidden});
  const Tensor rows = Make(kAct, {tokens * k, hidden});
  const double bytes = double(tokens) * double(hidden) * 2 * double(k + 1);
  Time("moe_gather", bytes, 0, [&] {
    return MoeGather(kExec,
                     {.x = x, .row_source = source, .top_k = k, .rows = rows});
  });
  Time("moe_combine", bytes, 0, [&] {
    return MoeCombine(
        kExec, {.rows = rows, .row_of = row_of, .weights = weights, .y = x});
  });
  const int64_t vocabulary = 163840;
  const Tensor z = Make(kParam, {1024, vocabulary});
  const Tensor targets = Table(std::vector<int32_t>(1024, 77), {1024});
  const Tensor loss = Make(DType::kF64, {1});
  Time("cross_entropy_rows", 1024.0 * double(vocabulary) * 12, 0, [&] {
    return CrossEntropy(
        kExec,
        {.logits = z, .targets = targets, .loss_sum = loss, .gradient = true});
  });
}

}  // namespace
}  // namespace cadre

int main() {
  cadre::Attention("attention_8k_32x192_128_forward",
                   "attention_8k_32x192_128_backward", 8192, 32, 32, 192, 128);
  cadre::Attention("attention_8k_32_8x128_forward",
                   "attention_8k_32_8x128_backward", 8192, 32, 8, 128, 128);
  cadre::Attention("attention_8k_16_2x256_forward",
                   "attention_8k_16_2x256_backward", 8192, 16, 2, 256, 256);
  cadre::Rows();
  cadre::Moe();
  return 0;
}
