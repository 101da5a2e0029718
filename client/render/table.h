#ifndef CADRE_CLIENT_RENDER_TABLE_H_
#define CADRE_CLIENT_RENDER_TABLE_H_

// Aligned columns for a person, cut to the terminal's width.

#include <string>
#include <vector>

namespace cadre::client {

class Table {
 public:
  explicit Table(std::vector<std::string> header) : rows_{std::move(header)} {}
  // One cell per column of the header.
  void Add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  // Lines end in "\n". Only the last column is cut, with "...", to `width`;
  // 0: never.
  std::string Render(int width) const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

// Columns that `text` takes on a terminal, UTF-8 counted by code points.
int DisplayWidth(const std::string& text);

}  // namespace cadre::client

#endif  // CADRE_CLIENT_RENDER_TABLE_H_
