#include "worker/supervisor.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <ctime>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/clock.h"
#include "base/logging.h"
#include "base/rpc/address.h"

namespace cadre {
namespace {

constexpr int kExitConfig = 78;
constexpr absl::Duration kMinPause = absl::Seconds(1);
constexpr absl::Duration kMaxPause = absl::Minutes(1);
// A child that lived this long starts from the shortest pause again.
constexpr absl::Duration kHealthyLife = absl::Minutes(5);

// "host:port" with the port raised by the index; "off" and port 0 stay.
std::string Shift(const std::string& listen, int index) {
  absl::StatusOr<Address> address = ParseAddress(listen);
  if (!address.ok() || address->port == 0) return listen;
  address->port += index;
  return FormatAddress(*address);
}

class Child {
 public:
  Child(std::string program, std::vector<std::string> arguments, int index)
      : program_(std::move(program)),
        arguments_(std::move(arguments)),
        index_(index) {}

  pid_t pid() const { return pid_; }
  bool running() const { return pid_ > 0; }
  bool done() const { return done_; }
  bool IsDue(absl::Duration now) const {
    return !running() && !done_ && now >= start_at_;
  }

  void Start(absl::Duration now) {
    std::vector<char*> argv = {program_.data()};
    for (std::string& argument : arguments_) argv.push_back(argument.data());
    argv.push_back(nullptr);
    // The mask of this process blocks the signals it waits for.
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    sigset_t none;
    sigemptyset(&none);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
    const int error = posix_spawn(&pid_, program_.c_str(), nullptr, &attributes,
                                  argv.data(), environ);
    posix_spawnattr_destroy(&attributes);
    if (error != 0) {
      pid_ = 0;
      CADRE_LOG(ERROR) << "device " << index_ << ": cannot start " << program_
                       << ": " << std::strerror(error);
      Postpone(now);
      return;
    }
    started_ = now;
    CADRE_LOG(INFO) << "device " << index_ << ": process " << pid_;
  }

  // Takes note of its end; returns the exit code (128 + signal when killed).
  int Ended(int status, bool stopping, absl::Duration now) {
    pid_ = 0;
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    // Ended by our order before it could listen for it.
    if (stopping && code == 128 + SIGTERM) code = 0;
    done_ = stopping || code == 0 || code == kExitConfig;
    if (now - started_ >= kHealthyLife) pause_ = kMinPause;
    if (!done_) Postpone(now);
    CADRE_LOG(INFO) << "device " << index_ << ": ended with " << code
                    << (done_ ? ""
                              : absl::StrCat(
                                    "; starts again in ",
                                    absl::FormatDuration(start_at_ - now)));
    return code;
  }
  // Not started again.
  void GiveUp() { done_ = done_ || !running(); }

 private:
  void Postpone(absl::Duration now) {
    start_at_ = now + pause_;
    pause_ = std::min(2 * pause_, kMaxPause);
  }

  std::string program_;
  std::vector<std::string> arguments_;
  const int index_;
  pid_t pid_ = 0;
  bool done_ = false;
  absl::Duration started_, start_at_;
  absl::Duration pause_ = kMinPause;
};

}  // namespace

std::vector<std::string> ChildArguments(
    const std::vector<std::string>& arguments, const WorkerOptions& options,
    int index) {
  std::vector<std::string> out;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    bool own = argument == "--per-device";
    for (const char* name :
         {"--devices", "--index", "--worker-id", "--metrics-listen",
          "--health-listen", "--ports-file"}) {
      if (argument == name) {
        own = true;
        ++i;  // its value
      }
      own = own || absl::StartsWith(argument, absl::StrCat(name, "="));
    }
    if (!own) out.push_back(argument);
  }
  out.push_back(absl::StrCat("--index=", index));
  const absl::string_view id =
      absl::StripSuffix(options.worker_id, absl::StrCat(".", options.index));
  out.push_back(absl::StrCat("--worker-id=", id, ".", index));
  const int shift = index - options.index;
  out.push_back(
      absl::StrCat("--metrics-listen=", Shift(options.metrics_listen, shift)));
  out.push_back(
      absl::StrCat("--health-listen=", Shift(options.health_listen, shift)));
  if (!options.ports_file.empty()) {
    out.push_back(
        absl::StrCat("--ports-file=", options.ports_file, ".", index));
  }
  return out;
}

int RunSupervisor(const std::string& program,
                  const std::vector<std::string>& arguments,
                  const WorkerOptions& options, const sigset_t& signals) {
  Clock* const clock = Clock::Real();
  std::vector<Child> children;
  for (int i = 0; i < options.devices; ++i) {
    const int index = options.index + i;
    children.emplace_back(program, ChildArguments(arguments, options, index),
                          index);
  }
  CADRE_LOG(INFO) << "one worker for each of " << options.devices << " devices";
  bool stopping = false;
  int exit_code = 0;
  for (;;) {
    const absl::Duration now = clock->Monotonic();
    for (Child& child : children) {
      if (!stopping && child.IsDue(now)) child.Start(now);
    }
    int status = 0;
    while (const pid_t pid = waitpid(-1, &status, WNOHANG)) {
      if (pid < 0) break;
      for (Child& child : children) {
        if (child.pid() != pid) continue;
        const int code = child.Ended(status, stopping, clock->Monotonic());
        if (code != 0 && child.done()) exit_code = code;
      }
    }
    if (stopping) {
      for (Child& child : children) child.GiveUp();
    }
    if (std::all_of(children.begin(), children.end(),
                    [](const Child& child) { return child.done(); })) {
      return exit_code;
    }
    // A child's end is seen within the time slice, an order at once.
    const timespec slice{.tv_sec = 0, .tv_nsec = 200'000'000};
    const int signal = sigtimedwait(&signals, nullptr, &slice);
    if (signal < 0) continue;
    stopping = true;
    for (const Child& child : children) {
      if (child.running()) kill(child.pid(), SIGTERM);
    }
  }
}

}  // namespace cadre
