#include "base/failpoint.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <map>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "base/logging.h"

namespace cadre {
namespace {

constexpr absl::Duration kSlow = absl::Milliseconds(500);

struct Action {
  int passes_left = 1;     // before the process dies
  std::string slow_while;  // else: the file that makes it slow
};

std::optional<Action> ParseAction(absl::string_view text) {
  Action action;
  if (absl::ConsumePrefix(&text, "slow:")) {
    action.slow_while = std::string(text);
    if (text.empty()) return std::nullopt;
    return action;
  }
  if (!absl::ConsumePrefix(&text, "kill")) return std::nullopt;
  if (text.empty()) return action;
  if (!absl::ConsumePrefix(&text, "@") ||
      !absl::SimpleAtoi(text, &action.passes_left) || action.passes_left < 1) {
    return std::nullopt;
  }
  return action;
}

// The one piece of process-wide state of Cadre: a fault must be reachable from
// any depth without a parameter through all layers.
struct Points {
  absl::Mutex mutex;
  std::map<std::string, Action> actions ABSL_GUARDED_BY(mutex);
  std::atomic<bool> armed{false};

  void Arm(const std::string& spec) {
    absl::MutexLock lock(&mutex);
    actions.clear();
    for (absl::string_view item :
         absl::StrSplit(spec, ';', absl::SkipEmpty())) {
      const std::pair<std::string, std::string> parts =
          absl::StrSplit(item, absl::MaxSplits('=', 1));
      std::optional<Action> action = ParseAction(parts.second);
      CADRE_CHECK(action.has_value())
          << "CADRE_FAILPOINTS: '" << std::string(item)
          << "' is not NAME=kill, NAME=kill@N or NAME=slow:FILE";
      actions[parts.first] = *std::move(action);
    }
    armed = !actions.empty();
  }

  // Dies here, or returns the file while which is there a pass takes longer.
  std::string Pass(absl::string_view name) {
    absl::MutexLock lock(&mutex);
    const auto it = actions.find(std::string(name));
    if (it == actions.end()) return "";
    if (it->second.slow_while.empty() && --it->second.passes_left == 0) {
      kill(getpid(), SIGKILL);
    }
    return it->second.slow_while;
  }
};

Points& ThePoints() {
  static Points* points = [] {
    auto* made = new Points;  // never destroyed
    if (const char* spec = std::getenv("CADRE_FAILPOINTS")) made->Arm(spec);
    return made;
  }();
  return *points;
}

}  // namespace

void Failpoint(absl::string_view name) {
  Points& points = ThePoints();
  if (!points.armed.load(std::memory_order_relaxed)) return;
  const std::string slow_while = points.Pass(name);
  if (!slow_while.empty() && access(slow_while.c_str(), F_OK) == 0) {
    absl::SleepFor(kSlow);
  }
}

void ArmFailpoints(const std::string& spec) { ThePoints().Arm(spec); }

}  // namespace cadre
