#ifndef CADRE_BASE_RPC_ADDRESS_H_
#define CADRE_BASE_RPC_ADDRESS_H_

// host:port addresses of listening sockets. Thread-safe: no state.

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace cadre {

struct Address {
  std::string host;  // without brackets
  int port = 0;
};

// Parses "127.0.0.1:8470", "localhost:0" or "[::1]:8470". INVALID_ARGUMENT
// says what is wrong.
absl::StatusOr<Address> ParseAddress(absl::string_view text);

// "host:port", with brackets around an IPv6 host.
std::string FormatAddress(const Address& address);

// True for 127.0.0.0/8, ::1 and localhost.
bool IsLoopback(const Address& address);

// Whether a socket can be bound to the address now. The error names the
// address, the reason and, through `flag` (for example "--listen"), the remedy.
// Port 0 is always free.
absl::Status CheckCanListen(const Address& address, absl::string_view flag);

}  // namespace cadre

#endif  // CADRE_BASE_RPC_ADDRESS_H_
