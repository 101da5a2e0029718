#ifndef CADRE_WORKER_MODEL_PASS_ARENAS_H_
#define CADRE_WORKER_MODEL_PASS_ARENAS_H_

// The activation memory of a model: three arenas (context.h says what lies in
// which), reserved by the plan on the CPU, and what the plan says of the passes
// that came. Owns the memory. Not thread-safe.

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/common/exec.h"
#include "model/model_spec.h"
#include "plan/pass_memory.h"
#include "worker/device/arena.h"
#include "worker/model/model.h"
#include "worker/moe/expert_runtime.h"

namespace cadre {

// What the plan is asked about a pass; `experts` is null where all are here.
// Does not own `spec`.
PassRequest PassRequestFor(const ModelSpec& spec, const ModelOptions& options,
                           const ExpertRuntime* experts, int64_t tokens);

class PassArenas {
 public:
  explicit PassArenas(const Exec& exec)
      : exec_(exec),
        kept_(exec, "kept activations"),
        saved_(exec, "activations"),
        scratch_(exec, "temporaries") {}

  Arena* kept() { return &kept_; }
  Arena* saved() { return &saved_; }
  Arena* scratch() { return &scratch_; }

  // Of a new pass: everything is free.
  void Reset();

  // Behind Reset, CPU: room for training passes like `request`, in one piece
  // each, so that none grows in a later step unless a rank is sent more rows
  // than were planned for. Its rows are set here.
  void Reserve(PassRequest request, int64_t top_k);

  // A training pass like `request` gave `result`: expected_bytes follows.
  void Expect(PassRequest request, const ForwardResult& result);

  // An op's error, or the lack of memory behind it.
  absl::Status Explain(const absl::Status& status);

  ArenaStats stats() const;
  void RestartRecentPeaks();

 private:
  const Exec exec_;
  Arena kept_, saved_, scratch_;
  SeenRows seen_rows_;  // of training passes
  int64_t most_tokens_ = -1, expected_bytes_ = 0, reserved_tokens_ = 0;
};

}  // namespace cadre

#endif  // CADRE_WORKER_MODEL_PASS_ARENAS_H_
