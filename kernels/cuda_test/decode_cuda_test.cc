// Choosing keys and decoding weights on the device against the CPU.

#include <cstring>

#include "kernels/cuda_test/twin.cuh"
#include "kernels/fp8_block/fp8_block.h"
#include "kernels/mxfp4/mxfp4.h"
#include "kernels/sparse_index/sparse_index.h"

namespace cadre {
namespace {

using testing::CudaOk;
using testing::DeviceTest;
using testing::Twin;
using testing::Twins;
using testing::View;

class DecodeCuda : public DeviceTest {};
CADRE_FOR_EACH_ACTIVATION(DecodeCuda);

TEST_P(DecodeCuda, SparseIndex) {
  struct Case {
    int64_t heads, dim, topk, pool;
  };
  for (const Case& c : {Case{4, 32, 8, 0}, Case{3, 20, 64, 0},
                        Case{8, 128, 16, 4}, Case{2, 130, 40, 0}}) {
    Twins twins(GetParam());
    const int64_t tokens = 420;
    Twin& q = twins.Act({tokens, c.heads, c.dim});
    Twin& k = twins.Act({tokens, c.dim});
    Twin& weight = twins.Param({tokens, c.heads});
    Twin& cu = twins.Table({0, 1, 14, 14, 411});
    Twin& gate = twins.Act({tokens, c.dim});
    Twin& ape = twins.Act({c.pool, c.dim});
    Twin& selected =
        twins.Out(DType::kI32, {tokens, IndexWidth(c.topk, c.pool)});
    Twin& valid = twins.Out(DType::kI32, {tokens});
    twins.Check(
        [&](const Exec& exec, const View& view) {
          return SparseIndex(exec,
                             {.q = view(q),
                              .k = view(k),
                              .head_weight = view(weight),
                              .cu_seqlens = view(cu),
                              .topk = c.topk,
                              .kpool = c.pool,
                              .pool_gate = c.pool > 0 ? view(gate) : Tensor(),
                              .pool_ape = c.pool > 0 ? view(ape) : Tensor(),
                              .selected = view(selected),
                              .num_valid = view(valid)});
        },
        {&selected, &valid});
  }
}

TEST_P(DecodeCuda, SparseIndexKeepsTheFirstOfEqualKeys) {
  Twins twins(GetParam());
  Twin& q = twins.Zeros(GetParam(), {300, 2, 16});
  Twin& k = twins.Act({300, 16});
  Twin& weight = twins.Param({300, 2});
  Twin& cu = twins.Table({0, 300});
  Twin& selected = twins.Out(DType::kI32, {300, 24});
  Twin& valid = twins.Out(DType::kI32, {300});
  twins.Check(
      [&](const Exec& exec, const View& view) {
        return SparseIndex(exec, {.q = view(q),
                                  .k = view(k),
                                  .head_weight = view(weight),
                                  .cu_seqlens = view(cu),
                                  .topk = 24,
                                  .selected = view(selected),
                                  .num_valid = view(valid)});
      },
      {&selected, &valid});
}

// Bytes on both sides.
class Bytes {
 public:
  explicit Bytes(std::vector<unsigned char> values) : host_(std::move(values)) {
    CudaOk(cudaMalloc(&device_, host_.size() + 1));
    CudaOk(cudaMemcpy(device_, host_.data(), host_.size(),
                      cudaMemcpyHostToDevice));
  }
  ~Bytes() { cudaFree(device_); }
  void* At(const Exec& exec) {
    return exec.backend == Backend::kCpu ? host_.data() : device_;
  }

 private:
  std::vector<unsigned char> host_;
  void* device_ = nullptr;
};

TEST_P(DecodeCuda, Mxfp4IsExact) {
  std::vector<unsigned char> packed(64 * 16), scale(64);
  for (size_t i = 0; i < packed.size(); ++i)
    packed[i] = static_cast<unsigned char>(i * 37);
  // Exponents that bf16 and float32 hold without becoming subnormal.
  for (size_t i = 0; i < scale.size(); ++i)
    scale[i] = static_cast<unsigned char>(60 + i * 2);
  Bytes codes(packed), scales(scale);
  Twins twins(GetParam());
  Twin& out = twins.ActOut({16, 128});
  twins.Check(
      [&](const Exec& exec, const View& view) {
        return Mxfp4Decode(
            exec, {.packed = Tensor(codes.At(exec), DType::kU8, {16, 64}),
                   .scale = Tensor(scales.At(exec), DType::kU8, {16, 4}),
                   .out = view(out)});
      },
      {&out}, {.f32 = 0, .bf16 = 0});
}

TEST_P(DecodeCuda, Fp8Block) {
  std::vector<unsigned char> codes(150 * 200);
  for (size_t i = 0; i < codes.size(); ++i) {
    codes[i] = static_cast<unsigned char>(i * 151 % 251);
    if ((codes[i] & 0x7f) == 0x7f) codes[i] = 1;  // no NaN
  }
  Bytes weight(codes);
  Twins twins(GetParam());
  Twin& scale = twins.Zeros(DType::kF32, {2, 2});
  const std::vector<float> scales = {0.5f, 0.013f, 3.7f, 1e-3f};
  CudaOk(cudaMemcpy(scale.device().raw(), scales.data(), 16,
                    cudaMemcpyHostToDevice));
  Twin& out = twins.ActOut({150, 200});
  twins.Check(
      [&](const Exec& exec, const View& view) {
        std::vector<float> copy = scales;
        return Fp8BlockDecode(
            exec, {.weight = Tensor(weight.At(exec), DType::kU8, {150, 200}),
                   .scale_inv = exec.backend == Backend::kCpu
                                    ? Tensor(copy.data(), DType::kF32, {2, 2})
                                    : scale.device(),
                   .out = view(out)});
      },
      {&out}, {.f32 = 1e-7, .bf16 = 3e-3});
}

}  // namespace
}  // namespace cadre
