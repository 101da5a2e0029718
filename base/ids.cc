#include "base/ids.h"

#include <sys/random.h>

#include <cerrno>

#include "absl/strings/str_format.h"
#include "base/logging.h"

namespace cadre {
namespace {

class RandomIdSource final : public IdSource {
 public:
  uint64_t Next() override {
    uint64_t value = 0;
    ssize_t n;
    do {
      n = getrandom(&value, sizeof(value), 0);
    } while (n < 0 && errno == EINTR);
    CADRE_CHECK(n == sizeof(value)) << "getrandom failed, errno " << errno;
    return value;
  }
};

}  // namespace

std::string IdSource::Uuid() {
  const uint64_t a = Next(), b = Next();
  return absl::StrFormat("%08x-%04x-4%03x-%04x-%012x", a >> 32,
                         (a >> 16) & 0xffff, a & 0xfff,
                         0x8000 | ((b >> 48) & 0x3fff), b & 0xffff'ffff'ffff);
}

std::string IdSource::JobId() {
  constexpr char kAlphabet[] = "abcdefghijklmnopqrstuvwxyz234567";
  std::string id = "j-";
  uint64_t bits = Next();
  for (int i = 0; i < 10; ++i, bits >>= 5) id += kAlphabet[bits & 31];
  return id;
}

IdSource* IdSource::Random() {
  static RandomIdSource* source = new RandomIdSource;  // never destroyed
  return source;
}

}  // namespace cadre
