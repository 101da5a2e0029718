#ifndef CADRE_WORKER_DEVICE_TRANSFER_H_
#define CADRE_WORKER_DEVICE_TRANSFER_H_

// Between host memory and memory where an Exec computes. On the CPU both are
// the same and these are plain copies. Tensors are of that exec; pointers and
// spans are the host's.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/common/exec.h"
#include "kernels/common/tensor.h"

namespace cadre {

// The host memory is free again on return. Ordered behind the stream's work.
absl::Status CopyToDevice(const Exec& exec, const void* from, const Tensor& to);
// Returns at once; `from` (a PinnedBuffer) must stay as it is until the stream
// has passed this point.
absl::Status CopyToDeviceAsync(const Exec& exec, const void* from,
                               const Tensor& to);
// `to` (a PinnedBuffer) is filled when the stream has passed this point.
absl::Status CopyToHostAsync(const Exec& exec, const Tensor& from, void* to);
// Waits for the stream's earlier work; `to` is filled on return.
absl::Status CopyToHost(const Exec& exec, const Tensor& from, void* to);
// Same bytes of one device.
absl::Status CopyOnDevice(const Exec& exec, const Tensor& from,
                          const Tensor& to);
// All bytes zero; behind the stream's work.
absl::Status SetZero(const Exec& exec, const Tensor& tensor);
// Everything given to the stream is done, or the first error of it.
absl::Status Synchronize(const Exec& exec);

// The values of a tensor of f64, f32 or bf16, as floats.
absl::StatusOr<std::vector<float>> ReadFloats(const Exec& exec,
                                              const Tensor& from);
// The same into memory of the caller.
absl::Status ReadFloats(const Exec& exec, const Tensor& from,
                        absl::Span<float> to);
// Values to a tensor of f64, f32 or bf16 (rounded to nearest even).
absl::Status WriteFloats(const Exec& exec, absl::Span<const float> from,
                         const Tensor& to);

}  // namespace cadre

#endif  // CADRE_WORKER_DEVICE_TRANSFER_H_
