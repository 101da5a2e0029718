#include <algorithm>

#include "base/status_macros.h"
#include "kernels/gated_rmsnorm/gated_rmsnorm.h"
#include "kernels/kda/kda_unfused.cuh"
#include "kernels/kda/kda_unfused.h"
#include "kernels/l2norm/l2norm.h"
#include "kernels/linear_attention/run.cuh"

namespace cadre {
namespace {

using linear_attention::kDim;
using linear_attention::kTile;
using linear_attention::Padding;
using linear_attention::Pointer;
using linear_attention::Problem;
using linear_attention::WorkShape;

constexpr char kOp[] = "unfused kda";

WorkShape ShapeOf(int64_t tokens, int64_t heads) {
  return {tokens, heads, heads, 1, true};
}

// Bytes of the chain's own intermediates: three convolved and three activated
// tensors, o, G, beta and the matrices to be inverted.
struct Extra {
  Extra(int64_t tokens, int64_t heads)
      : wide(tokens * heads * kDim),
        scalars((tokens * heads + 63) / 64 * 64),
        squares(tokens * heads * 64) {}
  int64_t bytes() const {
    return 7 * wide * 2 + (wide + scalars + squares) * 4;
  }
  int64_t wide, scalars, squares;
};

}  // namespace

int64_t UnfusedKdaBytes(int64_t tokens, int64_t heads) {
  return linear_attention::LayOutWork(ShapeOf(tokens, heads)).bytes +
         Extra(tokens, heads).bytes();
}

absl::Status UnfusedKdaForward(const Exec& exec, const UnfusedKdaArgs& args,
                               int* launches) {
  namespace la = linear_attention;
  const int64_t tokens = args.z.dim(0), heads = args.z.dim(1);
  const WorkShape shape = ShapeOf(tokens, heads);
  const Extra extra(tokens, heads);
  if (tokens == 0 || tokens % la::kChunk != 0 || heads > la::HeadGroup(shape)) {
    return absl::InvalidArgumentError(
        absl::StrCat(kOp, ": ", tokens, " tokens and ", heads,
                     " heads; it takes whole chunks of 64 tokens and at most ",
                     la::HeadGroup(shape), " heads"));
  }
  int count = 0;
  const auto start = [&](const LaunchShape& grid, auto kernel, auto&&... rest) {
    ++count;
    return Launch(kOp, exec, grid, kernel, rest...);
  };
  char* at = static_cast<char*>(args.workspace.raw());
  const auto take = [&at](int64_t bytes) {
    char* from = at;
    at += bytes;
    return from;
  };
  Problem p{};
  CADRE_RETURN_IF_ERROR(
      la::UseWorkspace(kOp, args.workspace, shape, p, nullptr));
  la::KeepWhole(p, shape);
  take(la::LayOutWork(shape).bytes);
  uint16_t* conv[3];
  uint16_t* act[3];
  for (int i = 0; i < 3; ++i) {
    conv[i] = reinterpret_cast<uint16_t*>(take(extra.wide * 2));
    act[i] = reinterpret_cast<uint16_t*>(take(extra.wide * 2));
  }
  uint16_t* o = reinterpret_cast<uint16_t*>(take(extra.wide * 2));
  float* g = reinterpret_cast<float*>(take(extra.wide * 4));
  float* beta = reinterpret_cast<float*>(take(extra.scalars * 4));
  float* lower = reinterpret_cast<float*>(take(extra.squares * 4));

  p.q = act[0];
  p.k = act[1];
  p.v = act[2];
  p.cu_seqlens = Pointer<int32_t>(args.cu_seqlens);
  p.tokens = static_cast<int>(tokens);
  p.docs = 1;
  p.heads = p.key_heads = p.num_heads = static_cast<int>(heads);
  const unsigned tiles = static_cast<unsigned>(tokens / la::kChunk * heads);
  const auto blocks = [](int64_t items) {
    return static_cast<unsigned>((items + 255) / 256);
  };
  const unsigned quads = blocks(extra.wide / 4);
  const int channels = static_cast<int>(heads * kDim);

  ++count;
  CADRE_RETURN_IF_ERROR(la::RunTables(kOp, exec, p, shape, Padding{}));
  const Tensor* x[3] = {&args.q, &args.k, &args.v};
  const Tensor* w[3] = {&args.q_w, &args.k_w, &args.v_w};
  for (int i = 0; i < 3; ++i) {
    CADRE_RETURN_IF_ERROR(start({quads, 256}, la::ConvKernel,
                                Pointer<uint16_t>(*x[i]), Pointer<float>(*w[i]),
                                tokens, channels, conv[i]));
    CADRE_RETURN_IF_ERROR(
        start({quads, 256}, la::SiluKernel, conv[i], extra.wide, act[i]));
    if (i == 2) continue;
    const Tensor rows(act[i], DType::kBF16, {tokens, heads, kDim});
    ++count;
    CADRE_RETURN_IF_ERROR(L2NormForward(exec, {.x = rows, .y = rows}));
  }
  CADRE_RETURN_IF_ERROR(
      start({quads, 256}, la::GateKernel, Pointer<uint16_t>(args.z),
            Pointer<float>(args.a_log), Pointer<float>(args.dt_bias),
            extra.wide, static_cast<int>(heads), g));
  CADRE_RETURN_IF_ERROR(start({blocks(tokens * heads), 256}, la::SigmoidKernel,
                              Pointer<float>(args.beta), tokens * heads, beta));
  CADRE_RETURN_IF_ERROR(
      start({tiles, kDim}, la::CumulateKernel, g, static_cast<int>(heads)));
  CADRE_RETURN_IF_ERROR(
      start({tiles, la::kPrepareThreads, sizeof(la::PrepareSmem)},
            la::ScoresKernel, p, g, beta, lower));
  CADRE_RETURN_IF_ERROR(start({tiles, 256}, la::InvertKernel, p, beta, lower));
  CADRE_RETURN_IF_ERROR(start({tiles, 256}, la::ScaleKernel, p, g));
  for (uint16_t* operand : {p.u, p.w}) {
    CADRE_RETURN_IF_ERROR(start({tiles, 128, sizeof(la::ProductSmem)},
                                la::MultiplyKernel, p.inverse, operand));
  }
  CADRE_RETURN_IF_ERROR(start({static_cast<unsigned>(heads) * la::kScanBlocks,
                               la::kScanThreads, sizeof(la::ScanSmem)},
                              la::StatesKernel, p));
  CADRE_RETURN_IF_ERROR(
      start({tiles, 128, sizeof(la::OutputSmem)}, la::OutputKernel, p, o));
  ++count;
  CADRE_RETURN_IF_ERROR(GatedRmsNormForward(
      exec, {.x = Tensor(o, DType::kBF16, {tokens, heads, kDim}),
             .gate = args.gate,
             .w = args.norm_w,
             .y = args.y}));
  if (launches != nullptr) *launches = count;
  return absl::OkStatus();
}

}  // namespace cadre
