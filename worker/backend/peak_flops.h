#ifndef CADRE_WORKER_BACKEND_PEAK_FLOPS_H_
#define CADRE_WORKER_BACKEND_PEAK_FLOPS_H_

// What a device could do at best, as the yardstick of model FLOPs utilisation.
// From data sheets and instruction sets, not measured. Pure; thread-safe.

#include "absl/strings/string_view.h"

namespace cadre {

// Dense bf16 FLOP/s of a GPU with this name ("NVIDIA H200"); 0: not known.
double GpuPeakFlops(absl::string_view name);

// f32 FLOP/s of `num_threads` cores, from the text of /proc/cpuinfo: clock
// times two vector units of the widest instruction set; 0: not known.
double CpuPeakFlops(absl::string_view cpuinfo, int num_threads);

}  // namespace cadre

#endif  // CADRE_WORKER_BACKEND_PEAK_FLOPS_H_
