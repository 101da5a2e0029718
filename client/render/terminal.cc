#include "client/render/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"

namespace cadre::client {

Terminal Terminal::Detect(bool no_color) {
  Terminal terminal;
  terminal.is_tty = isatty(STDOUT_FILENO) == 1;
  const char* term = std::getenv("TERM");
  const bool dumb = term == nullptr || absl::string_view(term) == "dumb";
  terminal.color = terminal.is_tty && !no_color && !dumb &&
                   std::getenv("NO_COLOR") == nullptr;
  winsize size;
  if (terminal.is_tty && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 &&
      size.ws_col > 0) {
    terminal.width = size.ws_col;
  }
  return terminal;
}

std::string Terminal::Style(absl::string_view ansi,
                            absl::string_view text) const {
  if (!color) return std::string(text);
  return absl::StrCat("\x1b[", ansi, "m", text, "\x1b[0m");
}

}  // namespace cadre::client
