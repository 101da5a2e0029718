#include "client/render/table.h"

#include <algorithm>

namespace cadre::client {
namespace {

bool StartsCodePoint(char c) { return (c & 0xC0) != 0x80; }

// The first `width` code points, "..." included, of a longer text.
std::string Cut(const std::string& text, int width) {
  if (DisplayWidth(text) <= width) return text;
  const int keep = std::max(0, width - 3);
  int seen = 0;
  size_t end = 0;
  while (end < text.size()) {
    if (StartsCodePoint(text[end]) && seen++ == keep) break;
    ++end;
  }
  return text.substr(0, end) + "...";
}

}  // namespace

int DisplayWidth(const std::string& text) {
  return static_cast<int>(
      std::count_if(text.begin(), text.end(), StartsCodePoint));
}

std::string Table::Render(int width) const {
  const size_t columns = rows_[0].size();
  std::vector<int> widths(columns, 0);
  for (const auto& row : rows_) {
    for (size_t i = 0; i < columns; ++i) {
      widths[i] = std::max(widths[i], DisplayWidth(row[i]));
    }
  }
  constexpr int kGap = 2;
  std::string out;
  for (const auto& row : rows_) {
    int used = 0;
    for (size_t i = 0; i < columns; ++i) {
      std::string cell = row[i];
      if (i + 1 == columns) {
        if (width > 0) cell = Cut(cell, std::max(8, width - used));
        out += cell;
      } else {
        out += cell;
        out.append(widths[i] - DisplayWidth(cell) + kGap, ' ');
        used += widths[i] + kGap;
      }
    }
    out.erase(out.find_last_not_of(' ') + 1);
    out += '\n';
  }
  return out;
}

}  // namespace cadre::client
