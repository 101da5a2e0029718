#ifndef CADRE_COORDINATOR_DISK_GUARD_H_
#define CADRE_COORDINATOR_DISK_GUARD_H_

// What happens when the disk of the state fills up. A ballast file holds room
// back; when a commit finds the disk full the ballast goes, so that running
// jobs can still change state, and no new work is taken until there is room
// for the ballast again. Thread-safe.

#include <atomic>
#include <cstdint>
#include <string>

namespace cadre::coordinator {

class DiskGuard {
 public:
  // ballast_bytes 0: none is kept.
  DiskGuard(const std::string& dir, int64_t ballast_bytes);

  // No new work.
  bool full() const { return full_; }
  // A commit found no room. True: the ballast has made some; try again.
  bool Release();
  // Looks at the disk: below half of the ballast's size it is full, above
  // twice its size it is not and the ballast is laid again.
  void Look();
  // Free bytes at the last look; -1: unknown.
  int64_t free_bytes() const { return free_; }

 private:
  void Lay();

  const std::string dir_, path_;
  const int64_t ballast_bytes_;
  std::atomic<bool> full_{false};
  std::atomic<bool> laid_{false};
  std::atomic<int64_t> free_{-1};
};

}  // namespace cadre::coordinator

#endif  // CADRE_COORDINATOR_DISK_GUARD_H_
