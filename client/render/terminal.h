#ifndef CADRE_CLIENT_RENDER_TERMINAL_H_
#define CADRE_CLIENT_RENDER_TERMINAL_H_

// What stdout is: a person's terminal or a pipe, how wide, with colour or not.

#include <string>

#include "absl/strings/string_view.h"

namespace cadre::client {

struct Terminal {
  bool is_tty = false;
  bool color = false;
  int width = 80;

  // Looks at stdout, NO_COLOR and TERM.
  static Terminal Detect(bool no_color);

  // `text` in an ANSI style such as "1" (bold), "31" (red), "2" (dim); as it
  // is without colour.
  std::string Style(absl::string_view ansi, absl::string_view text) const;
};

}  // namespace cadre::client

#endif  // CADRE_CLIENT_RENDER_TERMINAL_H_
