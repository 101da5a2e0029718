#include "base/text/jsonl_reader.h"

#include <fcntl.h>
#include <glob.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/text/utf8.h"

namespace cadre {
namespace {

constexpr int64_t kBufferBytes = int64_t{1} << 20;
constexpr char kByteOrderMark[] = "\xEF\xBB\xBF";

}  // namespace

bool JsonlLine::IsBlank() const {
  return problem == Problem::kNone &&
         std::all_of(text.begin(), text.end(),
                     [](char c) { return c == ' ' || c == '\t' || c == '\r'; });
}

JsonlReader::JsonlReader(std::string path, int fd)
    : path_(std::move(path)), fd_(fd), buffer_(new char[kBufferBytes]) {}

JsonlReader::~JsonlReader() { close(fd_); }

absl::StatusOr<std::unique_ptr<JsonlReader>> JsonlReader::Open(
    const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    const std::string message =
        absl::StrCat("cannot open ", path, ": ", std::strerror(errno));
    return errno == ENOENT ? absl::NotFoundError(message)
                           : absl::UnavailableError(message);
  }
  return std::unique_ptr<JsonlReader>(new JsonlReader(path, fd));
}

absl::StatusOr<bool> JsonlReader::Fill() {
  if (buffer_begin_ < buffer_end_) return true;
  if (at_end_) return false;
  ssize_t size = 0;
  do {
    size = read(fd_, buffer_.get(), kBufferBytes);
  } while (size < 0 && errno == EINTR);
  if (size < 0) {
    return absl::UnavailableError(absl::StrCat("cannot read ", path_,
                                               " at byte ", position_, ": ",
                                               std::strerror(errno)));
  }
  buffer_begin_ = 0;
  buffer_end_ = size;
  at_end_ = size == 0;
  return size > 0;
}

absl::StatusOr<bool> JsonlReader::Next(JsonlLine* line) {
  line->text.clear();
  line->problem = JsonlLine::Problem::kNone;
  line->problem_column = 0;
  line->offset = position_;
  bool any = false;
  bool too_long = false;
  bool ended = false;
  while (!ended) {
    CADRE_ASSIGN_OR_RETURN(const bool more, Fill());
    if (!more) break;
    any = true;
    const char* begin = buffer_.get() + buffer_begin_;
    const int64_t available = buffer_end_ - buffer_begin_;
    const void* newline = std::memchr(begin, '\n', available);
    ended = newline != nullptr;
    const int64_t part =
        ended ? static_cast<const char*>(newline) - begin : available;
    if (static_cast<int64_t>(line->text.size()) + part > kMaxJsonlLineBytes) {
      too_long = true;
      line->text.clear();
    }
    if (!too_long) line->text.append(begin, part);
    const int64_t taken = part + (ended ? 1 : 0);
    buffer_begin_ += taken;
    position_ += taken;
  }
  if (!any) return false;
  line->number = next_line_++;
  if (too_long) {
    line->problem = JsonlLine::Problem::kTooLong;
    return true;
  }
  if (!line->text.empty() && line->text.back() == '\r') line->text.pop_back();
  if (line->number == 1 && absl::StartsWith(line->text, kByteOrderMark)) {
    line->problem = JsonlLine::Problem::kByteOrderMark;
    line->problem_column = 1;
  } else if (const int64_t invalid = FindInvalidUtf8(line->text);
             invalid >= 0) {
    line->problem = JsonlLine::Problem::kInvalidUtf8;
    line->problem_column = invalid + 1;
  }
  return true;
}

absl::StatusOr<std::vector<std::string>> ExpandDataFiles(
    const std::vector<std::string>& patterns) {
  std::vector<std::string> files;
  const auto add = [&](const std::string& path) {
    if (std::find(files.begin(), files.end(), path) == files.end()) {
      files.push_back(path);
    }
  };
  const auto is_file = [](const std::string& path) {
    struct stat info;
    return stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode);
  };
  for (const std::string& pattern : patterns) {
    // A file whose name holds a bracket or a star is meant by that name.
    if (is_file(pattern)) {
      add(pattern);
      continue;
    }
    glob_t found;
    const int rc = glob(pattern.c_str(), GLOB_ERR, nullptr, &found);
    std::vector<std::string> matches;
    if (rc == 0)
      matches.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
    globfree(&found);
    if (rc != 0 && rc != GLOB_NOMATCH) {
      return absl::UnavailableError(
          absl::StrCat("cannot list the files of `", pattern,
                       "`: a folder cannot be read, or there are too many"));
    }
    bool any = false;
    for (const std::string& match : matches) {
      if (!is_file(match)) continue;
      any = true;
      add(match);
    }
    if (!any) {
      return absl::NotFoundError(
          absl::StrCat("no data file matches `", pattern, "`"));
    }
  }
  return files;
}

}  // namespace cadre
