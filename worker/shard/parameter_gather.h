#ifndef CADRE_WORKER_SHARD_PARAMETER_GATHER_H_
#define CADRE_WORKER_SHARD_PARAMETER_GATHER_H_

// Whole logical tensors on rank 0, wherever their parts lie: slices of units,
// rows of experts. Rank 0 asks for stretches as it writes a result, the others
// serve until it is done, so that nobody ever holds more than a stretch. Views
// everything; used on the training thread.
//
//   rank 0:  gather.Fetch(parameter, begin, out) ... ; gather.Finish();
//   others:  gather.Serve();

#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/common/exec.h"
#include "worker/model/dense_units.h"
#include "worker/model/parameters.h"
#include "worker/shard/mesh_communicators.h"
#include "worker/shard/optimizer.h"

namespace cadre {

class ParameterGather {
 public:
  // With an optimizer, trained parameters are what it updates: their f32
  // masters where the model computes with narrower copies.
  ParameterGather(const Exec& exec, ParameterRegistry* parameters,
                  const DenseUnits* units,
                  const MeshCommunicators* communicators,
                  const Optimizer* optimizer = nullptr);

  // Elements [begin, begin + out.size()) of the whole tensor, as floats.
  absl::Status Fetch(const Parameter& parameter, int64_t begin,
                     absl::Span<float> out);
  // Releases the ranks that serve. Once, also after an error that is not one
  // of communication.
  absl::Status Finish();
  // Until rank 0 finishes.
  absl::Status Serve();

 private:
  // A stretch of a whole tensor that is sent from here.
  struct Part {
    int64_t begin = 0;
    Tensor value;
  };
  struct Request {
    int64_t parameter = 0, begin = 0, end = 0;
  };
  // What this rank has to send of the stretch; every element is sent by one.
  std::vector<Part> PartsOf(const Parameter& parameter, int64_t begin,
                            int64_t end) const;
  // Everyone's part of one request; `out` on rank 0 only.
  absl::Status Exchange(const Request& request, absl::Span<float> out);

  std::vector<Part> TrainedPartsOf(const Parameter& parameter, int64_t begin,
                                   int64_t end) const;

  const Exec exec_;
  ParameterRegistry* const parameters_;
  const DenseUnits* const units_;
  const MeshCommunicators* const communicators_;
  // This rank's of each trained parameter that it counts; with an optimizer.
  std::map<const Parameter*, std::vector<const Optimizer::Slot*>> trained_;
  const bool has_optimizer_;
};

}  // namespace cadre

#endif  // CADRE_WORKER_SHARD_PARAMETER_GATHER_H_
