// Every parser with its corpus and some thousand seeded mutations of it, fast
// enough for each change. run.sh searches deeper.
//
//   bazel test //tests/fuzz:replay_test --test_env=CADRE_FUZZ_SEED=7
//       --test_env=CADRE_FUZZ_MUTATIONS=1000000 --test_filter='*yaml*'
//
// What fails is written to the test's outputs, to be put in the corpus.

#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/mutate.h"

namespace cadre::fuzz {
namespace {

// Of the processor, whatever else the machine does: much more than any input of
// a few KiB takes.
constexpr double kSlowSeconds = 5;

// The input under way, for the handler of a crash.
std::string* current = nullptr;
std::string* found_path = nullptr;

void SaveInput() {
  std::ofstream(*found_path, std::ios::binary) << *current;
  std::fprintf(stderr, "the input is in %s\n", found_path->c_str());
}

// Good enough for a test that is over: it allocates in a signal handler.
extern "C" void OnCrash(int number) {
  SaveInput();
  std::signal(number, SIG_DFL);
  std::raise(number);
}

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  uint64_t value = otherwise;
  if (text != nullptr) {
    EXPECT_TRUE(absl::SimpleAtoi(text, &value)) << name;
  }
  return value;
}

std::vector<std::string> Corpus(const std::string& name) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(
           absl::StrCat("tests/fuzz/corpus/", name))) {
    paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());  // mutations depend on the order
  std::vector<std::string> corpus;
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(file),
                        std::istreambuf_iterator<char>());
  }
  return corpus;
}

class Replay : public ::testing::TestWithParam<std::string> {
 protected:
  void Run(const std::string& input) {
    *current = input;
    const std::clock_t begun = std::clock();
    Targets().at(GetParam())(*current);
    const double seconds =
        static_cast<double>(std::clock() - begun) / CLOCKS_PER_SEC;
    if (seconds < kSlowSeconds) return;
    SaveInput();
    FAIL() << "took " << seconds << " s of the processor";
  }
};

TEST_P(Replay, SurvivesItsCorpusAndMutations) {
  const char* outputs = std::getenv("TEST_UNDECLARED_OUTPUTS_DIR");
  current = new std::string;
  found_path = new std::string(
      absl::StrCat(outputs == nullptr ? ::testing::TempDir() : outputs,
                   "/found-", GetParam()));
  for (const int number : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE}) {
    std::signal(number, OnCrash);
  }
  const std::vector<std::string> corpus = Corpus(GetParam());
  ASSERT_FALSE(corpus.empty());
  Run("");
  for (const std::string& input : corpus) Run(input);
  const uint64_t seed = FromEnvironment("CADRE_FUZZ_SEED", 1);
  const uint64_t mutations = FromEnvironment("CADRE_FUZZ_MUTATIONS", 3000);
  for (uint64_t i = 0; i < mutations && !HasFatalFailure(); ++i) {
    Run(Mutate(corpus, seed * 1'000'000'007 + i));
  }
}

std::vector<std::string> Names() {
  std::vector<std::string> names;
  for (const auto& [name, target] : Targets()) names.push_back(name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Parser, Replay, ::testing::ValuesIn(Names()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace cadre::fuzz
