#ifndef CADRE_TESTS_FUZZ_FUZZ_H_
#define CADRE_TESTS_FUZZ_FUZZ_H_

// Parsers of bytes that come from outside, one file each: a file defines what
// is done with an input and registers it under a name. All link into the replay
// test (replay_test.cc) and into libFuzzer's program (libfuzzer.cc).
//
//   CADRE_FUZZ(json) { ParseJsonDetailed(input); }
//
// A target aborts (FUZZ_CHECK) where a promise of the parser is broken;
// crashes, sanitizer reports and slowness are found by the driver.

#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include "absl/strings/string_view.h"

namespace cadre::fuzz {

using Target = void (*)(absl::string_view input);

// By name; complete once main runs.
inline std::map<std::string, Target>& Targets() {
  static auto* targets = new std::map<std::string, Target>;
  return *targets;
}

struct Registration {
  Registration(const char* name, Target target) { Targets()[name] = target; }
};

}  // namespace cadre::fuzz

#define CADRE_FUZZ(name)                                                      \
  static void Fuzz_##name(absl::string_view input);                           \
  static const ::cadre::fuzz::Registration kFuzz_##name(#name, &Fuzz_##name); \
  static void Fuzz_##name(absl::string_view input)

#define FUZZ_CHECK(condition)                                               \
  do {                                                                      \
    if (!(condition)) {                                                     \
      std::fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, \
                   #condition);                                             \
      std::abort();                                                         \
    }                                                                       \
  } while (false)

#endif  // CADRE_TESTS_FUZZ_FUZZ_H_
