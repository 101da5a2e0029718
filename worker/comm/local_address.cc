#include "worker/comm/local_address.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"

namespace cadre {
namespace {

// OK, or errno of what failed.
int TryBind(const addrinfo& info) {
  const int fd = socket(info.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return errno;
  const int error = bind(fd, info.ai_addr, info.ai_addrlen) == 0 ? 0 : errno;
  close(fd);
  return error;
}

}  // namespace

absl::StatusOr<std::string> LocalAddress(const std::string& host) {
  std::string name = host;
  if (name.empty()) {
    std::array<char, 256> buffer{};
    gethostname(buffer.data(), buffer.size() - 1);
    name = buffer.data();
  }
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int failure = getaddrinfo(name.c_str(), nullptr, &hints, &found);
  if (failure != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the data address \"", name,
                     "\" does not resolve: ", gai_strerror(failure)));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found,
                                                                 &freeaddrinfo);
  int error = 0;
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    error = TryBind(*at);
    std::array<char, NI_MAXHOST> text{};
    if (error == 0 &&
        getnameinfo(at->ai_addr, at->ai_addrlen, text.data(), text.size(),
                    nullptr, 0, NI_NUMERICHOST) == 0) {
      return std::string(text.data());
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("the data address \"", name,
                   "\" is none of this machine's: ", std::strerror(error)));
}

}  // namespace cadre
