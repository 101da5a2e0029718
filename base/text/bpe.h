#ifndef CADRE_BASE_TEXT_BPE_H_
#define CADRE_BASE_TEXT_BPE_H_

// Byte-pair merging: the "model" of a tokenizer.json, over raw bytes.
// Thread-safe; recent words are cached behind locks.

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/text/json.h"

namespace cadre {

class Bpe {
 public:
  static absl::StatusOr<std::unique_ptr<const Bpe>> FromJson(const Json& model);
  Bpe(const Bpe&) = delete;
  Bpe& operator=(const Bpe&) = delete;

  struct Piece {
    int32_t id;
    int32_t length;  // bytes
  };
  // Appends the pieces of one word (any bytes).
  absl::Status EncodeWord(absl::string_view word,
                          std::vector<Piece>* out) const;

  // The entry as spelled in the file.
  std::optional<int32_t> TokenToId(absl::string_view token) const;
  const absl::flat_hash_map<std::string, int32_t>& vocabulary() const {
    return vocabulary_;
  }

 private:
  struct Merge {
    int32_t rank;
    int32_t id;
  };
  struct CacheShard {
    std::mutex mutex;
    absl::flat_hash_map<std::string, std::vector<Piece>> words;
  };

  Bpe() = default;
  absl::Status LoadVocabulary(const Json& vocabulary);
  absl::Status LoadMerges(const Json& merges);
  const Merge* FindMerge(int32_t left, int32_t right) const;
  absl::Status Compute(absl::string_view word, std::vector<Piece>* out) const;
  void MergeShort(std::vector<Piece>* pieces) const;
  void MergeLong(std::vector<Piece>* pieces) const;

  absl::flat_hash_map<std::string, int32_t> vocabulary_;  // as spelled
  absl::flat_hash_map<std::string, int32_t> by_bytes_;    // ignore_merges
  std::array<int32_t, 256> byte_ids_;                     // -1: none
  // Key: left id in the upper, right id in the lower half.
  absl::flat_hash_map<uint64_t, Merge> merges_;
  bool ignore_merges_ = false;

  static constexpr int kShards = 16;
  mutable std::array<CacheShard, kShards> cache_;
};

}  // namespace cadre

#endif  // CADRE_BASE_TEXT_BPE_H_
