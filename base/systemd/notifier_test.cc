#include "base/systemd/notifier.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace cadre {
namespace {

// The manager's end of the socket.
class FakeManager {
 public:
  // An abstract address: test folders are too deep for a socket's path.
  FakeManager() : fd_(socket(AF_UNIX, SOCK_DGRAM, 0)) {
    const std::string name = absl::StrCat("cadre-notify-", getpid());
    sockaddr_un address{.sun_family = AF_UNIX};
    std::memcpy(address.sun_path + 1, name.data(), name.size());
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) +
                                               1 + name.size());
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&address), length), 0);
    setenv("NOTIFY_SOCKET", absl::StrCat("@", name).c_str(), 1);
  }
  ~FakeManager() { close(fd_); }

  // The next message; "" when none comes within the time.
  std::string Next(int milliseconds) {
    pollfd poll_fd{.fd = fd_, .events = POLLIN};
    if (poll(&poll_fd, 1, milliseconds) <= 0) return "";
    char buffer[4096];
    const ssize_t n = recv(fd_, buffer, sizeof(buffer), 0);
    return n < 0 ? "" : std::string(buffer, static_cast<size_t>(n));
  }

 private:
  const int fd_;
};

TEST(NotifierTest, WithoutAManagerNothingIsSent) {
  unsetenv("NOTIFY_SOCKET");
  Notifier notifier = Notifier::FromEnvironment();
  EXPECT_FALSE(notifier.connected());
  notifier.Ready("listening");
}

TEST(NotifierTest, SpeaksTheProtocol) {
  FakeManager manager;
  setenv("WATCHDOG_USEC", "3000000", 1);
  unsetenv("WATCHDOG_PID");
  Notifier notifier = Notifier::FromEnvironment();
  ASSERT_TRUE(notifier.connected());
  EXPECT_EQ(notifier.watchdog_interval(), absl::Seconds(3));
  EXPECT_EQ(std::getenv("NOTIFY_SOCKET"), nullptr)
      << "children must not inherit it";
  notifier.ExtendStart(absl::Seconds(2));
  notifier.Ready("listening\non two lines");
  notifier.Stopping("draining");
  EXPECT_EQ(manager.Next(1000), "EXTEND_TIMEOUT_USEC=2000000");
  EXPECT_EQ(manager.Next(1000), "READY=1\nSTATUS=listening on two lines");
  EXPECT_EQ(manager.Next(1000), "STOPPING=1\nSTATUS=draining");
}

TEST(NotifierTest, AWatchdogOfAnotherProcessIsNotOurs) {
  FakeManager manager;
  setenv("WATCHDOG_USEC", "3000000", 1);
  setenv("WATCHDOG_PID", "1", 1);
  EXPECT_EQ(Notifier::FromEnvironment().watchdog_interval(),
            absl::ZeroDuration());
}

TEST(WatchdogTest, KeepsAliveOnlyWhileThereIsProgress) {
  FakeManager manager;
  setenv("WATCHDOG_USEC", "30000", 1);
  unsetenv("WATCHDOG_PID");
  Notifier notifier = Notifier::FromEnvironment();
  std::atomic<int64_t> progress{0};
  std::atomic<bool> hang{false};
  Watchdog watchdog(&notifier, [&] { return hang ? 0 : ++progress; });
  EXPECT_EQ(manager.Next(10'000), "WATCHDOG=1");
  EXPECT_EQ(manager.Next(10'000), "WATCHDOG=1");
  hang = true;
  // What was sent before the hang, then silence.
  int after = 0;
  while (!manager.Next(200).empty()) ++after;
  EXPECT_LE(after, 2 + static_cast<int>(progress));
  EXPECT_EQ(manager.Next(200), "");
}

}  // namespace
}  // namespace cadre
