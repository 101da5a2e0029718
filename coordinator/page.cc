#include "coordinator/page.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/rpc/error.h"
#include "base/status_macros.h"
#include "coordinator/job.h"

namespace cadre::coordinator {
namespace {

constexpr int kDefaultPage = 50;
constexpr int kMaxPage = 1000;

absl::Status FilterError(size_t column, const std::string& message) {
  return Error(absl::StatusCode::kInvalidArgument, "FILTER_INVALID",
               absl::StrCat("filter, column ", column + 1, ": ", message));
}

bool Compare(int order, auto op) {
  using Op = decltype(op);
  switch (op) {
    case Op::kEq:
      return order == 0;
    case Op::kNe:
      return order != 0;
    case Op::kLt:
      return order < 0;
    case Op::kLe:
      return order <= 0;
    case Op::kGt:
      return order > 0;
    case Op::kGe:
      return order >= 0;
  }
  return false;
}

int Order(int64_t a, int64_t b) { return a < b ? -1 : a > b ? 1 : 0; }

// Walks over the text; positions are byte offsets.
struct Scanner {
  absl::string_view text;
  size_t at = 0;

  void SkipSpace() {
    while (at < text.size() && absl::ascii_isspace(text[at])) ++at;
  }
  absl::string_view Word() {
    const size_t begin = at;
    while (at < text.size() &&
           (absl::ascii_isalnum(text[at]) ||
            absl::StrContains("_-.:/+", absl::string_view(&text[at], 1)))) {
      ++at;
    }
    return text.substr(begin, at - begin);
  }
  absl::string_view Operator() {
    const size_t begin = at;
    while (at < text.size() && at - begin < 2 &&
           absl::StrContains("=!<>", absl::string_view(&text[at], 1))) {
      ++at;
    }
    return text.substr(begin, at - begin);
  }
};

}  // namespace

absl::StatusOr<int> PageSize(int32_t requested) {
  if (requested < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("page_size is ", requested, "; it must not be negative"));
  }
  return requested == 0 ? kDefaultPage : std::min(requested, kMaxPage);
}

std::string MakePageToken(absl::string_view position, absl::string_view query) {
  return absl::WebSafeBase64Escape(absl::StrCat(position, "\n", query));
}

absl::StatusOr<std::string> ReadPageToken(absl::string_view token,
                                          absl::string_view query) {
  std::string text;
  if (absl::WebSafeBase64Unescape(token, &text)) {
    const std::pair<std::string, std::string> parts =
        absl::StrSplit(text, absl::MaxSplits('\n', 1));
    if (parts.second == query && absl::StrContains(text, "\n")) {
      return parts.first;
    }
  }
  return Error(absl::StatusCode::kInvalidArgument, "PAGE_TOKEN_INVALID",
               "page_token is not one that this query returned: repeat the "
               "query without it");
}

absl::StatusOr<JobFilter> JobFilter::Parse(absl::string_view text) {
  JobFilter filter;
  Scanner scan{text};
  scan.SkipSpace();
  while (scan.at < text.size()) {
    if (!filter.terms_.empty()) {
      const size_t begin = scan.at;
      if (scan.Word() != "AND") return FilterError(begin, "expected AND");
      scan.SkipSpace();
    }
    Term term;
    const size_t field_at = scan.at;
    term.field = std::string(scan.Word());
    if (term.field != "state" && term.field != "owner" &&
        term.field != "priority" && term.field != "create_time" &&
        term.field != "queue_reason" &&
        !(absl::StartsWith(term.field, "label.") && term.field.size() > 6)) {
      return FilterError(field_at,
                         absl::StrCat("unknown field '", term.field,
                                      "'; use state, owner, priority, "
                                      "label.KEY, create_time, queue_reason"));
    }
    scan.SkipSpace();
    const size_t op_at = scan.at;
    const absl::string_view op = scan.Operator();
    if (op == "=") {
      term.op = Op::kEq;
    } else if (op == "!=") {
      term.op = Op::kNe;
    } else if (op == "<") {
      term.op = Op::kLt;
    } else if (op == "<=") {
      term.op = Op::kLe;
    } else if (op == ">") {
      term.op = Op::kGt;
    } else if (op == ">=") {
      term.op = Op::kGe;
    } else {
      return FilterError(op_at, "expected =, !=, <, <=, > or >=");
    }
    scan.SkipSpace();
    const size_t value_at = scan.at;
    if (scan.at < text.size() && text[scan.at] == '"') {
      const size_t end = text.find('"', scan.at + 1);
      if (end == absl::string_view::npos) {
        return FilterError(value_at, "the quoted value does not end");
      }
      term.value = std::string(text.substr(scan.at + 1, end - scan.at - 1));
      scan.at = end + 1;
    } else {
      term.value = std::string(scan.Word());
      if (term.value.empty()) return FilterError(value_at, "expected a value");
    }
    if (term.field == "state") {
      v1::JobState state;
      if (!v1::JobState_Parse(absl::StrCat("JOB_STATE_", term.value), &state)) {
        return FilterError(value_at,
                           absl::StrCat("unknown state '", term.value, "'"));
      }
      term.number = state;
    } else if (term.field == "priority") {
      if (!absl::SimpleAtoi(term.value, &term.number)) {
        return FilterError(value_at, "a priority is a whole number");
      }
    } else if (term.field == "create_time") {
      absl::Time time;
      std::string error;
      if (!absl::ParseTime(absl::RFC3339_full, term.value, &time, &error)) {
        return FilterError(value_at,
                           "a time is written as 2026-11-30T12:00:00Z");
      }
      term.number = absl::ToUnixNanos(time);
    } else if (term.op != Op::kEq && term.op != Op::kNe) {
      return FilterError(op_at,
                         absl::StrCat(term.field, " takes = and != only"));
    }
    filter.terms_.push_back(std::move(term));
    scan.SkipSpace();
  }
  return filter;
}

bool JobFilter::Matches(const v1::Job& job) const {
  return std::all_of(terms_.begin(), terms_.end(), [&job](const Term& term) {
    if (term.field == "state") {
      return Compare(Order(job.state(), term.number), term.op);
    }
    if (term.field == "priority") {
      return Compare(Order(job.priority(), term.number), term.op);
    }
    if (term.field == "create_time") {
      return Compare(Order(job.create_time().seconds() * 1'000'000'000 +
                               job.create_time().nanos(),
                           term.number),
                     term.op);
    }
    std::string value;
    if (term.field == "owner") {
      value = job.owner();
    } else if (term.field == "queue_reason") {
      value = job.queue_reason().code();
    } else {
      const auto it = job.labels().find(term.field.substr(6));
      if (it != job.labels().end()) value = it->second;
    }
    return Compare(value.compare(term.value), term.op);
  });
}

absl::StatusOr<v1::ListJobsResponse> ListJobs(
    const JobTable& table, const v1::ListJobsRequest& request) {
  CADRE_ASSIGN_OR_RETURN(const int size, PageSize(request.page_size()));
  CADRE_ASSIGN_OR_RETURN(const JobFilter filter,
                         JobFilter::Parse(request.filter()));
  const std::string query = absl::StrCat("jobs ", request.filter());
  int64_t before = std::numeric_limits<int64_t>::max();
  if (!request.page_token().empty()) {
    CADRE_ASSIGN_OR_RETURN(const std::string position,
                           ReadPageToken(request.page_token(), query));
    if (!absl::SimpleAtoi(position, &before)) {
      return ReadPageToken("", query).status();
    }
  }
  v1::ListJobsResponse response;
  int64_t last = 0;
  for (const RecordPtr& record : table.All()) {
    if (record->create_sequence() >= before || !filter.Matches(record->job())) {
      continue;
    }
    if (response.jobs_size() == size) {
      response.set_next_page_token(MakePageToken(absl::StrCat(last), query));
      break;
    }
    *response.add_jobs() =
        table.View(*record, request.view() == v1::JOB_VIEW_FULL);
    last = record->create_sequence();
  }
  return response;
}

}  // namespace cadre::coordinator
