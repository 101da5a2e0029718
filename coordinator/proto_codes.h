#ifndef CADRE_COORDINATOR_PROTO_CODES_H_
#define CADRE_COORDINATOR_PROTO_CODES_H_

// The status codes and reasons that the comments of a .proto file promise, by
// method: what status_codes_test.cc holds the server to. Test code; pure.

#include <cctype>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace cadre::coordinator {

// "NOT_FOUND" and "FAILED_PRECONDITION JOB_STATE": a code, with a reason where
// the comment gives one. Both the bare code and each reason are listed.
using CodesByMethod = std::map<std::string, std::set<std::string>>;

inline const std::set<std::string>& GrpcCodes() {
  static const auto* const kCodes = new std::set<std::string>{
      "CANCELLED",           "INVALID_ARGUMENT", "DEADLINE_EXCEEDED",
      "NOT_FOUND",           "ALREADY_EXISTS",   "PERMISSION_DENIED",
      "RESOURCE_EXHAUSTED",  "ABORTED",          "OUT_OF_RANGE",
      "FAILED_PRECONDITION", "UNIMPLEMENTED",    "INTERNAL",
      "UNAVAILABLE",         "DATA_LOSS",        "UNAUTHENTICATED"};
  return *kCodes;
}

// A word of capitals names the code, or the reason of the last code, unless it
// has no underscore and is none: "OK", "NOW". The words of a sentence "Codes as
// for X" are replaced by X's codes.
inline CodesByMethod DocumentedCodes(const std::string& proto) {
  CodesByMethod codes;
  std::istringstream lines(proto);
  std::vector<std::string> words;
  std::string last_code;
  bool in_service = false;
  for (std::string line; std::getline(lines, line);) {
    const size_t begin = line.find_first_not_of(' ');
    const std::string text =
        begin == std::string::npos ? "" : line.substr(begin);
    if (text.rfind("service ", 0) == 0) in_service = true;
    if (text == "}") in_service = false;
    if (!in_service) continue;
    if (text.rfind("//", 0) == 0) {
      std::string word;
      for (const char c : text + " ") {
        if (std::isalnum(static_cast<unsigned char>(c)) || c == '_') {
          word += c;
        } else if (!word.empty()) {
          words.push_back(std::exchange(word, ""));
        }
      }
      continue;
    }
    if (text.rfind("rpc ", 0) == 0) {
      const std::string method = text.substr(4, text.find('(') - 4);
      std::set<std::string>& own = codes[method];
      last_code.clear();
      for (size_t i = 0; i < words.size(); ++i) {
        const std::string& word = words[i];
        if (i >= 2 && words[i - 2] == "as" && words[i - 1] == "for") {
          own.insert(codes[word].begin(), codes[word].end());
        }
        if (GrpcCodes().contains(word)) {
          last_code = word;
          own.insert(word);
          continue;
        }
        bool capitals = word.find('_') != std::string::npos || word == "BUG" ||
                        word == "DRAINING";
        for (const char c : word) {
          capitals = capitals &&
                     (c == '_' || std::isupper(static_cast<unsigned char>(c)));
        }
        if (capitals && !last_code.empty()) own.insert(last_code + " " + word);
      }
    }
    words.clear();
  }
  return codes;
}

}  // namespace cadre::coordinator

#endif  // CADRE_COORDINATOR_PROTO_CODES_H_
