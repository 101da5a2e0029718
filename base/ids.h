#ifndef CADRE_BASE_IDS_H_
#define CADRE_BASE_IDS_H_

// Random identifiers as a dependency. Thread-safe.

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

namespace cadre {

class IdSource {
 public:
  virtual ~IdSource() = default;
  // 64 random bits.
  virtual uint64_t Next() = 0;

  // An RFC 4122 version 4 UUID.
  std::string Uuid();
  // "j-" and 10 characters of [a-z2-7]: a job id.
  std::string JobId();

  // The operating system's randomness; lives for ever.
  static IdSource* Random();
};

// 1, 2, 3, ...: every id is different and the same in each run.
class FakeIdSource final : public IdSource {
 public:
  uint64_t Next() override { return ++last_; }

 private:
  std::atomic<uint64_t> last_{0};
};

}  // namespace cadre

#endif  // CADRE_BASE_IDS_H_
