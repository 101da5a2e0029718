// cuBLASLt, seen from row-major: the transpose of c = op(a) op(b) is
// c^T = op(b)^T op(a)^T, and a row-major matrix is its transpose read
// column-major, so b comes first and nothing is ever moved.
#include <cublasLt.h>

#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "base/status_macros.h"
#include "kernels/common/launch.cuh"
#include "kernels/common/vec.cuh"
#include "kernels/gemm/gemm.h"

namespace cadre {
namespace {

constexpr size_t kWorkspaceBytes = size_t{64} << 20;

absl::Status BlasStatus(absl::string_view what, cublasStatus_t status) {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  const std::string text =
      absl::StrCat("gemm: ", what, ": ", cublasLtGetStatusName(status), ": ",
                   cublasLtGetStatusString(status));
  return status == CUBLAS_STATUS_ALLOC_FAILED
             ? absl::ResourceExhaustedError(text)
             : absl::InternalError(text);
}

// Everything that decides which kernel runs.
struct Shape {
  int64_t m, n, k;  // column-major: rows of c^T, columns, depth
  int64_t ld_a, ld_b, ld_c;
  bool trans_a, trans_b;  // of cuBLASLt's first and second operand
  DType in, out;
  int align_a, align_b, align_c;  // bytes

  std::array<int64_t, 13> Key() const {
    return {m,
            n,
            k,
            ld_a,
            ld_b,
            ld_c,
            trans_a,
            trans_b,
            static_cast<int64_t>(in),
            static_cast<int64_t>(out),
            align_a,
            align_b,
            align_c};
  }
};

int AlignmentOf(const void* pointer) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  for (int bytes = 256; bytes > 2; bytes /= 2) {
    if (address % bytes == 0) return bytes;
  }
  return 2;
}

cudaDataType_t CudaType(DType dtype) {
  return dtype == DType::kBF16 ? CUDA_R_16BF : CUDA_R_32F;
}

// Descriptors and the algorithm of one shape.
class Plan {
 public:
  static absl::StatusOr<std::unique_ptr<Plan>> Create(cublasLtHandle_t handle,
                                                      const Shape& shape) {
    std::unique_ptr<Plan> plan(new Plan);
    CADRE_RETURN_IF_ERROR(plan->Describe(shape));
    CADRE_RETURN_IF_ERROR(plan->Choose(handle, shape));
    return plan;
  }
  ~Plan() {
    if (operation_ != nullptr) cublasLtMatmulDescDestroy(operation_);
    for (cublasLtMatrixLayout_t layout : {a_, b_, c_}) {
      if (layout != nullptr) cublasLtMatrixLayoutDestroy(layout);
    }
  }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  absl::Status Run(cublasLtHandle_t handle, const GemmArgs& args,
                   void* workspace, cudaStream_t stream) const {
    const auto alpha = static_cast<float>(args.alpha);
    const auto beta = static_cast<float>(args.beta);
    return BlasStatus(
        "running a product",
        cublasLtMatmul(handle, operation_, &alpha, args.b.raw(), a_,
                       args.a.raw(), b_, &beta, args.c.raw(), c_, args.c.raw(),
                       c_, &algorithm_, workspace, kWorkspaceBytes, stream));
  }

 private:
  Plan() = default;

  absl::Status Describe(const Shape& s) {
    CADRE_RETURN_IF_ERROR(BlasStatus(
        "describing a product",
        cublasLtMatmulDescCreate(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F)));
    for (const auto& [attribute, trans] :
         {std::pair{CUBLASLT_MATMUL_DESC_TRANSA, s.trans_a},
          std::pair{CUBLASLT_MATMUL_DESC_TRANSB, s.trans_b}}) {
      const cublasOperation_t value = trans ? CUBLAS_OP_T : CUBLAS_OP_N;
      CADRE_RETURN_IF_ERROR(
          BlasStatus("describing a product",
                     cublasLtMatmulDescSetAttribute(operation_, attribute,
                                                    &value, sizeof(value))));
    }
    const auto layout = [](cublasLtMatrixLayout_t* out, DType dtype,
                           int64_t rows, int64_t columns, int64_t ld) {
      return BlasStatus("describing a matrix",
                        cublasLtMatrixLayoutCreate(
                            out, CudaType(dtype), static_cast<uint64_t>(rows),
                            static_cast<uint64_t>(columns), ld));
    };
    CADRE_RETURN_IF_ERROR(layout(&a_, s.in, s.trans_a ? s.k : s.m,
                                 s.trans_a ? s.m : s.k, s.ld_a));
    CADRE_RETURN_IF_ERROR(layout(&b_, s.in, s.trans_b ? s.n : s.k,
                                 s.trans_b ? s.k : s.n, s.ld_b));
    return layout(&c_, s.out, s.m, s.n, s.ld_c);
  }

  absl::Status Choose(cublasLtHandle_t handle, const Shape& s) {
    cublasLtMatmulPreference_t preference = nullptr;
    CADRE_RETURN_IF_ERROR(BlasStatus(
        "choosing a kernel", cublasLtMatmulPreferenceCreate(&preference)));
    const size_t workspace = kWorkspaceBytes;
    // Split sums only where the parts are added in order.
    const uint32_t reductions =
        CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    const uint32_t alignments[3] = {static_cast<uint32_t>(s.align_a),
                                    static_cast<uint32_t>(s.align_b),
                                    static_cast<uint32_t>(s.align_c)};
    const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute,
                         const auto& value) {
      cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value,
                                           sizeof(value));
    };
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace);
    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignments[0]);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignments[1]);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignments[2]);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignments[2]);
    cublasLtMatmulHeuristicResult_t result;
    int found = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        handle, operation_, a_, b_, c_, c_, preference, 1, &result, &found);
    cublasLtMatmulPreferenceDestroy(preference);
    const std::string what =
        absl::StrCat("choosing a kernel for M ", s.n, ", N ", s.m, ", K ", s.k,
                     ", ", DTypeName(s.in), " to ", DTypeName(s.out));
    CADRE_RETURN_IF_ERROR(BlasStatus(what, status));
    if (found == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("gemm: ", what, ": cuBLASLt has none"));
    }
    algorithm_ = result.algo;
    return absl::OkStatus();
  }

  cublasLtMatmulDesc_t operation_ = nullptr;
  cublasLtMatrixLayout_t a_ = nullptr, b_ = nullptr, c_ = nullptr;
  cublasLtMatmulAlgo_t algorithm_ = {};
};

// Of one stream of one device: products on a stream run one after the other,
// so they can share a workspace.
struct StreamState {
  std::mutex mutex;
  void* workspace = nullptr;
  cublasLtHandle_t handle = nullptr;
  std::map<std::array<int64_t, 13>, std::unique_ptr<Plan>> plans;

  absl::Status Prepare() {
    if (workspace != nullptr) return absl::OkStatus();
    if (handle == nullptr) {
      CADRE_RETURN_IF_ERROR(
          BlasStatus("opening cuBLASLt", cublasLtCreate(&handle)));
    }
    const cudaError_t error = cudaMalloc(&workspace, kWorkspaceBytes);
    if (error != cudaSuccess) cudaGetLastError();
    return CudaStatus(error, "gemm: workspace of 64 MiB");
  }
};

// Streams live as long as a backend; a handle that comes again finds memory of
// the same device. Never torn down: the driver may be gone by then.
absl::StatusOr<StreamState*> StateOf(const Exec& exec) {
  static std::mutex& mutex = *new std::mutex;
  static auto& states =
      *new std::map<std::pair<int, void*>, std::unique_ptr<StreamState>>;
  int device = 0;
  CADRE_RETURN_IF_ERROR(
      CudaStatus(cudaGetDevice(&device), "gemm: asking for the device"));
  const std::lock_guard<std::mutex> lock(mutex);
  std::unique_ptr<StreamState>& state = states[{device, exec.stream}];
  if (state == nullptr) state = std::make_unique<StreamState>();
  return state.get();
}

template <typename T>
__global__ void ScaleKernel(T* c, int64_t rows, int64_t columns, int64_t pitch,
                            float beta) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (; i < rows * columns; i += stride) {
    T* const at = c + i / columns * pitch + i % columns;
    *at = FromFloat<T>(beta == 0 ? 0.0f : beta * ToFloat(*at));
  }
}

// An empty sum: only beta acts.
absl::Status Scale(const Exec& exec, const GemmArgs& args, int64_t pitch) {
  if (args.beta == 1) return absl::OkStatus();
  return DispatchCuda(args.c.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const int64_t rows = args.c.dim(0), columns = args.c.dim(1);
    return Launch(
        "gemm", exec,
        {.grid = dim3(GridFor(rows * columns, 256)), .block = dim3(256)},
        ScaleKernel<T>, args.c.data<T>(), rows, columns, pitch,
        static_cast<float>(args.beta));
  });
}

}  // namespace

absl::Status GemmCuda(const Exec& exec, const GemmArgs& args) {
  const auto pitch = [](int64_t given, const Tensor& t) {
    return std::max<int64_t>({given, t.dim(1), 1});
  };
  const int64_t rows = args.c.dim(0), columns = args.c.dim(1);
  const int64_t depth = args.a.dim(args.trans_a ? 0 : 1);
  if (rows == 0 || columns == 0) return absl::OkStatus();
  if (depth == 0) return Scale(exec, args, pitch(args.ldc, args.c));
  const Shape shape{.m = columns,
                    .n = rows,
                    .k = depth,
                    .ld_a = pitch(args.ldb, args.b),
                    .ld_b = pitch(args.lda, args.a),
                    .ld_c = pitch(args.ldc, args.c),
                    .trans_a = args.trans_b,
                    .trans_b = args.trans_a,
                    .in = args.a.dtype(),
                    .out = args.c.dtype(),
                    .align_a = AlignmentOf(args.b.raw()),
                    .align_b = AlignmentOf(args.a.raw()),
                    .align_c = AlignmentOf(args.c.raw())};
  CADRE_ASSIGN_OR_RETURN(StreamState* const state, StateOf(exec));
  const std::lock_guard<std::mutex> lock(state->mutex);
  CADRE_RETURN_IF_ERROR(state->Prepare());
  std::unique_ptr<Plan>& plan = state->plans[shape.Key()];
  if (plan == nullptr) {
    CADRE_ASSIGN_OR_RETURN(plan, Plan::Create(state->handle, shape));
  }
  return plan->Run(state->handle, args, state->workspace, StreamOf(exec));
}

}  // namespace cadre
