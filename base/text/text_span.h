#ifndef CADRE_BASE_TEXT_TEXT_SPAN_H_
#define CADRE_BASE_TEXT_TEXT_SPAN_H_

#include <cstdint>

namespace cadre {

// Bytes [begin, end) of a text.
struct TextSpan {
  int64_t begin = 0;
  int64_t end = 0;
  bool operator==(const TextSpan&) const = default;
};

}  // namespace cadre

#endif  // CADRE_BASE_TEXT_TEXT_SPAN_H_
