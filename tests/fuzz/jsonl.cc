// Lines of a data set: what the reader hands out covers the file, and each line
// is a record or has an error with a place.

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "base/text/jsonl_reader.h"
#include "base/text/record.h"
#include "tests/fuzz/fuzz.h"

namespace cadre {

CADRE_FUZZ(jsonl) {
  static const int file = memfd_create("train.jsonl", 0);
  static const std::string path = absl::StrCat("/proc/self/fd/", file);
  FUZZ_CHECK(ftruncate(file, 0) == 0);
  FUZZ_CHECK(pwrite(file, input.data(), input.size(), 0) ==
             static_cast<ssize_t>(input.size()));
  const auto reader = JsonlReader::Open(path);
  FUZZ_CHECK(reader.ok());
  JsonlLine line;
  int64_t number = 0;
  while (true) {
    const auto more = (*reader)->Next(&line);
    FUZZ_CHECK(more.ok());
    if (!*more) break;
    FUZZ_CHECK(line.number == ++number);
    if (line.problem != JsonlLine::Problem::kNone) continue;
    const ParsedRecord parsed =
        ParseRecord(line.text, DataFormat::kAuto, "train.jsonl", line.number);
    FUZZ_CHECK(parsed.record.has_value() == parsed.errors.empty());
    for (const DataError& error : parsed.errors) {
      FUZZ_CHECK(error.column >= 0);
      FUZZ_CHECK(error.column <= static_cast<int64_t>(line.text.size()) + 1);
    }
    if (parsed.record && parsed.record->format == DataFormat::kChat) {
      FUZZ_CHECK(parsed.record->messages.size() ==
                 parsed.record->trained.size());
    }
  }
  FUZZ_CHECK((*reader)->position() == static_cast<int64_t>(input.size()));
}

}  // namespace cadre
