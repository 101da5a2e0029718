#include "plan/facts_cache.h"

#include <sys/stat.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace cadre {
namespace {

// A file that was written a moment ago may change again within the granularity
// of its time.
constexpr int64_t kSettledSeconds = 2;

// Appends what tells one state of the file from another; false: it may still
// be changing, or is not there.
bool Append(const std::string& path, int64_t now, std::string* content) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) return false;
  absl::StrAppend(content, path, "|", info.st_dev, "|", info.st_ino, "|",
                  info.st_size, "|", info.st_mtim.tv_sec, "|",
                  info.st_mtim.tv_nsec, "|", info.st_ctim.tv_sec, "|",
                  info.st_ctim.tv_nsec, "\n");
  return std::max(info.st_mtim.tv_sec, info.st_ctim.tv_sec) + kSettledSeconds <=
         now;
}

// Empty: not to be kept.
std::string ContentOf(const v1::ModelSpec& spec) {
  std::vector<std::string> paths;
  for (const std::string& folder : {spec.path(), spec.tokenizer()}) {
    if (folder.empty()) continue;
    std::error_code error;
    for (std::filesystem::directory_iterator it(folder, error), end;
         !error && it != end; it.increment(error)) {
      paths.push_back(it->path().string());
    }
    if (error) return "";
  }
  if (!spec.config().empty()) paths.push_back(spec.config());
  std::sort(paths.begin(), paths.end());
  const int64_t now = std::time(nullptr);
  std::string content;
  for (const std::string& path : paths) {
    if (!Append(path, now, &content)) return "";
  }
  return content;
}

}  // namespace

std::shared_ptr<const ModelFacts> ModelFactsCache::Load(
    const v1::ModelSpec& spec) {
  const std::string key =
      absl::StrJoin({spec.path(), spec.config(), spec.init(), spec.tokenizer()},
                    std::string(1, '\0'));
  // Before the files are read: what changes meanwhile is read again.
  std::string content = ContentOf(spec);
  if (!content.empty()) {
    absl::MutexLock lock(&mutex_);
    for (auto it = entries_.begin(); it != entries_.end(); ++it) {
      if (it->key != key || it->content != content) continue;
      entries_.splice(entries_.begin(), entries_, it);
      return it->facts;
    }
  }
  auto facts = std::make_shared<const ModelFacts>(LoadModelFacts(spec));
  if (content.empty() || !facts->status.ok()) return facts;
  absl::MutexLock lock(&mutex_);
  entries_.remove_if([&key](const Entry& entry) { return entry.key == key; });
  entries_.push_front({key, std::move(content), facts});
  if (entries_.size() > capacity_) entries_.pop_back();
  return facts;
}

}  // namespace cadre
