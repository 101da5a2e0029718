#ifndef CADRE_MODEL_ADAPTER_MERGE_H_
#define CADRE_MODEL_ADAPTER_MERGE_H_

// An adapter put into its base: W + scale B A for every adapted matrix, given
// out piece by piece for a CheckpointWriter. Whatever the adapter's layout on
// disk was, it is applied to the logical tensors of the model. Thread-safe once
// made.
//
//   ASSIGN_OR_RETURN(AdapterMerge merge,
//                    AdapterMerge::Create(base, std::move(adapter)));
//   WriteCheckpoint(base, merge.Source(), dir, {});

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "model/checkpoint_writer.h"
#include "model/model_dir.h"
#include "model/peft_adapter.h"

namespace cadre {

class AdapterMerge {
 public:
  // The adapter must have been read for the base's spec.
  static absl::StatusOr<AdapterMerge> Create(ModelDir base,
                                             PeftAdapter adapter);

  // The base's values, adapted ones with their update added in float64 and
  // rounded once to float32. Shares its state with this object.
  TensorSource Source() const;

  // Tensors that change.
  int64_t num_adapted_tensors() const;

 private:
  struct Impl;
  explicit AdapterMerge(std::shared_ptr<const Impl> impl);
  std::shared_ptr<const Impl> impl_;
};

}  // namespace cadre

#endif  // CADRE_MODEL_ADAPTER_MERGE_H_
