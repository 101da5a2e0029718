#include "kernels/elementwise/elementwise.h"

#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/common/check.h"

namespace cadre {

CADRE_CUDA_IMPL absl::Status AddInPlaceCuda(const Exec&, const Tensor&,
                                            const Tensor&);
CADRE_CUDA_IMPL absl::Status CopyColumnsCuda(const Exec&,
                                             const CopyColumnsArgs&);
CADRE_CUDA_IMPL absl::Status SigmoidGateForwardCuda(const Exec&, const Tensor&,
                                                    const Tensor&,
                                                    const Tensor&);
CADRE_CUDA_IMPL absl::Status SigmoidGateBackwardCuda(
    const Exec&, const SigmoidGateBackwardArgs&);
CADRE_CUDA_IMPL absl::Status DropoutCuda(const Exec&, const DropoutArgs&);

namespace {

constexpr char kOp[] = "elementwise";
constexpr int64_t kGrain = 1 << 14;

absl::Status Mismatch(absl::string_view what, const Tensor& a,
                      const Tensor& b) {
  return absl::InvalidArgumentError(
      absl::StrCat(kOp, ": ", what, ": ", a.DebugString(), " does not fit ",
                   b.DebugString()));
}

absl::Status CheckSame(absl::string_view what, const Tensor& a,
                       const Tensor& b) {
  if (!a.present() || !b.present() || a.dtype() != b.dtype() ||
      a.num_elements() != b.num_elements()) {
    return Mismatch(what, a, b);
  }
  return absl::OkStatus();
}

absl::Status CheckGate(const Tensor& x, const Tensor& gate) {
  const int64_t n = x.num_elements(), g = gate.num_elements();
  if (!gate.present() || gate.dtype() != x.dtype() ||
      (g == 0 ? n != 0 : n % g != 0)) {
    return Mismatch("gate", gate, x);
  }
  return absl::OkStatus();
}

template <typename T>
T Sigmoid(T x) {
  return 1 / (1 + std::exp(-x));
}

}  // namespace

absl::Status AddInPlace(const Exec& exec, const Tensor& x, const Tensor& y) {
  CADRE_RETURN_IF_ERROR(CheckSame("add", x, y));
  if (exec.backend == Backend::kCuda) {
    return AddInPlaceCuda ? AddInPlaceCuda(exec, x, y) : NoCudaError(kOp);
  }
  CADRE_RETURN_IF_ERROR(CheckActivation(exec, kOp, "x", x, 0));
  return DispatchCpu(x.dtype(), [&](auto zero) {
    using Scalar = decltype(zero);
    const Scalar* from = x.data<Scalar>();
    Scalar* to = y.data<Scalar>();
    ParallelFor(exec, x.num_elements(), kGrain, [&](int64_t b, int64_t e) {
      for (int64_t i = b; i < e; ++i) to[i] += from[i];
    });
    return absl::OkStatus();
  });
}

absl::Status CopyColumns(const Exec& exec, const CopyColumnsArgs& args) {
  const int64_t rows = args.rows;
  if (args.src.dtype() != args.dst.dtype() || rows < 0 || args.width < 0 ||
      (rows > 0 && (args.src.num_elements() % rows != 0 ||
                    args.dst.num_elements() % rows != 0))) {
    return Mismatch("copy", args.src, args.dst);
  }
  if (rows == 0) return absl::OkStatus();
  const int64_t src_width = args.src.num_elements() / rows;
  const int64_t dst_width = args.dst.num_elements() / rows;
  if (args.src_column < 0 || args.src_column + args.width > src_width ||
      args.dst_column < 0 || args.dst_column + args.width > dst_width) {
    return absl::InvalidArgumentError(absl::StrCat(
        kOp, ": ", args.width, " columns from ", args.src_column, " of ",
        src_width, " to ", args.dst_column, " of ", dst_width));
  }
  if (exec.backend == Backend::kCuda) {
    return CopyColumnsCuda ? CopyColumnsCuda(exec, args) : NoCudaError(kOp);
  }
  CADRE_RETURN_IF_ERROR(CheckActivation(exec, kOp, "x", args.src, 0));
  return DispatchCpu(args.src.dtype(), [&](auto zero) {
    using Scalar = decltype(zero);
    const Scalar* src = args.src.data<Scalar>() + args.src_column;
    Scalar* dst = args.dst.data<Scalar>() + args.dst_column;
    const int64_t grain = 1 + kGrain / (args.width + 1);
    ParallelFor(exec, rows, grain, [&](int64_t b, int64_t e) {
      for (int64_t i = b; i < e; ++i) {
        const Scalar* from = src + i * src_width;
        Scalar* to = dst + i * dst_width;
        if (args.accumulate) {
          for (int64_t j = 0; j < args.width; ++j) to[j] += from[j];
        } else {
          std::memcpy(to, from, args.width * sizeof(Scalar));
        }
      }
    });
    return absl::OkStatus();
  });
}

absl::Status SigmoidGateForward(const Exec& exec, const Tensor& x,
                                const Tensor& gate, const Tensor& y) {
  CADRE_RETURN_IF_ERROR(CheckSame("gate output", x, y));
  CADRE_RETURN_IF_ERROR(CheckGate(x, gate));
  if (exec.backend == Backend::kCuda) {
    return SigmoidGateForwardCuda ? SigmoidGateForwardCuda(exec, x, gate, y)
                                  : NoCudaError(kOp);
  }
  CADRE_RETURN_IF_ERROR(CheckActivation(exec, kOp, "x", x, 0));
  const int64_t rows = gate.num_elements();
  if (rows == 0) return absl::OkStatus();
  const int64_t width = x.num_elements() / rows;
  return DispatchCpu(x.dtype(), [&](auto zero) {
    using Scalar = decltype(zero);
    const Scalar *from = x.data<Scalar>(), *g = gate.data<Scalar>();
    Scalar* to = y.data<Scalar>();
    ParallelFor(exec, rows, 1 + kGrain / width, [&](int64_t b, int64_t e) {
      for (int64_t i = b; i < e; ++i) {
        const Scalar s = Sigmoid(g[i]);
        for (int64_t j = i * width; j < (i + 1) * width; ++j) {
          to[j] = from[j] * s;
        }
      }
    });
    return absl::OkStatus();
  });
}

absl::Status SigmoidGateBackward(const Exec& exec,
                                 const SigmoidGateBackwardArgs& args) {
  CADRE_RETURN_IF_ERROR(CheckSame("gate dy", args.dy, args.x));
  CADRE_RETURN_IF_ERROR(CheckSame("gate dx", args.dx, args.x));
  CADRE_RETURN_IF_ERROR(CheckSame("dgate", args.dgate, args.gate));
  CADRE_RETURN_IF_ERROR(CheckGate(args.x, args.gate));
  if (exec.backend == Backend::kCuda) {
    return SigmoidGateBackwardCuda ? SigmoidGateBackwardCuda(exec, args)
                                   : NoCudaError(kOp);
  }
  CADRE_RETURN_IF_ERROR(CheckActivation(exec, kOp, "x", args.x, 0));
  const int64_t rows = args.gate.num_elements();
  if (rows == 0) return absl::OkStatus();
  const int64_t width = args.x.num_elements() / rows;
  return DispatchCpu(args.x.dtype(), [&](auto zero) {
    using Scalar = decltype(zero);
    const Scalar *x = args.x.data<Scalar>(), *g = args.gate.data<Scalar>();
    const Scalar* dy = args.dy.data<Scalar>();
    Scalar *dx = args.dx.data<Scalar>(), *dg = args.dgate.data<Scalar>();
    ParallelFor(exec, rows, 1 + kGrain / width, [&](int64_t b, int64_t e) {
      for (int64_t i = b; i < e; ++i) {
        const Scalar s = Sigmoid(g[i]);
        Scalar sum = 0;
        for (int64_t j = i * width; j < (i + 1) * width; ++j) {
          sum += dy[j] * x[j];
          dx[j] = dy[j] * s;
        }
        dg[i] = sum * s * (1 - s);
      }
    });
    return absl::OkStatus();
  });
}

absl::Status Dropout(const Exec& exec, const DropoutArgs& args) {
  CADRE_RETURN_IF_ERROR(CheckSame("dropout", args.x, args.y));
  if (!(args.probability >= 0 && args.probability < 1)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "dropout: probability ", args.probability, " is outside [0, 1)"));
  }
  if (exec.backend == Backend::kCuda) {
    return DropoutCuda ? DropoutCuda(exec, args) : NoCudaError(kOp);
  }
  CADRE_RETURN_IF_ERROR(CheckActivation(exec, kOp, "x", args.x, 0));
  // 24 bits decide: the same on every backend and dtype.
  const uint64_t bound =
      static_cast<uint64_t>(args.probability * (int64_t{1} << 24));
  return DispatchCpu(args.x.dtype(), [&](auto zero) {
    using Scalar = decltype(zero);
    const Scalar scale = static_cast<Scalar>(1 / (1 - args.probability));
    const Scalar* x = args.x.data<Scalar>();
    Scalar* y = args.y.data<Scalar>();
    ParallelFor(exec, args.x.num_elements(), kGrain, [&](int64_t b, int64_t e) {
      for (int64_t i = b; i < e; ++i) {
        const bool keep = (MixSeed(args.seed, i) >> 40) >= bound;
        const Scalar value = keep ? x[i] * scale : 0;
        y[i] = args.accumulate ? y[i] + value : value;
      }
    });
    return absl::OkStatus();
  });
}

uint64_t MixSeed(uint64_t a, uint64_t b) {
  uint64_t x = a + 0x9E3779B97F4A7C15ULL * (b + 1);
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

}  // namespace cadre
