#ifndef CADRE_WORKER_MOE_LINK_TIERS_H_
#define CADRE_WORKER_MOE_LINK_TIERS_H_

// How far the rows of experts go: to the rank itself, over the fast links of
// its link domain, or over the network. Pure; thread-safe.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace cadre {

enum class LinkTier { kSelf, kLink, kNetwork };
inline constexpr size_t kNumLinkTiers = 3;
const char* LinkTierName(LinkTier tier);  // "self"

using TierBytes = std::array<int64_t, kNumLinkTiers>;

// The tiers of the members of `group` (world ranks), seen from world rank
// `rank`. `domains` are link domains by world rank; an unknown one, "" or
// beyond the end, is like no other: such a peer is reached over the network.
std::vector<LinkTier> LinkTiers(const std::vector<std::string>& domains,
                                const std::vector<int>& group, int rank);

}  // namespace cadre

#endif  // CADRE_WORKER_MOE_LINK_TIERS_H_
