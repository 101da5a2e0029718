#include "kernels/router/router_overflow.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/common/check.h"
#include "kernels/router/router_scores.h"

namespace cadre {

CADRE_CUDA_IMPL absl::Status RouterOverflowCuda(const Exec& exec,
                                                const RouterOverflowArgs&);
CADRE_CUDA_IMPL absl::Status RouterOverflowBackwardCuda(
    const Exec& exec, const RouterOverflowBackwardArgs&);

namespace {

constexpr char kOp[] = "router overflow";
// A token's refusals are the bits of one word.
constexpr int64_t kMaxCudaTopK = 64 - kRemapRounds;

template <typename T>
class Overflow {
 public:
  explicit Overflow(const RouterOverflowArgs& args)
      : args_(args),
        experts_(args.logits.dim(1)),
        top_k_(args.ids.dim(1)),
        logits_(args.logits.data<T>()),
        bias_(args.correction_bias.present() ? args.correction_bias.data<T>()
                                             : nullptr),
        weights_(args.weights.data<T>()),
        routed_(args.routed_ids.data<int32_t>()),
        counts_(args.counts.data<int64_t>()),
        load_(experts_, 0),
        scores_(experts_) {}

  void Run() {
    std::fill_n(counts_, kNumOverflowCounts, 0);
    const int64_t tokens = args_.ids.dim(0);
    std::fill_n(args_.weight_sum.data<T>(), tokens, T{-1});
    std::copy_n(args_.ids.data<int32_t>(), tokens * top_k_, routed_);
    Admit();
    if (args_.policy == OverflowPolicy::kRemap) {
      for (int round = 0; round < kRemapRounds && RemapRound(round); ++round) {
      }
      for (const Token& token : tokens_) {
        if (token.moved) Reweigh(token.index);
      }
    }
    for (const Token& token : tokens_) {
      for (const int64_t pair : token.excess) {
        weights_[pair] = 0;
        ++counts_[kDroppedPairs];
      }
    }
  }

 private:
  struct Claim {
    T score = 0;
    int64_t pair = 0;
    size_t token = 0;  // place in tokens_
  };
  // A token with excess pairs.
  struct Token {
    int64_t index = 0;
    std::vector<int64_t>
        excess;  // pairs without an expert, first chooser first
    std::vector<int32_t> candidates;  // best first; refusals are taken out
    std::vector<T> choice;            // scores with bias, of all experts
    bool moved = false;
  };

  // By score, then token and place.
  static void SortClaims(std::vector<Claim>* claims) {
    std::sort(claims->begin(), claims->end(),
              [](const Claim& a, const Claim& b) {
                return a.score != b.score ? a.score > b.score : a.pair < b.pair;
              });
  }

  void Admit() {
    std::vector<std::vector<Claim>> claims(experts_);
    const bool by_weight = args_.policy != OverflowPolicy::kDropByPosition;
    for (int64_t pair = 0; pair < args_.ids.num_elements(); ++pair) {
      if (routed_[pair] < 0) continue;
      ++counts_[kRoutedPairs];
      claims[routed_[pair]].push_back(
          {.score = by_weight ? weights_[pair] : T{0}, .pair = pair});
    }
    std::vector<int64_t> excess;
    for (int64_t e = 0; e < experts_; ++e) {
      SortClaims(&claims[e]);
      load_[e] = std::min<int64_t>(args_.capacity, std::ssize(claims[e]));
      for (int64_t i = load_[e]; i < std::ssize(claims[e]); ++i) {
        excess.push_back(claims[e][i].pair);
        routed_[claims[e][i].pair] = -1;
      }
    }
    std::sort(excess.begin(), excess.end());
    for (const int64_t pair : excess) {
      if (tokens_.empty() || tokens_.back().index != pair / top_k_) {
        tokens_.push_back({.index = pair / top_k_});
      }
      tokens_.back().excess.push_back(pair);
    }
    if (args_.policy != OverflowPolicy::kRemap) return;
    for (Token& token : tokens_) Rank(&token);
  }

  // The order in which a token's pairs choose, and what they choose from.
  void Rank(Token* token) {
    std::stable_sort(
        token->excess.begin(), token->excess.end(),
        [&](int64_t a, int64_t b) { return weights_[a] > weights_[b]; });
    RouterScores(args_.options.score, logits_ + token->index * experts_,
                 experts_, scores_.data());
    token->choice = scores_;
    for (int64_t e = 0; bias_ != nullptr && e < experts_; ++e) {
      token->choice[e] += bias_[e];
    }
    std::vector<char> open(experts_);
    OpenBestGroups(args_.options, token->choice.data(), experts_, open.data());
    const int64_t eligible = std::count(open.begin(), open.end(), 1);
    const int64_t n = std::min<int64_t>(eligible, top_k_ + kRemapRounds);
    for (int64_t i = 0; i < n; ++i) {
      token->candidates.push_back(static_cast<int32_t>(
          TakeLargest(token->choice.data(), experts_, open.data())));
    }
  }

  // False when nobody had anything to propose.
  bool RemapRound(int round) {
    std::vector<std::vector<Claim>> proposals(experts_);
    bool any = false;
    for (size_t t = 0; t < tokens_.size(); ++t) {
      const Token& token = tokens_[t];
      const int32_t* const mine = routed_ + token.index * top_k_;
      size_t next = 0;
      for (const int64_t pair : token.excess) {
        for (; next < token.candidates.size(); ++next) {
          const int32_t e = token.candidates[next];
          if (load_[e] < args_.capacity &&
              std::find(mine, mine + top_k_, e) == mine + top_k_) {
            break;
          }
        }
        if (next == token.candidates.size()) break;
        const int32_t e = token.candidates[next++];
        proposals[e].push_back({token.choice[e], pair, t});
        any = true;
      }
    }
    for (int64_t e = 0; e < experts_; ++e) {
      SortClaims(&proposals[e]);
      for (const Claim& claim : proposals[e]) {
        Token& token = tokens_[claim.token];
        if (load_[e] == args_.capacity) {
          std::erase(token.candidates, static_cast<int32_t>(e));
          continue;
        }
        ++load_[e];
        ++counts_[kRemappedPairs + round];
        routed_[claim.pair] = static_cast<int32_t>(e);
        std::erase(token.excess, claim.pair);
        token.moved = true;
      }
    }
    return any;
  }

  void Reweigh(int64_t t) {
    RouterScores(args_.options.score, logits_ + t * experts_, experts_,
                 scores_.data());
    T before = 0, total = 0;
    for (int64_t i = t * top_k_; i < (t + 1) * top_k_; ++i) {
      if (routed_[i] < 0) continue;
      before += weights_[i];
      total += scores_[routed_[i]];
    }
    args_.weight_sum.data<T>()[t] = before;
    for (int64_t i = t * top_k_; i < (t + 1) * top_k_; ++i) {
      if (routed_[i] >= 0) weights_[i] = before * scores_[routed_[i]] / total;
    }
  }

  const RouterOverflowArgs& args_;
  const int64_t experts_, top_k_;
  const T* const logits_;
  const T* const bias_;
  T* const weights_;
  int32_t* const routed_;
  int64_t* const counts_;
  std::vector<int64_t> load_;
  std::vector<T> scores_;
  std::vector<Token> tokens_;
};

template <typename T>
void BackwardToken(const RouterOverflowBackwardArgs& args, int64_t t,
                   std::vector<T>* scores) {
  const int64_t experts = args.logits.dim(1), top_k = args.dweights.dim(1);
  const int32_t* const ids = args.routed_ids.data<int32_t>() + t * top_k;
  T* const dweights = args.dweights.data<T>() + t * top_k;
  T* const dlogits = args.dlogits.data<T>() + t * experts;
  const T sum = args.weight_sum.data<T>()[t];
  RouterScores(args.options.score, args.logits.data<T>() + t * experts, experts,
               scores->data());
  T total = 0, weighted = 0;
  for (int64_t i = 0; i < top_k; ++i) {
    if (ids[i] < 0) continue;
    total += (*scores)[ids[i]];
    weighted += dweights[i] * (*scores)[ids[i]];
  }
  const bool softmax = args.options.score == RouterOptions::Score::kSoftmax;
  for (int64_t i = 0; i < top_k; ++i) {
    if (ids[i] >= 0) {
      // The scores' own sum cancels, so softmax needs no more than this.
      const T s = (*scores)[ids[i]];
      const T ds = sum * (dweights[i] - weighted / total) / total;
      dlogits[ids[i]] += ds * s * (softmax ? T{1} : 1 - s);
    }
    dweights[i] = 0;
  }
}

}  // namespace

int64_t RouterOverflowWorkspaceBytes(int64_t tokens, int64_t top_k,
                                     int64_t experts) {
  // A word of refusals and the candidates with their scores of each token;
  // five numbers of each pair; load and offset of each expert.
  return tokens * 8 + tokens * (top_k + kRemapRounds) * 8 +
         tokens * top_k * 20 + (2 * experts + 1) * 4;
}

absl::Status RouterOverflow(const Exec& exec, const RouterOverflowArgs& args) {
  CADRE_RETURN_IF_ERROR(CheckActivation(exec, kOp, "logits", args.logits, 2));
  const DType dtype = args.logits.dtype();
  CADRE_RETURN_IF_ERROR(CheckTensor(kOp, "ids", args.ids, DType::kI32,
                                    {args.logits.dim(0), kAnyDim}));
  const int64_t T = args.ids.dim(0), k = args.ids.dim(1);
  CADRE_RETURN_IF_ERROR(CheckOptionalTensor(kOp, "correction_bias",
                                            args.correction_bias, dtype,
                                            {args.logits.dim(1)}));
  CADRE_RETURN_IF_ERROR(
      CheckTensor(kOp, "weights", args.weights, dtype, {T, k}));
  CADRE_RETURN_IF_ERROR(
      CheckLike(kOp, "routed_ids", args.routed_ids, args.ids));
  CADRE_RETURN_IF_ERROR(
      CheckTensor(kOp, "weight_sum", args.weight_sum, dtype, {T}));
  CADRE_RETURN_IF_ERROR(CheckTensor(kOp, "counts", args.counts, DType::kI64,
                                    {kNumOverflowCounts}));
  if (args.capacity < 1 || args.policy == OverflowPolicy::kDropless) {
    return absl::InvalidArgumentError(
        absl::StrCat(kOp, ": capacity ", args.capacity,
                     " and a policy must be given; dropless routing has no "
                     "overflow"));
  }
  if (exec.backend == Backend::kCuda) {
    if (k > kMaxCudaTopK || dtype != DType::kF32) {
      return absl::InvalidArgumentError(
          absl::StrCat(kOp, ": ", k, " choices of ", DTypeName(dtype),
                       "; on CUDA at most ", kMaxCudaTopK, " of f32"));
    }
    CADRE_RETURN_IF_ERROR(
        CheckTensor(kOp, "workspace", args.workspace, DType::kU8, {kAnyDim}));
    const int64_t bytes =
        RouterOverflowWorkspaceBytes(T, k, args.logits.dim(1));
    if (args.workspace.dim(0) < bytes) {
      return absl::InvalidArgumentError(absl::StrCat(kOp, ": workspace has ",
                                                     args.workspace.dim(0),
                                                     " bytes, needs ", bytes));
    }
    return RouterOverflowCuda ? RouterOverflowCuda(exec, args)
                              : NoCudaError(kOp);
  }
  return DispatchCpu(dtype, [&](auto scalar) {
    Overflow<decltype(scalar)>(args).Run();
    return absl::OkStatus();
  });
}

absl::Status RouterOverflowBackward(const Exec& exec,
                                    const RouterOverflowBackwardArgs& args) {
  CADRE_RETURN_IF_ERROR(CheckActivation(exec, kOp, "logits", args.logits, 2));
  const DType dtype = args.logits.dtype();
  CADRE_RETURN_IF_ERROR(CheckLike(kOp, "dlogits", args.dlogits, args.logits));
  CADRE_RETURN_IF_ERROR(CheckTensor(kOp, "dweights", args.dweights, dtype,
                                    {args.logits.dim(0), kAnyDim}));
  const int64_t T = args.logits.dim(0), k = args.dweights.dim(1);
  CADRE_RETURN_IF_ERROR(
      CheckTensor(kOp, "routed_ids", args.routed_ids, DType::kI32, {T, k}));
  CADRE_RETURN_IF_ERROR(
      CheckTensor(kOp, "weight_sum", args.weight_sum, dtype, {T}));
  if (exec.backend == Backend::kCuda) {
    return RouterOverflowBackwardCuda ? RouterOverflowBackwardCuda(exec, args)
                                      : NoCudaError(kOp);
  }
  return DispatchCpu(dtype, [&](auto scalar) {
    using S = decltype(scalar);
    std::fill_n(args.dlogits.data<S>(), args.dlogits.num_elements(), S{0});
    std::vector<S> scores(args.logits.dim(1));
    for (int64_t t = 0; t < T; ++t) {
      if (args.weight_sum.data<S>()[t] >= 0) BackwardToken<S>(args, t, &scores);
    }
    return absl::OkStatus();
  });
}

}  // namespace cadre
