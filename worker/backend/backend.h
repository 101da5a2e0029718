#ifndef CADRE_WORKER_BACKEND_BACKEND_H_
#define CADRE_WORKER_BACKEND_BACKEND_H_

// What a worker computes with. The engine (worker/{model,train,...} and
// kernels/) stands wholly behind this interface, so that it can be linked a
// second time, together with the CUDA kernels, into a plugin that is opened at
// run time: one program runs with and without CUDA. Nothing here knows protobuf
// or gRPC, since a plugin must not bring a second copy of them.

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "worker/comm/rendezvous_store.h"
#include "worker/train/trainer.h"
#include "worker/train/trainer_options.h"

namespace cadre {

struct DeviceFacts {
  std::string backend;  // "cpu" or "cuda"
  std::string name;     // "NVIDIA H200", or the processor's name
  std::string uuid;     // "" on cpu
  int64_t memory_bytes = 0;
  std::string capability;  // "9.0"; "" on cpu
};

// Hears of every collective; called on the training thread.
class CollectiveObserver {
 public:
  virtual ~CollectiveObserver() = default;
  // op: see WorkerMetrics::ObserveCollective. bytes: put in by this rank.
  virtual void OnCollective(absl::string_view op, int64_t bytes,
                            double seconds) = 0;
};

struct TrainerRequest {
  TrainerOptions options;
  // Where the ranks meet; used during CreateTrainer only.
  KeyValueStore* store = nullptr;
  // Address the peers reach this rank at.
  std::string data_address;
  // For the peers to have loaded the model, to meet, and of one collective.
  absl::Duration start_timeout = absl::Hours(1);
  absl::Duration rendezvous_timeout = absl::Minutes(5);
  absl::Duration collective_timeout = absl::Minutes(1);
  // Both outlive the trainer. Besides the trainer's own stages the observer
  // hears "communicator".
  TrainObserver* observer = nullptr;
  CollectiveObserver* collectives = nullptr;
};

// Thread-safe; one trainer at a time.
class DeviceBackend {
 public:
  virtual ~DeviceBackend() = default;

  virtual const DeviceFacts& facts() const = 0;
  // OK when jobs can be trained here; else why not. A worker whose backend
  // cannot train never registers with it.
  virtual absl::Status CanTrain() const = 0;
  // Loads data and model, meets the peers, resumes where asked. The error's
  // code says whose fault it is, as in trainer.h.
  virtual absl::StatusOr<std::unique_ptr<Trainer>> CreateTrainer(
      const TrainerRequest& request) = 0;
};

// The backend every program has. `num_threads` >= 1.
std::unique_ptr<DeviceBackend> CreateCpuBackend(int num_threads);

// Opens libcadre_cuda.so beside the program, or in its lib folder, and asks it
// for GPU `index`. NOT_FOUND: there is no plugin; FAILED_PRECONDITION: no
// driver, no such GPU. The plugin stays open for the life of the process.
absl::StatusOr<std::unique_ptr<DeviceBackend>> LoadCudaBackend(int index);

// `device` is auto, cpu or cuda. auto takes cuda where it can train, else cpu,
// and logs why. FAILED_PRECONDITION when cuda is asked for and cannot be had.
absl::StatusOr<std::unique_ptr<DeviceBackend>> SelectBackend(
    absl::string_view device, int index, int num_threads);

}  // namespace cadre

#endif  // CADRE_WORKER_BACKEND_BACKEND_H_
