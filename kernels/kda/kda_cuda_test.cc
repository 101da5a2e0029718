// The CUDA kernels of KDA against the recurrence in float64.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/common/exec.h"
#include "kernels/common/test_tensor.h"
#include "kernels/common/thread_pool.h"
#include "kernels/kda/kda.h"
#include "kernels/linear_attention/device_tensor.cuh"
#include "kernels/linear_attention/gate_terms.h"

namespace cadre {
namespace {

using testing::DeviceTensor;
using testing::RelativeError;
using testing::TestTensor;

struct Case {
  std::string name;
  std::vector<int32_t> cu;
  int64_t heads = 2;
  int64_t padding = 0;
  std::optional<double> lower_bound;
  // Of z, a_log, beta and v.
  double z_mean = -3, z_dev = 1, a_log = 0, beta_mean = 0, v_dev = 1;
  bool states = true;
  int64_t key_dim = 128, value_dim = 128;
};

std::vector<int32_t> One(int32_t tokens) { return {0, tokens}; }

class KdaCuda : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    const std::string why = testing::WhyNoDevice();
    if (!why.empty()) GTEST_SKIP() << why;
  }
};

// Inputs on both sides, and outputs of the device.
struct Problem {
  explicit Problem(const Case& c)
      : docs(static_cast<int64_t>(c.cu.size()) - 1),
        tokens(c.cu.back() + c.padding),
        heads(c.heads),
        key_dim(c.key_dim),
        value_dim(c.value_dim),
        states(c.states),
        lower_bound(c.lower_bound) {
    uint64_t seed = 1;
    const auto random = [&seed](std::vector<int64_t> dims, double dev,
                                double mean) {
      return TestTensor::Random(DType::kF64, std::move(dims), ++seed, dev,
                                mean);
    };
    const std::vector<int64_t> keys = Keys(), values = Values();
    const std::vector<int64_t> state = State();
    host.push_back(Unit(random(keys, 1, 0)));
    host.push_back(Unit(random(keys, 1, 0)));
    host.push_back(random(values, c.v_dev, 0));
    host.push_back(random(keys, c.z_dev, c.z_mean));
    host.push_back(random({tokens, heads}, 1, c.beta_mean));
    host.push_back(random({heads}, 0.2, c.a_log));
    host.push_back(random({heads * key_dim}, 0.1, 0));
    host.push_back(random(state, 0.1 * c.v_dev, 0));
    host.push_back(random(values, 1, 0));
    host.push_back(random(state, 0.1, 0));
    for (int i = 0; i < 10; ++i) {
      const bool bf16 = i < 4 || i == 8;
      const std::vector<int64_t> dims =
          i == 2 || i == 8 ? values
          : bf16           ? keys
          : i == 4         ? std::vector<int64_t>{tokens, heads}
          : i == 5         ? std::vector<int64_t>{heads}
          : i == 6         ? std::vector<int64_t>{heads * key_dim}
                           : state;
      device.push_back(
          DeviceTensor::Of(bf16 ? DType::kBF16 : DType::kF32, dims, host[i]));
    }
    // Padding rows are not read: NaNs there stay there.
    for (const int i : {0, 1, 2, 3, 8}) {
      const int64_t bytes = device[i].size() * 2;
      const int64_t kept = tokens == 0 ? 0 : bytes / tokens * c.cu.back();
      testing::CheckCuda(cudaMemset(static_cast<char*>(device[i].raw()) + kept,
                                    0xff, bytes - kept));
    }
    TestTensor table = TestTensor::Table(c.cu);
    host.push_back(table);
    device.push_back(DeviceTensor::Of(
        DType::kI32, {static_cast<int64_t>(c.cu.size())}, table));
  }

  // Rows to unit length.
  TestTensor Unit(TestTensor x) const {
    for (int64_t row = 0; row < x.size() / key_dim; ++row) {
      const int64_t first = row * key_dim, end = first + key_dim;
      double sum = 0;
      for (int64_t i = first; i < end; ++i) sum += x.Get(i) * x.Get(i);
      for (int64_t i = first; i < end; ++i)
        x.Set(i, x.Get(i) / std::sqrt(sum + 1e-6));
    }
    return x;
  }

  template <typename T>
  KdaInputs Inputs(std::vector<T>& from) const {
    return {.q = from[0].view(),
            .k = from[1].view(),
            .v = from[2].view(),
            .z = from[3].view(),
            .beta = from[4].view(),
            .a_log = from[5].view(),
            .dt_bias = from[6].view(),
            .cu_seqlens = from[10].view(),
            .lower_bound = lower_bound,
            .initial_state = states ? from[7].view() : Tensor()};
  }

  std::vector<int64_t> Keys() const { return {tokens, heads, key_dim}; }
  std::vector<int64_t> Values() const { return {tokens, heads, value_dim}; }
  std::vector<int64_t> State() const {
    return {docs, heads, key_dim, value_dim};
  }

  int64_t docs, tokens, heads, key_dim, value_dim;
  bool states;
  std::optional<double> lower_bound;
  std::vector<TestTensor> host;
  std::vector<DeviceTensor> device;
};

const char* const kNames[] = {"o",  "final_state", "dq",     "dk",       "dv",
                              "dz", "dbeta",       "da_log", "ddt_bias", "dS0"};
const double kBounds[] = {0.005, 0.005, 0.008, 0.008, 0.008,
                          0.02,  0.02,  0.02,  0.02,  0.008};

// Runs forward and backward, writing to out[0..9] in the order of kNames.
template <typename T>
absl::Status RunBoth(const Exec& exec, const Problem& problem,
                     std::vector<T>& inputs, std::vector<T>& out,
                     const Tensor& workspace) {
  const KdaInputs in = problem.Inputs(inputs);
  absl::Status status = KdaForward(
      exec, {.in = in,
             .o = out[0].view(),
             .final_state = problem.states ? out[1].view() : Tensor(),
             .workspace = workspace});
  if (!status.ok()) return status;
  return KdaBackward(
      exec, {.in = in,
             .d_o = inputs[8].view(),
             .d_final_state = problem.states ? inputs[9].view() : Tensor(),
             .dq = out[2].view(),
             .dk = out[3].view(),
             .dv = out[4].view(),
             .dz = out[5].view(),
             .dbeta = out[6].view(),
             .da_log = out[7].view(),
             .ddt_bias = out[8].view(),
             .d_initial_state = problem.states ? out[9].view() : Tensor(),
             .workspace = workspace});
}

// Dimensions of the outputs in the order of kNames.
std::vector<std::vector<int64_t>> OutputDims(const Problem& p) {
  return {p.Values(),
          p.State(),
          p.Keys(),
          p.Keys(),
          p.Values(),
          p.Keys(),
          {p.tokens, p.heads},
          {p.heads},
          {p.heads * p.key_dim},
          p.State()};
}

std::vector<DeviceTensor> DeviceOutputs(const Problem& p) {
  const std::vector<std::vector<int64_t>> dims = OutputDims(p);
  std::vector<DeviceTensor> out;
  for (int i = 0; i < 10; ++i) {
    const bool bf16 = i == 0 || (i >= 2 && i <= 5);
    out.emplace_back(bf16 ? DType::kBF16 : DType::kF32, dims[i]);
  }
  out[7].Zero();
  out[8].Zero();
  return out;
}

absl::Status RunOnDevice(Problem& p, std::vector<DeviceTensor>& out) {
  const Exec exec{.backend = Backend::kCuda};
  const KdaInputs in = p.Inputs(p.device);
  const DeviceTensor workspace(DType::kU8,
                               {std::max(KdaForwardWorkspaceBytes(exec, in),
                                         KdaBackwardWorkspaceBytes(exec, in))});
  const absl::Status status = RunBoth(exec, p, p.device, out, workspace.view());
  testing::CheckCuda(cudaDeviceSynchronize());
  return status;
}

TEST_P(KdaCuda, AgreesWithTheRecurrence) {
  Problem p(GetParam());
  std::vector<DeviceTensor> out = DeviceOutputs(p);
  ASSERT_TRUE(RunOnDevice(p, out).ok());

  std::vector<TestTensor> expected;
  for (const std::vector<int64_t>& dims : OutputDims(p))
    expected.push_back(TestTensor::Zeros(DType::kF64, dims));
  ThreadPool pool(8);
  const absl::Status status =
      RunBoth(Exec{.pool = &pool}, p, p.host, expected, {});
  ASSERT_TRUE(status.ok()) << status.message();

  const linear_attention::GateTerms terms = linear_attention::NormsOfGateTerms(
      p.host[3], expected[5], p.host[6], p.lower_bound.has_value());
  std::string line = GetParam().name;
  for (int i = 0; i < 10; ++i) {
    if (!p.states && (i == 1 || i == 9)) continue;
    double error = RelativeError(out[i].ToHost(), expected[i]);
    if (i == 7)
      error = linear_attention::BesideTerms(error, expected[i], terms.a_log);
    if (i == 8)
      error = linear_attention::BesideTerms(error, expected[i], terms.dt_bias);
    char text[64];
    std::snprintf(text, sizeof(text), " %s %.5f", kNames[i], error);
    line += text;
    EXPECT_LE(error, kBounds[i]) << kNames[i];
  }
  RecordProperty("errors", line);
  std::printf("[  rel err ] %s\n", line.c_str());
}

TEST_P(KdaCuda, RepeatsBitwise) {
  Problem p(GetParam());
  std::vector<DeviceTensor> first = DeviceOutputs(p), second = DeviceOutputs(p);
  ASSERT_TRUE(RunOnDevice(p, first).ok());
  ASSERT_TRUE(RunOnDevice(p, second).ok());
  for (int i = 0; i < 10; ++i)
    EXPECT_EQ(first[i].Bytes(), second[i].Bytes()) << kNames[i];
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (int t : {1, 2, 15, 16, 17, 63, 64, 65, 127, 129, 2047, 4097})
    cases.push_back({.name = "slow" + std::to_string(t), .cu = One(t)});
  const std::vector<int32_t> ragged = {0,   1,   1,   5,   69,  70,
                                       134, 261, 262, 266, 900, 1541};
  cases.push_back({.name = "ragged", .cu = ragged, .heads = 3, .padding = 37});
  cases.push_back({.name = "bounded",
                   .cu = ragged,
                   .padding = 5,
                   .lower_bound = -5.0,
                   .z_mean = 0});
  cases.push_back({.name = "bounded_slow",
                   .cu = One(1025),
                   .lower_bound = -5.0,
                   .z_mean = -4});
  cases.push_back({.name = "bounded_full",
                   .cu = One(1025),
                   .lower_bound = -5.0,
                   .z_mean = 8});
  cases.push_back({.name = "fast", .cu = One(1025), .z_mean = 3});
  cases.push_back(
      {.name = "extreme", .cu = ragged, .z_mean = 2, .z_dev = 4, .a_log = 2.7});
  cases.push_back(
      {.name = "very_slow", .cu = One(4097), .z_mean = -7, .z_dev = 0.5});
  cases.push_back({.name = "beta_one", .cu = One(777), .beta_mean = 6});
  cases.push_back({.name = "beta_zero", .cu = One(777), .beta_mean = -6});
  cases.push_back({.name = "massive", .cu = One(777), .v_dev = 600});
  cases.push_back({.name = "stateless", .cu = ragged, .states = false});
  // Documents in segments (kernels/linear_attention/segments.cuh).
  const std::vector<int32_t> parted = {0, 3000, 3000, 3010, 4034, 8200};
  cases.push_back({.name = "parted", .cu = parted, .heads = 3, .padding = 40});
  cases.push_back({.name = "parted_one_head", .cu = One(8193), .heads = 1});
  cases.push_back({.name = "parted_eight_heads", .cu = parted, .heads = 8});
  cases.push_back({.name = "parted_very_slow",
                   .cu = One(8000),
                   .heads = 1,
                   .z_mean = -7,
                   .z_dev = 0.5});
  cases.push_back({.name = "parted_extreme",
                   .cu = parted,
                   .heads = 1,
                   .z_mean = 2,
                   .z_dev = 4,
                   .a_log = 2.7});
  cases.push_back({.name = "parted_stateless", .cu = parted, .states = false});
  cases.push_back({.name = "many_heads", .cu = One(300), .heads = 40});
  return cases;
}

// Widths that take the same kernels by copies with zero columns.
std::vector<Case> Narrow() {
  const std::vector<int32_t> ragged = {0, 1, 1, 5, 69, 70, 134, 261, 262, 541};
  std::vector<Case> cases;
  for (const auto& [keys, values] :
       {std::pair{64, 64}, std::pair{64, 128}, std::pair{128, 64}}) {
    const auto add = [&](Case c) {
      c.name += "_" + std::to_string(keys) + "_" + std::to_string(values);
      c.key_dim = keys;
      c.value_dim = values;
      cases.push_back(std::move(c));
    };
    for (int t : {1, 17, 64, 1025})
      add({.name = "slow" + std::to_string(t), .cu = One(t)});
    add({.name = "ragged", .cu = ragged, .heads = 3, .padding = 37});
    add({.name = "bounded",
         .cu = ragged,
         .padding = 5,
         .lower_bound = -5.0,
         .z_mean = 0});
    add({.name = "extreme",
         .cu = ragged,
         .z_mean = 2,
         .z_dev = 4,
         .a_log = 2.7});
    add({.name = "stateless", .cu = ragged, .states = false});
    add({.name = "parted", .cu = {0, 2000, 4100}, .heads = 3});
    add({.name = "many_heads", .cu = One(130), .heads = 40});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Gates, KdaCuda, ::testing::ValuesIn(Cases()),
                         [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(Widths, KdaCuda, ::testing::ValuesIn(Narrow()),
                         [](const auto& info) { return info.param.name; });

TEST(KdaCudaLimits, RefusesAShortWorkspace) {
  const std::string why = testing::WhyNoDevice();
  if (!why.empty()) GTEST_SKIP() << why;
  for (const int64_t dim : {64, 128}) {
    Problem p({.cu = One(64), .key_dim = dim, .value_dim = dim});
    std::vector<DeviceTensor> out = DeviceOutputs(p);
    const DeviceTensor workspace(DType::kU8, {1024});
    const absl::Status status = RunBoth(Exec{.backend = Backend::kCuda}, p,
                                        p.device, out, workspace.view());
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << dim;
  }
}

}  // namespace
}  // namespace cadre
