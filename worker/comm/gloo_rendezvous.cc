#include "worker/comm/gloo_rendezvous.h"

#include <gloo/transport/tcp/device.h>
#include <net/if.h>
#include <signal.h>

#include <exception>
#include <stdexcept>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "worker/comm/local_address.h"

namespace cadre::gloo_rendezvous {
namespace {

bool IsHostName(const std::string& key) {
  return absl::StartsWith(key, "rank_");
}

// Gloo writes to sockets without MSG_NOSIGNAL, from its own thread and from
// ours: under the default action a lost peer would end this process.
void IgnoreBrokenPipes() {
  struct sigaction action{};
  if (sigaction(SIGPIPE, nullptr, &action) == 0 &&
      (action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler == SIG_DFL) {
    action.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &action, nullptr);
  }
}

}  // namespace

AddressBook::AddressBook(Publish publish, Lookup lookup)
    : publish_(std::move(publish)), lookup_(std::move(lookup)) {}

void AddressBook::set(const std::string& key, const std::vector<char>& data) {
  if (IsHostName(key)) return;
  Check(publish_(std::string(data.begin(), data.end())));
}

std::vector<char> AddressBook::get(const std::string& key) {
  if (IsHostName(key)) return {};
  absl::StatusOr<std::string> value = lookup_(std::stoi(key));
  Check(value.status());
  return {value->begin(), value->end()};
}

void AddressBook::Check(const absl::Status& status) {
  if (status.ok()) return;
  status_ = status;
  throw std::runtime_error(status.ToString());
}

absl::StatusOr<std::shared_ptr<gloo::transport::Device>> CreateDevice(
    const std::string& bind_address, const std::string& interface) {
  IgnoreBrokenPipes();
  gloo::transport::tcp::attr attr;
  if (bind_address.empty() && !interface.empty()) {
    if (if_nametoindex(interface.c_str()) == 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "this machine has no network interface \"", interface, "\""));
    }
    attr.iface = interface;
  } else {
    // Gloo (2022) crashes on a name that does not resolve.
    CADRE_ASSIGN_OR_RETURN(attr.hostname, LocalAddress(bind_address));
  }
  try {
    return gloo::transport::tcp::CreateDevice(attr);
  } catch (const std::exception& e) {
    return absl::UnavailableError(absl::StrCat(
        "cannot listen on ", attr.hostname, attr.iface, ": ", e.what()));
  }
}

}  // namespace cadre::gloo_rendezvous
