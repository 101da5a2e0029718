#include "worker/moe/link_tiers.h"

namespace cadre {

const char* LinkTierName(LinkTier tier) {
  static constexpr const char* kNames[kNumLinkTiers] = {"self", "link",
                                                        "network"};
  return kNames[static_cast<size_t>(tier)];
}

std::vector<LinkTier> LinkTiers(const std::vector<std::string>& domains,
                                const std::vector<int>& group, int rank) {
  const auto domain = [&domains](int r) {
    return static_cast<size_t>(r) < domains.size() ? domains[r] : std::string();
  };
  const std::string own = domain(rank);
  std::vector<LinkTier> tiers;
  for (const int peer : group) {
    if (peer == rank) {
      tiers.push_back(LinkTier::kSelf);
    } else if (!own.empty() && domain(peer) == own) {
      tiers.push_back(LinkTier::kLink);
    } else {
      tiers.push_back(LinkTier::kNetwork);
    }
  }
  return tiers;
}

}  // namespace cadre
