#include "base/text/utf8.h"

namespace cadre {
namespace {

struct Sequence {
  int length = 0;  // bytes taken: all of it, or the malformed prefix
  bool ok = false;
};

// Looks at the sequence that begins at text[pos] (Unicode table 3-7).
Sequence Inspect(absl::string_view text, int64_t pos) {
  const auto byte = [&](int64_t i) {
    return static_cast<unsigned char>(text[i]);
  };
  const int64_t size = static_cast<int64_t>(text.size());
  const unsigned char lead = byte(pos);
  if (lead < 0x80) return {1, true};
  int length = 0;
  unsigned char low = 0x80, high = 0xBF;  // of the second byte
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  } else {
    return {1, false};
  }
  for (int i = 1; i < length; ++i) {
    if (pos + i >= size || byte(pos + i) < low || byte(pos + i) > high) {
      return {i, false};
    }
    low = 0x80;
    high = 0xBF;
  }
  return {length, true};
}

}  // namespace

int64_t FindInvalidUtf8(absl::string_view text) {
  const int64_t size = static_cast<int64_t>(text.size());
  for (int64_t pos = 0; pos < size;) {
    if (static_cast<unsigned char>(text[pos]) < 0x80) {
      ++pos;
      continue;
    }
    const Sequence sequence = Inspect(text, pos);
    if (!sequence.ok) return pos;
    pos += sequence.length;
  }
  return -1;
}

uint32_t NextCodePoint(absl::string_view text, int64_t* pos) {
  const auto byte = [&](int64_t i) {
    return static_cast<uint32_t>(static_cast<unsigned char>(text[i]));
  };
  const int64_t p = *pos;
  const uint32_t lead = byte(p);
  if (lead < 0x80) {
    *pos = p + 1;
    return lead;
  }
  if (lead < 0xE0) {
    *pos = p + 2;
    return (lead & 0x1F) << 6 | (byte(p + 1) & 0x3F);
  }
  if (lead < 0xF0) {
    *pos = p + 3;
    return (lead & 0x0F) << 12 | (byte(p + 1) & 0x3F) << 6 |
           (byte(p + 2) & 0x3F);
  }
  *pos = p + 4;
  return (lead & 0x07) << 18 | (byte(p + 1) & 0x3F) << 12 |
         (byte(p + 2) & 0x3F) << 6 | (byte(p + 3) & 0x3F);
}

void AppendUtf8(uint32_t code_point, std::string* out) {
  const auto push = [&](uint32_t value) {
    out->push_back(static_cast<char>(value));
  };
  if (code_point < 0x80) {
    push(code_point);
  } else if (code_point < 0x800) {
    push(0xC0 | code_point >> 6);
    push(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    push(0xE0 | code_point >> 12);
    push(0x80 | (code_point >> 6 & 0x3F));
    push(0x80 | (code_point & 0x3F));
  } else {
    push(0xF0 | code_point >> 18);
    push(0x80 | (code_point >> 12 & 0x3F));
    push(0x80 | (code_point >> 6 & 0x3F));
    push(0x80 | (code_point & 0x3F));
  }
}

std::string ReplaceInvalidUtf8(absl::string_view text) {
  std::string out;
  out.reserve(text.size());
  const int64_t size = static_cast<int64_t>(text.size());
  for (int64_t pos = 0; pos < size;) {
    const Sequence sequence = Inspect(text, pos);
    if (sequence.ok) {
      out.append(text.data() + pos, sequence.length);
    } else {
      out += "\xEF\xBF\xBD";
    }
    pos += sequence.length;
  }
  return out;
}

}  // namespace cadre
