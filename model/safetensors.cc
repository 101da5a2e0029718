#include "model/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "base/text/json.h"
#include "model/safetensors_header.h"

namespace cadre {
namespace {

// Closes a descriptor on scope exit.
class FdCloser {
 public:
  explicit FdCloser(int fd) : fd_(fd) {}
  ~FdCloser() { ::close(fd_); }
  FdCloser(const FdCloser&) = delete;
  FdCloser& operator=(const FdCloser&) = delete;

 private:
  int fd_;
};

std::string DirectoryOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace

int64_t SafetensorInfo::num_elements() const {
  int64_t n = 1;
  for (int64_t dim : shape) n *= dim;
  return n;
}

std::string SafetensorInfo::DebugString() const {
  return absl::StrCat(SafetensorsDTypeName(dtype), " ", ShapeString(shape));
}

std::string ShapeString(absl::Span<const int64_t> shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

void SafetensorsFile::Unmap::operator()(const char* data) const {
  ::munmap(const_cast<char*>(data), static_cast<size_t>(size));
}

absl::StatusOr<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return FileError("open", path, errno);
  FdCloser closer(fd);
  struct stat info;
  if (::fstat(fd, &info) != 0) return FileError("stat", path, errno);
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": not a regular file"));
  }
  const int64_t size = info.st_size;
  if (size < 8) {
    return absl::DataLossError(absl::StrCat(
        path, ": ", size, " bytes are too few for a safetensors file"));
  }
  void* data =
      ::mmap(nullptr, static_cast<size_t>(size), PROT_READ, MAP_PRIVATE, fd, 0);
  if (data == MAP_FAILED) return FileError("map", path, errno);

  SafetensorsFile file;
  file.path_ = path;
  file.data_ = std::unique_ptr<const char, Unmap>(
      static_cast<const char*>(data), Unmap{size});
  file.file_bytes_ = size;
  absl::StatusOr<int64_t> header_bytes =
      SafetensorsHeaderBytes({file.data_.get(), 8}, size);
  if (!header_bytes.ok()) return Annotate(header_bytes.status(), path);
  file.header_bytes_ = *header_bytes + 8;
  absl::StatusOr<SafetensorsHeader> header = ParseSafetensorsHeader(
      {file.data_.get() + 8, static_cast<size_t>(*header_bytes)},
      size - file.header_bytes_);
  if (!header.ok()) return Annotate(header.status(), path);
  file.tensors_ = std::move(header->tensors);
  file.metadata_ = std::move(header->metadata);
  for (size_t i = 0; i < file.tensors_.size(); ++i) {
    file.by_name_.emplace(file.tensors_[i].name, i);
  }
  return file;
}

const SafetensorInfo* SafetensorsFile::Find(absl::string_view name) const {
  const auto it = by_name_.find(std::string(name));
  return it == by_name_.end() ? nullptr : &tensors_[it->second];
}

absl::Span<const char> SafetensorsFile::Bytes(
    const SafetensorInfo& info) const {
  return {data_.get() + header_bytes_ + info.begin,
          static_cast<size_t>(info.end - info.begin)};
}

absl::Span<const char> SafetensorsFile::header() const {
  return {data_.get(), static_cast<size_t>(header_bytes_)};
}

absl::StatusOr<std::unique_ptr<SafetensorsWriter>> SafetensorsWriter::Create(
    const std::string& path, std::vector<SafetensorInfo> tensors,
    std::map<std::string, std::string> metadata) {
  metadata.emplace("format", "pt");
  std::set<absl::string_view> names;
  int64_t offset = 0;
  for (SafetensorInfo& tensor : tensors) {
    tensor.begin = offset;
    tensor.end = offset += tensor.num_bytes();
    if (!names.insert(tensor.name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": tensor ", tensor.name, " is declared twice"));
    }
  }
  const std::string header = WriteSafetensorsHeader(tensors, metadata);
  if (static_cast<int64_t>(header.size()) > kMaxSafetensorsHeaderBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": ", tensors.size(), " tensors need a header of ", header.size(),
        " bytes, readers accept ", kMaxSafetensorsHeaderBytes,
        "; write fewer tensors per file"));
  }
  static std::atomic<int64_t> counter{0};
  auto writer = std::unique_ptr<SafetensorsWriter>(new SafetensorsWriter);
  writer->path_ = path;
  std::string temporary =
      absl::StrCat(path, ".", ::getpid(), ".", counter.fetch_add(1), ".tmp");
  writer->fd_ =
      ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (writer->fd_ < 0) return FileError("create", temporary, errno);
  writer->temporary_ = std::move(temporary);
  writer->tensors_ = std::move(tensors);
  char length[8];
  for (int i = 0; i < 8; ++i) {
    length[i] = static_cast<char>(header.size() >> (8 * i) & 0xff);
  }
  CADRE_RETURN_IF_ERROR(writer->WriteAll(length));
  CADRE_RETURN_IF_ERROR(writer->WriteAll(header));
  return writer;
}

SafetensorsWriter::~SafetensorsWriter() {
  if (fd_ >= 0) ::close(fd_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

absl::Status SafetensorsWriter::WriteAll(absl::Span<const char> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd_, bytes.data(), bytes.size());
    if (n < 0) {
      if (errno == EINTR) continue;
      return FileError("write", temporary_, errno);
    }
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return absl::OkStatus();
}

absl::Status SafetensorsWriter::Append(absl::string_view name,
                                       absl::Span<const char> bytes) {
  while (next_ < tensors_.size() && tensors_[next_].num_bytes() == written_ &&
         tensors_[next_].name != name) {
    ++next_;
    written_ = 0;
  }
  if (next_ >= tensors_.size() || tensors_[next_].name != name) {
    return absl::FailedPreconditionError(absl::StrCat(
        path_, ": tensor ", name, " was written, the next one declared is ",
        next_ < tensors_.size() ? tensors_[next_].name : "the end of the file",
        next_ < tensors_.size()
            ? absl::StrCat(" (", written_, " bytes of it are written)")
            : ""));
  }
  const SafetensorInfo& tensor = tensors_[next_];
  if (written_ + static_cast<int64_t>(bytes.size()) > tensor.num_bytes()) {
    return absl::FailedPreconditionError(absl::StrCat(
        path_, ": tensor ", name, " has ", tensor.num_bytes(), " bytes, ",
        written_ + static_cast<int64_t>(bytes.size()), " were written"));
  }
  written_ += static_cast<int64_t>(bytes.size());
  return WriteAll(bytes);
}

absl::Status SafetensorsWriter::Commit() {
  while (next_ < tensors_.size() && tensors_[next_].num_bytes() == written_) {
    ++next_;
    written_ = 0;
  }
  if (next_ < tensors_.size()) {
    return absl::FailedPreconditionError(absl::StrCat(
        path_, ": tensor ", tensors_[next_].name, " is incomplete: ", written_,
        " of ", tensors_[next_].num_bytes(), " bytes"));
  }
  if (::fsync(fd_) != 0) return FileError("fsync", temporary_, errno);
  const int fd = fd_;
  fd_ = -1;
  if (::close(fd) != 0) return FileError("close", temporary_, errno);
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) {
    return FileError("rename to", path_, errno);
  }
  temporary_.clear();
  const std::string directory = DirectoryOf(path_);
  const int dir = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (dir < 0) return FileError("open", directory, errno);
  FdCloser closer(dir);
  if (::fsync(dir) != 0) return FileError("fsync", directory, errno);
  return absl::OkStatus();
}

void SortForSafetensors(std::vector<SafetensorInfo>& tensors) {
  std::sort(tensors.begin(), tensors.end(),
            [](const SafetensorInfo& a, const SafetensorInfo& b) {
              const int64_t wide_a = SizeOf(a.dtype), wide_b = SizeOf(b.dtype);
              if (wide_a != wide_b) return wide_a > wide_b;
              return a.name < b.name;
            });
}

}  // namespace cadre
