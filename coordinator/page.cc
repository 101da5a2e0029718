#include "coordinator/page.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "base/rpc/error.h"
#include "base/status_macros.h"
#include "coordinator/api_error.h"
#include "coordinator/job.h"
#include "coordinator/order.h"

namespace cadre::coordinator {
namespace {

constexpr int kDefaultPage = 50;
constexpr int kMaxPage = 1000;

std::optional<int64_t> ReadState(const std::string& value) {
  v1::JobState state;
  if (!v1::JobState_Parse("JOB_STATE_" + value, &state)) return std::nullopt;
  return state;
}

std::optional<int64_t> ReadNumber(const std::string& value) {
  int64_t number;
  if (!absl::SimpleAtoi(value, &number)) return std::nullopt;
  return number;
}

// RFC 3339, in nanoseconds.
std::optional<int64_t> ReadTime(const std::string& value) {
  absl::Time time;
  std::string error;
  if (!absl::ParseTime(absl::RFC3339_full, value, &time, &error)) {
    return std::nullopt;
  }
  return absl::ToUnixNanos(time);
}

int64_t Number(const v1::Job& job, const std::string& field) {
  if (field == "state") return job.state();
  if (field == "priority") return job.priority();
  return job.create_time().seconds() * 1'000'000'000 +
         job.create_time().nanos();
}

std::string Text(const v1::Job& job, const std::string& field) {
  if (field == "owner") return job.owner();
  if (field == "queue_reason") return job.queue_reason().code();
  const auto it = job.labels().find(field.substr(sizeof("label.") - 1));
  return it == job.labels().end() ? "" : it->second;
}

// Looks at every job that matches, so that the order may be any.
absl::StatusOr<v1::ListJobsResponse> ListOrdered(
    const JobTable& table, const v1::ListJobsRequest& request,
    const JobFilter& filter, const JobOrder& order, const std::string& query,
    int size) {
  std::string after;
  if (!request.page_token().empty()) {
    CADRE_ASSIGN_OR_RETURN(after, ReadPageToken(request.page_token(), query));
  }
  std::vector<std::pair<std::string, RecordPtr>> found;
  table.Visit(std::numeric_limits<int64_t>::max(),
              [&](const RecordPtr& record) {
                if (filter.Matches(record->job()))
                  found.emplace_back("", record);
                return true;
              });
  for (auto& [key, record] : found) key = order.Key(*record);
  std::erase_if(found, [&](const auto& item) { return item.first <= after; });
  const auto end = found.begin() +
                   std::min<int64_t>(size, static_cast<int64_t>(found.size()));
  std::partial_sort(found.begin(), end, found.end());
  v1::ListJobsResponse response;
  for (auto item = found.begin(); item != end; ++item) {
    *response.add_jobs() =
        table.View(*item->second, request.view() == v1::JOB_VIEW_FULL);
  }
  if (end != found.end()) {
    response.set_next_page_token(MakePageToken(std::prev(end)->first, query));
  }
  return response;
}

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
  static const auto* const kFields = new Filter::Fields{
      .text = {"owner", "queue_reason", "label."},
      .ordered = {{"state", ReadState},
                  {"priority", ReadNumber},
                  {"create_time", ReadTime}},
      .all =
          "state, owner, priority, label.KEY, create_time (as "
          "2026-11-30T12:00:00Z), queue_reason"};
  CADRE_ASSIGN_OR_RETURN(Filter filter, Filter::Parse(text, *kFields));
  return JobFilter(std::move(filter));
}

bool JobFilter::Matches(const v1::Job& job) const {
  return filter_.Matches(
      [&job](const std::string& field) { return Text(job, field); },
      [&job](const std::string& field) { return Number(job, field); });
}

absl::StatusOr<v1::ListJobsResponse> ListJobs(
    const JobTable& table, const v1::ListJobsRequest& request) {
  CADRE_ASSIGN_OR_RETURN(const int size, PageSize(request.page_size()));
  CADRE_ASSIGN_OR_RETURN(const JobFilter filter,
                         JobFilter::Parse(request.filter()));
  CADRE_ASSIGN_OR_RETURN(const JobOrder order,
                         JobOrder::Parse(request.order_by()));
  const std::string query =
      absl::StrCat("jobs ", request.filter(), "\n", request.order_by());
  if (!order.is_newest_first()) {
    return ListOrdered(table, request, filter, order, query, size);
  }
  int64_t before = std::numeric_limits<int64_t>::max();
  if (!request.page_token().empty()) {
    CADRE_ASSIGN_OR_RETURN(const std::string position,
                           ReadPageToken(request.page_token(), query));
    if (!absl::SimpleAtoi(position, &before)) {
      return ReadPageToken("", query).status();
    }
  }
  std::vector<RecordPtr> page;
  bool more = false;
  table.Visit(before, [&](const RecordPtr& record) {
    if (!filter.Matches(record->job())) return true;
    more = static_cast<int>(page.size()) == size;
    if (!more) page.push_back(record);
    return !more;
  });
  v1::ListJobsResponse response;
  for (const RecordPtr& record : page) {
    *response.add_jobs() =
        table.View(*record, request.view() == v1::JOB_VIEW_FULL);
  }
  if (more) {
    response.set_next_page_token(
        MakePageToken(absl::StrCat(page.back()->create_sequence()), query));
  }
  return response;
}

absl::StatusOr<v1::ListCheckpointsResponse> ListCheckpoints(
    const JobTable& table, const v1::ListCheckpointsRequest& request) {
  const RecordPtr record = table.Find(JobId(request.parent()));
  if (record == nullptr) return NoSuchJob(request.parent());
  CADRE_ASSIGN_OR_RETURN(const int size, PageSize(request.page_size()));
  const std::string query = absl::StrCat("checkpoints ", request.parent());
  int64_t before = std::numeric_limits<int64_t>::max();
  if (!request.page_token().empty()) {
    CADRE_ASSIGN_OR_RETURN(const std::string position,
                           ReadPageToken(request.page_token(), query));
    if (!absl::SimpleAtoi(position, &before)) {
      return ReadPageToken("", query).status();
    }
  }
  v1::ListCheckpointsResponse response;
  for (int i = record->checkpoints_size() - 1; i >= 0; --i) {
    const v1::Checkpoint& checkpoint = record->checkpoints(i);
    if (checkpoint.step() >= before) continue;
    if (response.checkpoints_size() == size) {
      response.set_next_page_token(MakePageToken(
          absl::StrCat(response.checkpoints(size - 1).step()), query));
      break;
    }
    *response.add_checkpoints() = checkpoint;
  }
  return response;
}

}  // namespace cadre::coordinator
