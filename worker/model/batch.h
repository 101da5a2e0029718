#ifndef CADRE_WORKER_MODEL_BATCH_H_
#define CADRE_WORKER_MODEL_BATCH_H_

// One micro-batch of one rank: documents packed end to end. Values on the host;
// a backend copies what it needs.

#include <cstdint>
#include <vector>

namespace cadre {

struct Batch {
  // [T] token ids. Padding, if any, lies behind the last document.
  std::vector<int32_t> ids;
  // [T] target[t] is the token that position t must predict (already shifted
  // inside its document), or kIgnore.
  std::vector<int32_t> targets;
  // [docs + 1] document d owns tokens [cu_seqlens[d], cu_seqlens[d + 1]);
  // cu_seqlens[0] == 0. Tokens at or after cu_seqlens.back() are padding: they
  // count nowhere (loss, router load, auxiliary loss).
  std::vector<int32_t> cu_seqlens;

  static constexpr int32_t kIgnore = -100;

  int64_t num_tokens() const { return static_cast<int64_t>(ids.size()); }
  int64_t num_docs() const {
    return static_cast<int64_t>(cu_seqlens.size()) - 1;
  }
  // Tokens that are not padding.
  int64_t num_real_tokens() const { return cu_seqlens.back(); }
  // Targets that count in the loss.
  int64_t num_targets() const {
    int64_t n = 0;
    for (int32_t t : targets) n += t != kIgnore;
    return n;
  }
};

}  // namespace cadre

#endif  // CADRE_WORKER_MODEL_BATCH_H_
