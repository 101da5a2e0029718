#include "base/failpoint.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <map>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"
#include "base/logging.h"

namespace cadre {
namespace {

// The one piece of process-wide state of Cadre: a fault must be reachable from
// any depth without a parameter through all layers.
struct Points {
  absl::Mutex mutex;
  std::map<std::string, int> passes_left ABSL_GUARDED_BY(mutex);
  std::atomic<bool> armed{false};

  void Arm(const std::string& spec) {
    absl::MutexLock lock(&mutex);
    passes_left.clear();
    for (absl::string_view item :
         absl::StrSplit(spec, ';', absl::SkipEmpty())) {
      const std::pair<std::string, std::string> parts =
          absl::StrSplit(item, absl::MaxSplits('=', 1));
      absl::string_view action = parts.second;
      int pass = 1;
      const bool known =
          absl::ConsumePrefix(&action, "kill") &&
          (action.empty() || (absl::ConsumePrefix(&action, "@") &&
                              absl::SimpleAtoi(action, &pass) && pass > 0));
      CADRE_CHECK(known) << "CADRE_FAILPOINTS: '" << std::string(item)
                         << "' is not NAME=kill or NAME=kill@N";
      passes_left[parts.first] = pass;
    }
    armed = !passes_left.empty();
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
  absl::MutexLock lock(&points.mutex);
  const auto it = points.passes_left.find(std::string(name));
  if (it != points.passes_left.end() && --it->second == 0) {
    kill(getpid(), SIGKILL);
  }
}

void ArmFailpoints(const std::string& spec) { ThePoints().Arm(spec); }

}  // namespace cadre
