#include "base/rpc/address.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace cadre {

absl::StatusOr<Address> ParseAddress(absl::string_view text) {
  const auto colon = text.rfind(':');
  if (colon == absl::string_view::npos) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", text, "' is not an address: write host:port, for example ",
        "127.0.0.1:8470 (port 0 picks a free one)"));
  }
  Address address;
  absl::string_view host = text.substr(0, colon);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (absl::StrContains(host, ":")) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", text, "': write an IPv6 host in brackets, as in [::1]:8470"));
  }
  address.host = std::string(host);
  const absl::string_view port = text.substr(colon + 1);
  if (host.empty() || !absl::SimpleAtoi(port, &address.port) ||
      address.port < 0 || address.port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text, "' is not an address: it needs a host and a ",
                     "port of 0-65535"));
  }
  return address;
}

std::string FormatAddress(const Address& address) {
  if (absl::StrContains(address.host, ":")) {
    return absl::StrCat("[", address.host, "]:", address.port);
  }
  return absl::StrCat(address.host, ":", address.port);
}

bool IsLoopback(const Address& address) {
  return address.host == "localhost" || address.host == "::1" ||
         absl::StartsWith(address.host, "127.");
}

absl::Status CheckCanListen(const Address& address, absl::string_view flag) {
  const std::string text = FormatAddress(address);
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int rc =
      getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(),
                  &hints, &found);
  if (rc != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot listen on ", text, ": ", gai_strerror(rc),
                     "; give an address of this machine with ", flag));
  }
  int error = 0;
  const int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) {
    error = errno;
  } else {
    const int on = 1;
    // As gRPC does: a socket in TIME_WAIT is no reason to refuse.
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (bind(fd, found->ai_addr, found->ai_addrlen) != 0 ||
        listen(fd, 1) != 0) {
      error = errno;
    }
    close(fd);
  }
  freeaddrinfo(found);
  if (error == 0) return absl::OkStatus();
  if (error == EADDRINUSE) {
    return absl::FailedPreconditionError(absl::StrCat(
        "cannot listen on ", text, ": the address is in use by another ",
        "process; stop that process (ss -ltnp shows it) or choose another ",
        "address with ", flag));
  }
  return absl::FailedPreconditionError(
      absl::StrCat("cannot listen on ", text, ": ", std::strerror(error),
                   "; choose another address with ", flag));
}

}  // namespace cadre
