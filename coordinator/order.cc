#include "coordinator/order.h"

#include <cstdint>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/rpc/error.h"

namespace cadre::coordinator {
namespace {

// Longest name of a job, for keys of one length.
constexpr size_t kLongestName = 63;

absl::Status Wrong(absl::string_view part) {
  return Error(
      absl::StatusCode::kInvalidArgument, "ORDER_INVALID",
      absl::StrCat("order_by: '", part,
                   "' is none of create_time, priority and name, alone or "
                   "with asc or desc, each once; as in \"priority desc, "
                   "create_time\""));
}

// Bytes whose order is the number's, of one length.
std::string Digits(int64_t value) {
  return absl::StrFormat("%016x", static_cast<uint64_t>(value) ^ (1ULL << 63));
}

// The same the other way round.
std::string Inverted(std::string bytes) {
  for (char& c : bytes) {
    c = static_cast<char>(0xFF - static_cast<unsigned char>(c));
  }
  return bytes;
}

}  // namespace

absl::StatusOr<JobOrder> JobOrder::Parse(absl::string_view text) {
  std::vector<Part> parts;
  if (absl::StripAsciiWhitespace(text).empty()) return JobOrder({});
  for (const absl::string_view item : absl::StrSplit(text, ',')) {
    const std::vector<std::string> words =
        absl::StrSplit(item, absl::ByAnyChar(" \t"), absl::SkipWhitespace());
    if (words.empty() || words.size() > 2) return Wrong(item);
    Part part;
    if (words[0] == "create_time") {
      part.field = Part::Field::kCreateTime;
    } else if (words[0] == "priority") {
      part.field = Part::Field::kPriority;
    } else if (words[0] == "name") {
      part.field = Part::Field::kName;
    } else {
      return Wrong(item);
    }
    if (words.size() == 2) {
      if (words[1] != "asc" && words[1] != "desc") return Wrong(item);
      part.descending = words[1] == "desc";
    }
    for (const Part& other : parts) {
      if (other.field == part.field) return Wrong(item);
    }
    parts.push_back(part);
  }
  if (parts.size() == 1 && parts[0].field == Part::Field::kCreateTime &&
      parts[0].descending) {
    parts.clear();
  }
  return JobOrder(std::move(parts));
}

std::string JobOrder::Key(const state::v1::JobRecord& record) const {
  std::string key;
  for (const Part& part : parts_) {
    std::string bytes;
    switch (part.field) {
      case Part::Field::kCreateTime:
        // The order of creation: times of one instant cannot tell jobs apart.
        bytes = Digits(record.create_sequence());
        break;
      case Part::Field::kPriority:
        bytes = Digits(record.job().priority());
        break;
      case Part::Field::kName:
        bytes = record.job().name().substr(sizeof("jobs/") - 1);
        bytes.resize(kLongestName, '\0');
        break;
    }
    absl::StrAppend(&key, part.descending ? Inverted(bytes) : bytes);
  }
  absl::StrAppend(&key, Inverted(Digits(record.create_sequence())));
  return absl::BytesToHexString(key);
}

}  // namespace cadre::coordinator
