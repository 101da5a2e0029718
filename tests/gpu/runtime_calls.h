#ifndef CADRE_TESTS_GPU_RUNTIME_CALLS_H_
#define CADRE_TESTS_GPU_RUNTIME_CALLS_H_

// Counts what a program asks of the CUDA runtime that must not happen inside a
// steady step. The linker puts counting functions in front of the runtime's
// (--wrap, in kCountedCalls of BUILD.bazel), so that no call of ours can go
// around them; those that cuBLASLt and NCCL make inside are not seen. Counts
// are of the whole process, over all threads. Thread-safe.

#include <cstdint>
#include <string>

namespace cadre::testing {

struct RuntimeCalls {
  int64_t allocations = 0;  // memory of the device, pinned memory, mappings
  int64_t frees = 0;
  int64_t handles = 0;  // streams and events made
  int64_t waits = 0;    // of the host: for a stream, an event, the device
  // Copies that hold up the host: the synchronous calls, and those that name
  // pageable memory.
  int64_t blocking_copies = 0;

  friend bool operator==(const RuntimeCalls&, const RuntimeCalls&) = default;
  RuntimeCalls operator-(const RuntimeCalls& other) const;
  std::string ToString() const;
};

RuntimeCalls CountedCalls();

// While one lives, calls of its thread are not counted: for the parts of a
// test that stand in for something else.
class Uncounted {
 public:
  Uncounted();
  ~Uncounted();
  Uncounted(const Uncounted&) = delete;
  Uncounted& operator=(const Uncounted&) = delete;
};

}  // namespace cadre::testing

#endif  // CADRE_TESTS_GPU_RUNTIME_CALLS_H_
