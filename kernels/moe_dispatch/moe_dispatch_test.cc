#include "kernels/moe_dispatch/moe_dispatch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "base/status_matchers.h"
#include "kernels/moe_permute/moe_permute.h"

namespace cadre {
namespace {

using ::testing::ElementsAre;

using Ints = std::vector<int32_t>;
using Floats = std::vector<float>;

Tensor View(Ints& v, std::initializer_list<int64_t> dims) {
  return Tensor(v.data(), DType::kI32, dims);
}
Tensor View(Floats& v, std::initializer_list<int64_t> dims) {
  return Tensor(v.data(), DType::kF32, dims);
}

// What MoeSlots makes of ids [T,k] with the copies of each expert.
struct Slots {
  Ints slots, ranks, choices, destinations;
};
Slots SlotsOf(Ints ids, int64_t k, const std::vector<Ints>& copies_of,
              int64_t spr, int64_t ep_rank, int64_t fan) {
  const int64_t T = static_cast<int64_t>(ids.size()) / k, n = T * k;
  const auto experts = static_cast<int64_t>(copies_of.size());
  Ints first = {0}, copies;
  for (const Ints& slots : copies_of) {
    copies.insert(copies.end(), slots.begin(), slots.end());
    first.push_back(static_cast<int32_t>(copies.size()));
  }
  Ints offsets(experts + 1), source(n), row_of(n);
  EXPECT_OK(MoePermute(Exec(), {.ids = View(ids, {T, k}),
                                .offsets = View(offsets, {experts + 1}),
                                .row_source = View(source, {n}),
                                .row_of = View(row_of, {T, k})}));
  Slots out{Ints(n), Ints(n), Ints(n), Ints(T * fan)};
  EXPECT_OK(MoeSlots(
      Exec(), {.ids = View(ids, {T, k}),
               .first_copy = View(first, {experts + 1}),
               .copies = View(copies, {static_cast<int64_t>(copies.size())}),
               .offsets = View(offsets, {experts + 1}),
               .row_of = View(row_of, {T, k}),
               .ep_rank = ep_rank,
               .slots_per_rank = spr,
               .slots = View(out.slots, {T, k}),
               .ranks = View(out.ranks, {T, k}),
               .choices = View(out.choices, {T, k}),
               .destinations = View(out.destinations, {T, fan})}));
  return out;
}

constexpr int32_t kLast = kLastPair;

TEST(MoeSlotsTest, SpreadsRowsOverCopiesByCount) {
  // 3 experts in 2 x 2 slots: expert 1 lies in slots 1 and 2.
  const std::vector<Ints> copies = {{0}, {1, 2}, {3}};
  const Ints ids = {1, 2, 1, 1, 0, -1};
  // Slots 1, 3; 2, 1; 0: on the ranks 0, 1; 1, 0; 0.
  const Slots first = SlotsOf(ids, 1, copies, 2, /*ep_rank=*/0, 1);
  EXPECT_THAT(first.ranks, ElementsAre(0, 1, 1, 0, 0, -1));
  EXPECT_THAT(first.slots, ElementsAre(1 + kLast, 1 + kLast, 0 + kLast,
                                       1 + kLast, 0 + kLast, -1));
  const Slots second = SlotsOf(ids, 1, copies, 2, /*ep_rank=*/1, 1);
  EXPECT_THAT(second.ranks, ElementsAre(1, 1, 0, 1, 0, -1));
}

TEST(MoeSlotsTest, OneRowPerTokenAndRank) {
  // Two slots a rank: token 0 has both pairs on rank 1, token 1 one on each of
  // ranks 2 and 0, token 2 is padding.
  const std::vector<Ints> copies = {{0}, {1}, {2}, {3}, {4}, {5}};
  const Slots s = SlotsOf({3, 2, 5, 0, -1, -1}, 2, copies, 2, 0, 2);
  EXPECT_THAT(s.destinations, ElementsAre(1, -1, 0, 2, -1, -1));
  EXPECT_THAT(s.ranks, ElementsAre(1, 1, 0, 2, -1, -1));
  EXPECT_THAT(s.choices, ElementsAre(1, 0, 1, 0, -1, -1));
  EXPECT_THAT(s.slots, ElementsAre(0, 1 + kLast, 0 + kLast, 1 + kLast, -1, -1));
}

TEST(MoePairsTest, WeightsTravelAndGradientsComeBack) {
  const std::vector<Ints> copies = {{0}, {1}, {2}, {3}, {4}, {5}};
  Slots s = SlotsOf({3, 2, 5, 0, -1, -1}, 2, copies, 2, 0, 2);
  // Pairs in the order of ranks: of token 1, twice of token 0, of token 1.
  Ints source = {2, 0, 1, 3, -1, -1}, pairs(8);
  Floats weights = {.1f, .2f, .3f, .4f, .5f, .6f};
  ASSERT_OK(MoePackPairs(Exec(), {.pair_source = View(source, {6}),
                                  .slots = View(s.slots, {3, 2}),
                                  .choices = View(s.choices, {3, 2}),
                                  .weights = View(weights, {3, 2}),
                                  .pairs = View(pairs, {4, 2})}));
  // As if one rank got them all: rows of 1, 2 and 1 pairs.
  Ints slots(6), places(4), workspace(1);
  Floats got(6);
  ASSERT_OK(MoeUnpackPairs(Exec(), {.pairs = View(pairs, {4, 2}),
                                    .slots_per_rank = 2,
                                    .slots = View(slots, {3, 2}),
                                    .weights = View(got, {3, 2}),
                                    .places = View(places, {4}),
                                    .workspace = View(workspace, {1})}));
  EXPECT_THAT(slots, ElementsAre(0, -1, 0, 1, 1, -1));
  EXPECT_THAT(got, ElementsAre(.4f, 0, .2f, .1f, .3f, 0));
  EXPECT_THAT(places, ElementsAre(0, 2, 3, 4));
  Floats values = {4, 2, 1, 3}, back(6, 0.f);
  ASSERT_OK(MoeScatterPairs(Exec(), {.values = View(values, {4, 1}),
                                     .pair_source = View(source, {6}),
                                     .choices = View(s.choices, {3, 2}),
                                     .weights = View(back, {3, 2})}));
  EXPECT_THAT(back, ElementsAre(1, 2, 3, 4, 0, 0));
}

TEST(MoePairsTest, RefusesWhatDoesNotFit) {
  const auto unpack = [](const Ints& words, int64_t rows, int64_t width) {
    Ints pairs, slots(rows * width), places(words.size()), workspace(1);
    for (const int32_t word : words) pairs.insert(pairs.end(), {word, 0});
    const auto n = static_cast<int64_t>(words.size());
    Floats weights(rows * width);
    return MoeUnpackPairs(Exec(), {.pairs = View(pairs, {n, 2}),
                                   .slots_per_rank = 3,
                                   .slots = View(slots, {rows, width}),
                                   .weights = View(weights, {rows, width}),
                                   .places = View(places, {n}),
                                   .workspace = View(workspace, {1})})
        .ok();
  };
  EXPECT_TRUE(unpack({0, 2 + kLast, 1 + kLast}, 2, 2));
  EXPECT_FALSE(unpack({0, 2}, 1, 2));  // no end
  EXPECT_FALSE(unpack({0 + kLast}, 2, 2));
  EXPECT_FALSE(unpack({3 + kLast}, 1, 2));
  EXPECT_FALSE(unpack({0, 1, 2 + kLast}, 1, 2));
}

TEST(MoePairsTest, NoTokens) {
  const Slots s = SlotsOf({}, 2, {{0}, {1}}, 1, 0, 2);
  EXPECT_TRUE(s.slots.empty());
  Ints none;
  Floats weights;
  EXPECT_OK(MoePackPairs(Exec(), {.pair_source = View(none, {0}),
                                  .slots = View(none, {0, 2}),
                                  .choices = View(none, {0, 2}),
                                  .weights = View(weights, {0, 2}),
                                  .pairs = View(none, {0, 2})}));
}

}  // namespace
}  // namespace cadre
