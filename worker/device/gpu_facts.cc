#include "worker/device/gpu_facts.h"

#include "absl/strings/str_cat.h"

namespace cadre {
namespace {

// The fast kernels are written for this chip and not portable.
constexpr int kMajor = 9, kMinor = 0;

std::string VersionName(int version) {
  return absl::StrCat(version / 1000, ".", version % 1000 / 10);
}

}  // namespace

absl::Status CheckGpu(const GpuFacts& facts) {
  const std::string needed = VersionName(facts.runtime_version);
  if (facts.driver_version == 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "no NVIDIA driver is loaded, and this build needs one for CUDA ",
        needed,
        ": nvidia-smi must run on this machine; a container gets the driver "
        "from NVIDIA's container toolkit"));
  }
  // A driver runs every minor version of the major one it knows.
  if (facts.driver_version / 1000 < facts.runtime_version / 1000) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the NVIDIA driver knows CUDA ", VersionName(facts.driver_version),
        ", this build needs ", needed, ": install a newer driver"));
  }
  if (facts.num_devices == 0) {
    return absl::FailedPreconditionError(
        "the NVIDIA driver finds no GPU: see nvidia-smi and "
        "CUDA_VISIBLE_DEVICES");
  }
  if (facts.index < 0 || facts.index >= facts.num_devices) {
    return absl::FailedPreconditionError(
        absl::StrCat("GPU ", facts.index, ": this machine has ",
                     facts.num_devices, " GPUs, counted from 0"));
  }
  if (facts.capability_major != kMajor || facts.capability_minor != kMinor) {
    return absl::FailedPreconditionError(absl::StrCat(
        "GPU ", facts.index, " is a ", facts.name, " of compute capability ",
        facts.capability_major, ".", facts.capability_minor,
        "; this build has code for ", kMajor, ".", kMinor,
        " (H100, H200): choose another GPU with --index"));
  }
  return absl::OkStatus();
}

}  // namespace cadre
