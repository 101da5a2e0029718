#ifndef CADRE_WORKER_BACKEND_PLUGIN_API_H_
#define CADRE_WORKER_BACKEND_PLUGIN_API_H_

// The one symbol that the CUDA plugin exports. Program and plugin are built
// from the same tree with the same compiler; the version guards against a stale
// file.

#include "absl/status/statusor.h"
#include "worker/backend/backend.h"

namespace cadre {

// Raise with every change of backend.h or of a header it includes.
inline constexpr int kPluginVersion = 3;
inline constexpr char kPluginFile[] = "libcadre_cuda.so";
inline constexpr char kPluginSymbol[] = "CadreCudaPlugin";

struct PluginApi {
  int version = 0;
  // The backend of one GPU.
  absl::StatusOr<std::unique_ptr<DeviceBackend>> (*create)(int index) = nullptr;
};

// extern "C" const PluginApi* CadreCudaPlugin();
using PluginEntry = const PluginApi* (*)();

}  // namespace cadre

#endif  // CADRE_WORKER_BACKEND_PLUGIN_API_H_
