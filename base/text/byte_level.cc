#include "base/text/byte_level.h"

#include <array>
#include <cstdint>

#include "base/text/utf8.h"

namespace cadre {
namespace {

// Printable Latin-1 stands for itself; the other bytes, in order, are the
// characters from U+0100 on.
constexpr bool StandsForItself(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) ||
         (byte >= 0xAE && byte <= 0xFF);
}

constexpr int kAlphabetEnd = 0x100 + 68;

struct Tables {
  std::array<uint16_t, 256> spelling = {};
  std::array<int16_t, kAlphabetEnd> byte = {};
};

constexpr Tables MakeTables() {
  Tables tables;
  for (int16_t& byte : tables.byte) byte = -1;
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const int code_point = StandsForItself(byte) ? byte : next++;
    tables.spelling[byte] = static_cast<uint16_t>(code_point);
    tables.byte[code_point] = static_cast<int16_t>(byte);
  }
  return tables;
}

constexpr Tables kTables = MakeTables();

}  // namespace

std::optional<std::string> FromByteLevel(absl::string_view spelling) {
  std::string bytes;
  const int64_t size = static_cast<int64_t>(spelling.size());
  for (int64_t pos = 0; pos < size;) {
    const uint32_t code_point = NextCodePoint(spelling, &pos);
    if (code_point >= kAlphabetEnd || kTables.byte[code_point] < 0) {
      return std::nullopt;
    }
    bytes.push_back(static_cast<char>(kTables.byte[code_point]));
  }
  return bytes;
}

std::string ToByteLevel(absl::string_view bytes) {
  std::string spelling;
  for (char c : bytes) {
    AppendUtf8(kTables.spelling[static_cast<unsigned char>(c)], &spelling);
  }
  return spelling;
}

}  // namespace cadre
