#ifndef CADRE_WORKER_TRAIN_SCRATCH_EXPORT_H_
#define CADRE_WORKER_TRAIN_SCRATCH_EXPORT_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "model/checkpoint_writer.h"
#include "model/model_spec.h"

namespace cadre {

// A checkpoint of a model that was not read from one (model.init: random):
// model.safetensors in f32 under the names a new checkpoint has, config.json,
// and what there is of tokenizer files in `tokenizer_dir` ("": none). Makes
// `dir`.
absl::Status WriteScratchCheckpoint(const ModelSpec& spec,
                                    absl::string_view config_json,
                                    const std::string& tokenizer_dir,
                                    const TensorSource& source,
                                    const std::string& dir);

}  // namespace cadre

#endif  // CADRE_WORKER_TRAIN_SCRATCH_EXPORT_H_
