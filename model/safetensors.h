#ifndef CADRE_MODEL_SAFETENSORS_H_
#define CADRE_MODEL_SAFETENSORS_H_

// safetensors files: 8-byte little-endian header length, JSON header, data.
//
// SafetensorsFile maps a file read-only and validates its whole header before
// anything is read: sizes, bounds, overlaps, gaps, names. Movable; thread-safe
// to read. Spans live as long as the file object. A file that is truncated
// while it is mapped kills the process (SIGBUS), as with every mmap.
//
// SafetensorsWriter streams tensors in the declared order into a temporary file
// beside the target and renames it into place on Commit. One thread.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/common/dtype.h"

namespace cadre {

struct SafetensorInfo {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  int64_t begin = 0;  // byte range inside the data part; set by the reader
  int64_t end = 0;

  int64_t num_elements() const;
  int64_t num_bytes() const { return num_elements() * SizeOf(dtype); }
  // "F32 [160, 48]"
  std::string DebugString() const;
};

// Name of a dtype in a safetensors header: "F32", "BF16", "F8_E4M3", ...
const char* SafetensorsDTypeName(DType dtype);

// "[160, 48]"
std::string ShapeString(absl::Span<const int64_t> shape);

class SafetensorsFile {
 public:
  // DATA_LOSS for a malformed or truncated file, NOT_FOUND, PERMISSION_DENIED;
  // the message names the file and, where there is one, the tensor.
  static absl::StatusOr<SafetensorsFile> Open(const std::string& path);

  SafetensorsFile(SafetensorsFile&&) noexcept = default;
  SafetensorsFile& operator=(SafetensorsFile&&) noexcept = default;

  const std::string& path() const { return path_; }
  // In the order of their data.
  const std::vector<SafetensorInfo>& tensors() const { return tensors_; }
  // Null when there is none.
  const SafetensorInfo* Find(absl::string_view name) const;
  absl::Span<const char> Bytes(const SafetensorInfo& info) const;
  const std::map<std::string, std::string>& metadata() const {
    return metadata_;
  }
  // Length prefix and JSON as stored.
  absl::Span<const char> header() const;
  int64_t file_bytes() const { return file_bytes_; }

 private:
  SafetensorsFile() = default;

  struct Unmap {
    Unmap() : size(0) {}
    explicit Unmap(int64_t bytes) : size(bytes) {}
    int64_t size;
    void operator()(const char* data) const;
  };
  std::string path_;
  std::unique_ptr<const char, Unmap> data_;
  int64_t file_bytes_ = 0;
  int64_t header_bytes_ = 0;  // with the length prefix
  std::vector<SafetensorInfo> tensors_;
  std::map<std::string, int64_t, std::less<>> by_name_;
  std::map<std::string, std::string> metadata_;
};

// Parses and validates a header; `data_bytes` is the size of what follows it.
// The part of SafetensorsFile that sees untrusted bytes. Errors name no file.
struct SafetensorsHeader {
  std::vector<SafetensorInfo> tensors;
  std::map<std::string, std::string> metadata;
};
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::string_view json,
                                                         int64_t data_bytes);

class SafetensorsWriter {
 public:
  // `tensors` in the order in which they will be written; begin/end are set
  // here. Metadata always gets {"format": "pt"}.
  static absl::StatusOr<std::unique_ptr<SafetensorsWriter>> Create(
      const std::string& path, std::vector<SafetensorInfo> tensors,
      std::map<std::string, std::string> metadata = {});
  // Removes the temporary file unless Commit succeeded.
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  // The next bytes of the next tensor. A tensor may come in several pieces, but
  // never two tensors in one.
  absl::Status Append(absl::string_view name, absl::Span<const char> bytes);
  // fsync, rename, fsync of the directory. FAILED_PRECONDITION if a tensor is
  // missing or incomplete.
  absl::Status Commit();

 private:
  SafetensorsWriter() = default;
  absl::Status WriteAll(absl::Span<const char> bytes);

  std::string path_, temporary_;
  int fd_ = -1;
  std::vector<SafetensorInfo> tensors_;
  size_t next_ = 0;      // tensor being written
  int64_t written_ = 0;  // of it
};

// Sorts as the Hugging Face writer does: wider dtypes first, then by name.
void SortForSafetensors(std::vector<SafetensorInfo>& tensors);

// Converts `n` elements. From any dtype to f32 or f64 (exact for the floating
// types narrower than the target), from f32 to bf16 (round to nearest even),
// and any dtype to itself. INVALID_ARGUMENT for other pairs.
absl::Status ConvertElements(DType from, const void* source, int64_t n,
                             DType to, void* target);

}  // namespace cadre

#endif  // CADRE_MODEL_SAFETENSORS_H_
