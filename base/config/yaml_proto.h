#ifndef CADRE_BASE_CONFIG_YAML_PROTO_H_
#define CADRE_BASE_CONFIG_YAML_PROTO_H_

// YAML into any protobuf message, by its descriptor: a key is a field name.
// Strict: unknown key (with the nearest name), duplicate key, wrong type, tab
// indentation, alias, anchor, tag, second document, more than 8 levels or 256
// KiB are errors with line and column, and all of them are found in one pass.
//
//   cadre::v1::JobSpec spec;
//   YamlMarks marks;
//   cadre::v1::Diagnostics diagnostics;
//   if (!ParseYaml(text, &spec, &marks, &diagnostics)) { ...print... }
//
// Values: booleans are true and false only; `auto` leaves an optional field
// unset; integer fields whose name ends in _bytes take 80GiB, 512MiB, 64KiB.
// Thread-safe: no state.

#include <map>
#include <string>

#include "absl/strings/string_view.h"
#include "cadre/v1/diagnostics.pb.h"

namespace google::protobuf {
class Message;
}

namespace cadre {

struct YamlMark {
  int line = 0;    // 1-based
  int column = 0;  // 1-based
};

// Where each field of the message was written: "training.epochs",
// "data.train[0]", "labels.team".
using YamlMarks = std::map<std::string, YamlMark, std::less<>>;

// Largest text ParseYaml takes, in bytes.
inline constexpr int kMaxYamlBytes = 256 * 1024;

// Fills `message` and `marks`; appends what is wrong to `diagnostics`. True if
// nothing was. After false `message` holds what could be read.
bool ParseYaml(absl::string_view yaml, google::protobuf::Message* message,
               YamlMarks* marks, cadre::v1::Diagnostics* diagnostics);

// Gives each finding that names a field but no line the place of that field, or
// of the nearest enclosing one that was written; then sorts by place and cuts
// the list to `max_items` (total keeps the full count).
void PlaceDiagnostics(const YamlMarks& marks, int max_items,
                      cadre::v1::Diagnostics* diagnostics);

// The candidate closest to `name` (edit distance), or "" if none is near.
// Candidates: any range of strings.
template <typename Range>
std::string NearestName(absl::string_view name, const Range& candidates);

// Number of single-character edits between a and b.
int EditDistance(absl::string_view a, absl::string_view b);

template <typename Range>
std::string NearestName(absl::string_view name, const Range& candidates) {
  std::string best;
  int best_distance = 1 + static_cast<int>(name.size()) / 3;
  for (const auto& candidate : candidates) {
    const int distance = EditDistance(name, candidate);
    if (distance <= best_distance &&
        (best.empty() || distance < best_distance)) {
      best = std::string(candidate);
      best_distance = distance;
    }
  }
  return best;
}

}  // namespace cadre

#endif  // CADRE_BASE_CONFIG_YAML_PROTO_H_
