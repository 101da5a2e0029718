#include "tests/fuzz/mutate.h"

#include <algorithm>
#include <iterator>
#include <random>

namespace cadre::fuzz {
namespace {

constexpr size_t kMaxBytes = 64 * 1024;

// Where parsers differ: limits, nesting, escapes, names that mean something.
constexpr const char* kWords[] = {"0",
                                  "-1",
                                  "1e999",
                                  "9223372036854775807",
                                  "-9223372036854775808",
                                  "1e-9",
                                  "2147483648",
                                  "[",
                                  "]",
                                  "{",
                                  "}",
                                  "\"",
                                  ":",
                                  ",",
                                  "null",
                                  "true",
                                  "nan",
                                  "[[[[[[[[[[",
                                  "{{",
                                  "}}",
                                  "{%",
                                  "%}",
                                  "\n",
                                  "\t",
                                  "\r\n",
                                  "\\u0000",
                                  "\\ud800",
                                  "\xF0\x9F\x98\x80",
                                  "\xC0\x80",
                                  "\xEF\xBB\xBF",
                                  "- ",
                                  "? ",
                                  "&a ",
                                  "*a",
                                  "!!",
                                  "---\n",
                                  "..",
                                  "/",
                                  "(",
                                  "(a+)+$",
                                  "\\p{L}",
                                  "data_offsets",
                                  "shape",
                                  "| ",
                                  "range(9999999)",
                                  "loop.",
                                  "namespace("};

}  // namespace

std::string Mutate(const std::vector<std::string>& seeds, uint64_t number) {
  std::mt19937_64 random(number);
  // The library's distributions differ from one library to the next.
  const auto below = [&random](size_t n) -> size_t {
    return n == 0 ? 0 : static_cast<size_t>(random() % n);
  };
  std::string text = seeds[below(seeds.size())];
  for (size_t changes = 1 + below(8); changes > 0; --changes) {
    const size_t at = below(text.size() + 1);
    const size_t length = std::min(text.size() - at, 1 + below(16));
    switch (below(8)) {
      case 0:
        if (at < text.size()) text[at] ^= static_cast<char>(1 << below(8));
        break;
      case 1:
        if (at < text.size()) text[at] = static_cast<char>(below(256));
        break;
      case 2:
        text.erase(at, length);
        break;
      case 3: {
        const std::string piece = text.substr(at, length);
        for (size_t times = 1 + below(64); times > 0; --times) {
          text.insert(at, piece);
        }
        break;
      }
      case 4:
        text.insert(at, kWords[below(std::size(kWords))]);
        break;
      case 5:
        text.replace(at, length, kWords[below(std::size(kWords))]);
        break;
      case 6:
        if (below(4) == 0) text.resize(at);
        break;
      default: {
        const std::string& other = seeds[below(seeds.size())];
        text.replace(at, below(text.size() - at + 1),
                     other.substr(below(other.size() + 1), below(256)));
      }
    }
    if (text.size() > kMaxBytes) text.resize(kMaxBytes);
  }
  return text;
}

}  // namespace cadre::fuzz
