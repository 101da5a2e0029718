#ifndef CADRE_BASE_TEXT_JSONL_READER_H_
#define CADRE_BASE_TEXT_JSONL_READER_H_

// Reads a text file line by line in bounded memory, for JSONL data. Lines that
// are too long or not UTF-8 are reported, not fatal: the reader goes on with
// the next line. Owns the open file. Not thread-safe.
//
//   ASSIGN_OR_RETURN(auto reader, JsonlReader::Open(path));
//   JsonlLine line;
//   while (true) {
//     ASSIGN_OR_RETURN(bool more, reader->Next(&line));
//     if (!more) break;
//     ...
//   }

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace cadre {

inline constexpr int64_t kMaxJsonlLineBytes = int64_t{16} << 20;

struct JsonlLine {
  enum class Problem { kNone, kTooLong, kInvalidUtf8, kByteOrderMark };

  int64_t number = 0;  // from 1
  int64_t offset = 0;  // of the first byte in the file
  // Without the line end (\n or \r\n). Empty when too long.
  std::string text;
  Problem problem = Problem::kNone;
  int64_t problem_column = 0;  // byte in the line, from 1

  bool IsBlank() const;
};

class JsonlReader {
 public:
  static absl::StatusOr<std::unique_ptr<JsonlReader>> Open(
      const std::string& path);
  ~JsonlReader();
  JsonlReader(const JsonlReader&) = delete;
  JsonlReader& operator=(const JsonlReader&) = delete;

  // False at the end of the file. Reuses line's memory.
  absl::StatusOr<bool> Next(JsonlLine* line);

  // Bytes handed out so far.
  int64_t position() const { return position_; }

 private:
  JsonlReader(std::string path, int fd);
  absl::StatusOr<bool> Fill();

  std::string path_;
  int fd_;
  const std::unique_ptr<char[]> buffer_;
  int64_t buffer_begin_ = 0;
  int64_t buffer_end_ = 0;
  int64_t position_ = 0;
  int64_t next_line_ = 1;
  bool at_end_ = false;
};

// Expands files and globs (*, ?, [..]) into regular files: sorted within a
// glob, in the order given between them, each file once. A pattern that matches
// nothing is NOT_FOUND.
absl::StatusOr<std::vector<std::string>> ExpandDataFiles(
    const std::vector<std::string>& patterns);

}  // namespace cadre

#endif  // CADRE_BASE_TEXT_JSONL_READER_H_
