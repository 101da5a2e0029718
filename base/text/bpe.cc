#include "base/text/bpe.h"

#include <limits>
#include <queue>
#include <tuple>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/text/byte_level.h"

namespace cadre {
namespace {

constexpr int64_t kCachedWordBytes = 64;
constexpr size_t kCachedWordsPerShard = 8192;
// Up to here looking through all pairs beats a heap.
constexpr size_t kShortWord = 48;

uint64_t PairKey(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 |
         static_cast<uint32_t>(right);
}

// Options that would change the result and that byte-level models leave off.
absl::Status RefuseUnsupported(const Json& model) {
  const auto refuse = [](absl::string_view what) {
    return absl::UnimplementedError(
        absl::StrCat("tokenizer model: ", what, " is not supported"));
  };
  const Json* type = model.Find("type");
  if (type != nullptr && type->string_value() != "BPE") {
    return refuse(absl::StrCat("type `", type->string_value(),
                               "` (only byte-level BPE is)"));
  }
  if (const Json* json = model.Find("byte_fallback");
      json != nullptr && json->bool_value()) {
    return refuse("byte_fallback");
  }
  if (const Json* json = model.Find("dropout");
      json != nullptr && json->number_value() != 0) {
    return refuse("dropout");
  }
  for (absl::string_view key :
       {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (const Json* json = model.Find(key);
        json != nullptr && !json->string_value().empty()) {
      return refuse(key);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<const Bpe>> Bpe::FromJson(const Json& model) {
  if (!model.is_object()) {
    return absl::InvalidArgumentError("tokenizer model is not an object");
  }
  CADRE_RETURN_IF_ERROR(RefuseUnsupported(model));
  const Json* vocabulary = model.Find("vocab");
  const Json* merges = model.Find("merges");
  if (vocabulary == nullptr || !vocabulary->is_object() || merges == nullptr ||
      !merges->is_array()) {
    return absl::InvalidArgumentError(
        "tokenizer model needs an object `vocab` and an array `merges`");
  }
  std::unique_ptr<Bpe> bpe(new Bpe());
  CADRE_RETURN_IF_ERROR(bpe->LoadVocabulary(*vocabulary));
  CADRE_RETURN_IF_ERROR(bpe->LoadMerges(*merges));
  if (const Json* json = model.Find("ignore_merges");
      json != nullptr && json->bool_value()) {
    bpe->ignore_merges_ = true;
    for (const auto& [token, id] : bpe->vocabulary_) {
      if (std::optional<std::string> bytes = FromByteLevel(token)) {
        bpe->by_bytes_.emplace(*std::move(bytes), id);
      }
    }
  }
  return bpe;
}

absl::Status Bpe::LoadVocabulary(const Json& vocabulary) {
  vocabulary_.reserve(vocabulary.members().size());
  byte_ids_.fill(-1);
  for (const Json::Member& member : vocabulary.members()) {
    const int64_t id = member.value.int_value();
    if (!member.value.is_int() || id < 0 ||
        id > std::numeric_limits<int32_t>::max()) {
      return absl::InvalidArgumentError(
          absl::StrCat("tokenizer model: the id of `", member.key,
                       "` is not a whole number of 31 bits"));
    }
    vocabulary_.emplace(member.key, static_cast<int32_t>(id));
    const std::optional<std::string> bytes = FromByteLevel(member.key);
    if (bytes.has_value() && bytes->size() == 1) {
      byte_ids_[static_cast<unsigned char>((*bytes)[0])] =
          static_cast<int32_t>(id);
    }
  }
  return absl::OkStatus();
}

absl::Status Bpe::LoadMerges(const Json& merges) {
  merges_.reserve(merges.items().size());
  int32_t rank = 0;
  for (const Json& item : merges.items()) {
    std::string left, right;
    if (item.is_string()) {
      const std::string& text = item.string_value();
      const size_t space = text.find(' ');
      if (space == std::string::npos) {
        return absl::InvalidArgumentError(absl::StrCat(
            "tokenizer model: merge ", rank, " `", text, "` has no space"));
      }
      left = text.substr(0, space);
      right = text.substr(space + 1);
    } else if (item.is_array() && item.items().size() == 2 &&
               item.items()[0].is_string() && item.items()[1].is_string()) {
      left = item.items()[0].string_value();
      right = item.items()[1].string_value();
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat("tokenizer model: merge ", rank,
                       " is neither \"a b\" nor [\"a\", \"b\"]"));
    }
    const auto a = vocabulary_.find(left);
    const auto b = vocabulary_.find(right);
    const auto merged = vocabulary_.find(absl::StrCat(left, right));
    if (a == vocabulary_.end() || b == vocabulary_.end() ||
        merged == vocabulary_.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("tokenizer model: merge ", rank, " `", left, " ", right,
                       "` names a token that the vocabulary lacks"));
    }
    // A pair listed again takes the later rank, as a map filled in order does.
    merges_[PairKey(a->second, b->second)] = {rank, merged->second};
    ++rank;
  }
  return absl::OkStatus();
}

std::optional<int32_t> Bpe::TokenToId(absl::string_view token) const {
  const auto it = vocabulary_.find(token);
  if (it == vocabulary_.end()) return std::nullopt;
  return it->second;
}

const Bpe::Merge* Bpe::FindMerge(int32_t left, int32_t right) const {
  const auto it = merges_.find(PairKey(left, right));
  return it == merges_.end() ? nullptr : &it->second;
}

absl::Status Bpe::EncodeWord(absl::string_view word,
                             std::vector<Piece>* out) const {
  if (static_cast<int64_t>(word.size()) > kCachedWordBytes) {
    return Compute(word, out);
  }
  CacheShard& shard = cache_[absl::Hash<absl::string_view>()(word) % kShards];
  {
    const std::lock_guard<std::mutex> lock(shard.mutex);
    if (const auto it = shard.words.find(word); it != shard.words.end()) {
      out->insert(out->end(), it->second.begin(), it->second.end());
      return absl::OkStatus();
    }
  }
  std::vector<Piece> pieces;
  CADRE_RETURN_IF_ERROR(Compute(word, &pieces));
  out->insert(out->end(), pieces.begin(), pieces.end());
  const std::lock_guard<std::mutex> lock(shard.mutex);
  if (shard.words.size() >= kCachedWordsPerShard) shard.words.clear();
  shard.words.emplace(std::string(word), std::move(pieces));
  return absl::OkStatus();
}

absl::Status Bpe::Compute(absl::string_view word,
                          std::vector<Piece>* out) const {
  if (word.empty()) return absl::OkStatus();
  if (ignore_merges_) {
    if (const auto it = by_bytes_.find(word); it != by_bytes_.end()) {
      out->push_back({it->second, static_cast<int32_t>(word.size())});
      return absl::OkStatus();
    }
  }
  std::vector<Piece> pieces;
  pieces.reserve(word.size());
  for (char c : word) {
    const int32_t id = byte_ids_[static_cast<unsigned char>(c)];
    if (id < 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the tokenizer's vocabulary has no token for the byte 0x",
          absl::Hex(static_cast<unsigned char>(c), absl::kZeroPad2)));
    }
    pieces.push_back({id, 1});
  }
  if (pieces.size() <= kShortWord) {
    MergeShort(&pieces);
  } else {
    MergeLong(&pieces);
  }
  out->insert(out->end(), pieces.begin(), pieces.end());
  return absl::OkStatus();
}

// The pair of lowest rank, leftmost first, until none is left.
void Bpe::MergeShort(std::vector<Piece>* pieces) const {
  while (pieces->size() > 1) {
    const Merge* best = nullptr;
    size_t at = 0;
    for (size_t i = 0; i + 1 < pieces->size(); ++i) {
      const Merge* merge = FindMerge((*pieces)[i].id, (*pieces)[i + 1].id);
      if (merge != nullptr && (best == nullptr || merge->rank < best->rank)) {
        best = merge;
        at = i;
      }
    }
    if (best == nullptr) return;
    (*pieces)[at] = {best->id, (*pieces)[at].length + (*pieces)[at + 1].length};
    pieces->erase(pieces->begin() + static_cast<int64_t>(at) + 1);
  }
}

// The same with a heap over a linked list: O(n log n).
void Bpe::MergeLong(std::vector<Piece>* pieces) const {
  const int32_t n = static_cast<int32_t>(pieces->size());
  std::vector<int32_t> previous(n), next(n);
  for (int32_t i = 0; i < n; ++i) {
    previous[i] = i - 1;
    next[i] = i + 1 < n ? i + 1 : -1;
  }
  using Candidate = std::tuple<int32_t, int32_t, int32_t>;  // rank, place, id
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> heap;
  const auto offer = [&](int32_t left) {
    if (left < 0 || next[left] < 0) return;
    const Merge* merge =
        FindMerge((*pieces)[left].id, (*pieces)[next[left]].id);
    if (merge != nullptr) heap.emplace(merge->rank, left, merge->id);
  };
  for (int32_t i = 0; i + 1 < n; ++i) offer(i);
  while (!heap.empty()) {
    const auto [rank, left, id] = heap.top();
    heap.pop();
    // Candidates go stale when a neighbour was merged away; then the pair at
    // this place is another one now.
    if ((*pieces)[left].length == 0 || next[left] < 0) continue;
    const int32_t right = next[left];
    const Merge* now = FindMerge((*pieces)[left].id, (*pieces)[right].id);
    if (now == nullptr || now->rank != rank) continue;
    (*pieces)[left] = {id, (*pieces)[left].length + (*pieces)[right].length};
    (*pieces)[right].length = 0;
    next[left] = next[right];
    if (next[left] >= 0) previous[next[left]] = left;
    offer(previous[left]);
    offer(left);
  }
  size_t kept = 0;
  for (int32_t i = 0; i >= 0; i = next[i]) (*pieces)[kept++] = (*pieces)[i];
  pieces->resize(kept);
}

}  // namespace cadre
