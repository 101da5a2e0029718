#include "base/systemd/notifier.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/logging.h"

namespace cadre {
namespace {

std::string TakeVariable(const char* name) {
  const char* value = std::getenv(name);
  std::string taken = value == nullptr ? "" : value;
  unsetenv(name);
  return taken;
}

// A connected datagram socket, or -1. '@' stands for an abstract address.
int ConnectTo(const std::string& path) {
  sockaddr_un address{.sun_family = AF_UNIX};
  if (path.empty() || path.size() >= sizeof(address.sun_path)) return -1;
  if (path[0] != '/' && path[0] != '@') return -1;
  std::memcpy(address.sun_path, path.data(), path.size());
  if (path[0] == '@') address.sun_path[0] = '\0';
  const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  const auto length =
      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size());
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address), length) != 0) {
    close(fd);
    return -1;
  }
  return fd;
}

// One assignment a line: a line break would start another.
std::string OneLine(absl::string_view text) {
  return absl::StrReplaceAll(text, {{"\n", " "}});
}

}  // namespace

Notifier Notifier::FromEnvironment() {
  const std::string path = TakeVariable("NOTIFY_SOCKET");
  const std::string interval = TakeVariable("WATCHDOG_USEC");
  const std::string pid = TakeVariable("WATCHDOG_PID");
  Notifier notifier;
  if (path.empty()) return notifier;
  notifier.socket_ = ConnectTo(path);
  if (notifier.socket_ < 0) {
    CADRE_LOG(WARNING) << "NOTIFY_SOCKET " << path
                       << " does not answer; the service manager hears nothing";
    return notifier;
  }
  int64_t usec = 0, owner = 0;
  if (absl::SimpleAtoi(interval, &usec) && usec > 0 &&
      (pid.empty() || (absl::SimpleAtoi(pid, &owner) && owner == getpid()))) {
    notifier.watchdog_interval_ = absl::Microseconds(usec);
  }
  return notifier;
}

Notifier::Notifier(Notifier&& other) noexcept
    : socket_(std::exchange(other.socket_, -1)),
      watchdog_interval_(
          std::exchange(other.watchdog_interval_, absl::ZeroDuration())) {}

Notifier& Notifier::operator=(Notifier&& other) noexcept {
  std::swap(socket_, other.socket_);
  std::swap(watchdog_interval_, other.watchdog_interval_);
  return *this;
}

Notifier::~Notifier() {
  if (socket_ >= 0) close(socket_);
}

void Notifier::Send(const std::string& message) {
  if (socket_ < 0) return;
  // Never blocks: a manager that does not listen must not stop the daemon.
  if (send(socket_, message.data(), message.size(),
           MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
    CADRE_LOG(WARNING) << "the service manager does not take messages: "
                       << std::strerror(errno);
  }
}

void Notifier::Ready(absl::string_view status) {
  Send(absl::StrCat("READY=1\nSTATUS=", OneLine(status)));
}
void Notifier::Status(absl::string_view status) {
  Send(absl::StrCat("STATUS=", OneLine(status)));
}
void Notifier::Stopping(absl::string_view status) {
  Send(absl::StrCat("STOPPING=1\nSTATUS=", OneLine(status)));
}
void Notifier::ExtendStart(absl::Duration by) {
  Send(absl::StrCat("EXTEND_TIMEOUT_USEC=", absl::ToInt64Microseconds(by)));
}
void Notifier::KeepAlive() { Send("WATCHDOG=1"); }

Watchdog::Watchdog(Notifier* notifier, std::function<int64_t()> progress)
    : notifier_(notifier), progress_(std::move(progress)) {
  if (notifier_->watchdog_interval() > absl::ZeroDuration()) {
    thread_ = std::thread([this] { Run(); });
  }
}

Watchdog::~Watchdog() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Watchdog::Run() {
  const auto pause =
      absl::ToChronoMicroseconds(notifier_->watchdog_interval() / 3);
  int64_t seen = progress_() - 1;
  std::unique_lock<std::mutex> lock(mutex_);
  do {
    const int64_t now = progress_();
    if (now != seen) notifier_->KeepAlive();
    seen = now;
  } while (!wake_.wait_for(lock, pause, [this] { return stop_; }));
}

}  // namespace cadre
