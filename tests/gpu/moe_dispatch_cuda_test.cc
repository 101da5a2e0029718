// The tables of dispatch on a GPU against the CPU's, over sizes of one block
// and of many.

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "kernels/moe_dispatch/moe_dispatch.h"
#include "kernels/moe_permute/moe_permute.h"
#include "tests/gpu/device_tensor.h"
#include "worker/device/device.h"

namespace cadre {
namespace {

using testing::Must;

struct Case {
  int64_t tokens, k, experts, ranks, spares;
};

// All that one chunk sends and, taken as received by one rank that has all
// slots, what comes of it.
struct Results {
  std::vector<int32_t> destinations, offsets, pairs, slots, places;
  std::vector<float> weights, back;
};

Results RunOn(const Exec& exec, const Case& c) {
  const int64_t T = c.tokens, k = c.k, E = c.experts, P = c.ranks;
  const int64_t spr = (E + c.spares + P - 1) / P, fan = std::min(k, P);
  std::mt19937 random(5);
  std::vector<int32_t> ids, first = {0}, copies;
  for (int64_t e = 0; e < E; ++e) {
    copies.push_back(static_cast<int32_t>(e));
    if (e < c.spares) copies.push_back(static_cast<int32_t>(E + e));
    first.push_back(static_cast<int32_t>(copies.size()));
  }
  for (int64_t t = 0; t < T; ++t) {
    std::vector<int32_t> all(E);
    for (int64_t e = 0; e < E; ++e) all[e] = static_cast<int32_t>(e);
    for (int64_t i = 0; i < k; ++i) {
      std::swap(all[i], all[i + random() % (E - i)]);
      ids.push_back(t % 11 == 3 || random() % 9 == 0 ? -1 : all[i]);
    }
  }
  std::vector<float> weights;
  for (int64_t i = 0; i < T * k; ++i) {
    weights.push_back(static_cast<float>(random() % 1000));
  }
  std::vector<Buffer> buffers;
  const auto make = [&](DType dtype, std::vector<int64_t> dims) {
    int64_t n = 1;
    for (const int64_t d : dims) n *= d;
    buffers.push_back(Must(Buffer::Create(exec, n * 4, "test")));
    return buffers.back().View(dtype, dims);
  };
  const auto ints = [&](std::vector<int64_t> dims) {
    return make(DType::kI32, std::move(dims));
  };
  const auto put = [&](const auto& values, const Tensor& to) {
    Must(CopyToDevice(exec, values.data(), to));
    return to;
  };
  const auto read = [&](const Tensor& from, auto* to) {
    to->resize(from.num_elements());
    Must(CopyToHost(exec, from, to->data()));
  };
  const Tensor id_table = put(ids, ints({T, k}));
  const Tensor offsets = ints({E + 1}), row_of = ints({T, k});
  Must(MoePermute(exec, {.ids = id_table,
                         .offsets = offsets,
                         .row_source = ints({T * k}),
                         .row_of = row_of}));
  const Tensor slots = ints({T, k}), ranks = ints({T, k});
  const Tensor choices = ints({T, k}), destinations = ints({T, fan});
  Must(MoeSlots(
      exec, {.ids = id_table,
             .first_copy = put(first, ints({E + 1})),
             .copies = put(copies, ints({static_cast<int64_t>(copies.size())})),
             .offsets = offsets,
             .row_of = row_of,
             .ep_rank = 1,
             .slots_per_rank = spr,
             .slots = slots,
             .ranks = ranks,
             .choices = choices,
             .destinations = destinations}));
  Results out;
  read(destinations, &out.destinations);
  // All rows, then all pairs, in the order of ranks.
  const Tensor begins = ints({P + 1}), source = ints({T * k});
  Must(MoePermute(exec, {.ids = ranks,
                         .offsets = begins,
                         .row_source = source,
                         .row_of = ints({T, k})}));
  read(begins, &out.offsets);
  int64_t rows = 0;
  for (const int32_t rank : out.destinations) rows += rank >= 0;
  const int64_t n = out.offsets.back(), width = std::min(k, spr);
  const Tensor weight_table = put(weights, make(DType::kF32, {T, k}));
  const Tensor pairs = ints({n, 2});
  Must(MoePackPairs(exec, {.pair_source = source,
                           .slots = slots,
                           .choices = choices,
                           .weights = weight_table,
                           .pairs = pairs}));
  read(pairs, &out.pairs);
  const Tensor got = ints({rows, width}), places = ints({n});
  const Tensor got_weights = make(DType::kF32, {rows, width});
  Must(MoeUnpackPairs(exec, {.pairs = pairs,
                             .slots_per_rank = spr,
                             .slots = got,
                             .weights = got_weights,
                             .places = places,
                             .workspace = ints({MoeUnpackWorkspace(n)})}));
  read(got, &out.slots);
  read(places, &out.places);
  read(got_weights, &out.weights);
  const Tensor values = make(DType::kF32, {n, 1});
  Must(MoeGather(exec, {.x = got_weights.Reshape({rows * width, 1}),
                        .row_source = places,
                        .rows = values}));
  const Tensor back = make(DType::kF32, {T, k});
  Must(MoeScatterPairs(exec, {.values = values,
                              .pair_source = source,
                              .choices = choices,
                              .weights = back}));
  read(back, &out.back);
  // Every pair's weight is back where it came from.
  for (int64_t i = 0; i < T * k; ++i) {
    EXPECT_EQ(out.back[i], ids[i] < 0 ? 0 : weights[i]) << i;
  }
  return out;
}

TEST(MoeDispatchCudaTest, TablesAreThoseOfTheCpu) {
  const auto device = OpenCudaDevice(0);
  if (!device.ok()) {
    GTEST_SKIP() << "no GPU: " << std::string(device.status().message());
  }
  for (const Case& c :
       {Case{0, 2, 4, 2, 0}, Case{1, 1, 4, 2, 0}, Case{300, 4, 16, 4, 3},
        Case{2000, 8, 64, 2, 0}, Case{3000, 16, 112, 8, 16}}) {
    const Results cpu = RunOn(Exec(), c);
    const Results gpu = RunOn((*device)->exec(), c);
    EXPECT_EQ(cpu.destinations, gpu.destinations);
    EXPECT_EQ(cpu.offsets, gpu.offsets);
    EXPECT_EQ(cpu.pairs, gpu.pairs);
    EXPECT_EQ(cpu.slots, gpu.slots);
    EXPECT_EQ(cpu.places, gpu.places);
    EXPECT_EQ(cpu.weights, gpu.weights);
  }
}

}  // namespace
}  // namespace cadre
