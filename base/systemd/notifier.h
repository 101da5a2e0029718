#ifndef CADRE_BASE_SYSTEMD_NOTIFIER_H_
#define CADRE_BASE_SYSTEMD_NOTIFIER_H_

// Tells the service manager how the process does: the protocol of sd_notify(3),
// one datagram a message to $NOTIFY_SOCKET. Without that variable (started by
// hand, in a pod) everything is a no-op. Thread-safe.
//
//   Notifier notifier = Notifier::FromEnvironment();
//   ... start ...
//   notifier.Ready("listening on 127.0.0.1:8470");
//   Watchdog watchdog(&notifier, [&] { return server.ticks(); });
//   ... serve ...
//   notifier.Stopping("draining");

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace cadre {

class Notifier {
 public:
  // Sends nowhere.
  Notifier() = default;
  // Reads and clears NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID, so that
  // child processes do not speak for this one. Call before threads start.
  static Notifier FromEnvironment();
  Notifier(Notifier&& other) noexcept;
  Notifier& operator=(Notifier&& other) noexcept;
  ~Notifier();

  bool connected() const { return socket_ >= 0; }
  // How long the manager waits between signs of life; zero: no watchdog.
  absl::Duration watchdog_interval() const { return watchdog_interval_; }

  void Ready(absl::string_view status);
  void Status(absl::string_view status);
  void Stopping(absl::string_view status);
  // Start-up may take this much longer from now on.
  void ExtendStart(absl::Duration by);
  void KeepAlive();

 private:
  void Send(const std::string& message);

  int socket_ = -1;  // connected; owned
  absl::Duration watchdog_interval_;
};

// Sends signs of life as long as `progress` keeps changing: a process whose
// main loop hangs is restarted, however many of its threads still turn. Does
// nothing where the manager asked for no watchdog.
class Watchdog {
 public:
  // `progress` is called on the watchdog's thread, three times an interval.
  // `notifier` must outlive this.
  Watchdog(Notifier* notifier, std::function<int64_t()> progress);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  void Run();

  Notifier* const notifier_;
  const std::function<int64_t()> progress_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace cadre

#endif  // CADRE_BASE_SYSTEMD_NOTIFIER_H_
