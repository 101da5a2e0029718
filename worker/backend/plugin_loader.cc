// Design: one worker program everywhere; CUDA comes as a shared library that is
// opened at run time, so the program starts on machines without CUDA libraries.
#include <dlfcn.h>

#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/status_macros.h"
#include "worker/backend/backend.h"
#include "worker/backend/plugin_api.h"

namespace cadre {
namespace {

absl::StatusOr<std::string> FindPlugin() {
  std::error_code error;
  const std::filesystem::path program =
      std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) {
    return absl::NotFoundError(absl::StrCat(
        "cannot tell where this program lies (is /proc mounted?): ",
        error.message()));
  }
  const std::filesystem::path folder = program.parent_path();
  for (const auto& candidate :
       {folder / kPluginFile, folder / "lib" / kPluginFile,
        folder / "backend" / kPluginFile}) {
    if (std::filesystem::exists(candidate, error)) return candidate.string();
  }
  return absl::NotFoundError(
      absl::StrCat("there is no ", kPluginFile, " in ", folder.string(),
                   " or its lib folder: this is a CPU-only installation; build "
                   "with --config=cuda, or use --device=cpu"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceBackend>> LoadCudaBackend(int index) {
  CADRE_ASSIGN_OR_RETURN(const std::string file, FindPlugin());
  // Never closed: threads of the CUDA runtime may outlive the backend.
  void* handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot open the CUDA plugin: ", dlerror(),
                     "; it needs cuBLASLt 13 and NCCL where the loader looks "
                     "(LD_LIBRARY_PATH; Python's nvidia wheels hold them)"));
  }
  const auto entry =
      reinterpret_cast<PluginEntry>(dlsym(handle, kPluginSymbol));
  if (entry == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat(file, " has no symbol ", kPluginSymbol,
                     ": it is no plugin of this program"));
  }
  const PluginApi* api = entry();
  if (api->version != kPluginVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        file, " has plugin version ", api->version, ", this program needs ",
        kPluginVersion, ": install both from the same build"));
  }
  return api->create(index);
}

absl::StatusOr<std::unique_ptr<DeviceBackend>> SelectBackend(
    absl::string_view device, int index, int num_threads) {
  if (device == "cpu") return CreateCpuBackend(num_threads);
  if (device != "cuda" && device != "auto") {
    return absl::InvalidArgumentError(
        absl::StrCat("--device: '", device, "' is none of auto, cpu, cuda"));
  }
  absl::StatusOr<std::unique_ptr<DeviceBackend>> cuda = LoadCudaBackend(index);
  absl::Status status = cuda.status();
  if (status.ok()) status = (*cuda)->CanTrain();
  if (status.ok()) return cuda;
  if (device == "cuda") {
    return absl::FailedPreconditionError(
        absl::StrCat("--device=cuda: ", status.message(),
                     "; --device=cpu trains on the processor"));
  }
  CADRE_LOG(INFO) << "--device=auto takes cpu: " << status.message();
  return CreateCpuBackend(num_threads);
}

}  // namespace cadre
