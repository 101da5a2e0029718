#ifndef CADRE_TESTS_FUZZ_MUTATE_H_
#define CADRE_TESTS_FUZZ_MUTATE_H_

// Blind mutations of a corpus, the same for the same seed on every machine.
// Pure.

#include <cstdint>
#include <string>
#include <vector>

namespace cadre::fuzz {

// One to eight changes to one of the seeds: bytes flipped, set, removed and
// repeated; words of the formats put in; ends cut off; halves of two seeds
// joined. `seeds` is not empty.
std::string Mutate(const std::vector<std::string>& seeds, uint64_t number);

}  // namespace cadre::fuzz

#endif  // CADRE_TESTS_FUZZ_MUTATE_H_
