#ifndef CADRE_BASE_SMALL_STACK_H_
#define CADRE_BASE_SMALL_STACK_H_

// For tests of what must work on the threads of libraries, whose stacks may be
// far smaller than ours.

#include <pthread.h>

#include <cstddef>
#include <functional>

#include "base/logging.h"

namespace cadre::testing {

inline constexpr size_t kSmallStackBytes = 60 * 1024;

// Runs `body` on a thread of kSmallStackBytes and waits for its end.
inline void RunOnSmallStack(std::function<void()> body) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  CADRE_CHECK(pthread_attr_setstacksize(&attributes, kSmallStackBytes) == 0)
      << "a stack of " << kSmallStackBytes << " bytes is refused";
  pthread_t thread{};
  const auto run = [](void* argument) -> void* {
    (*static_cast<std::function<void()>*>(argument))();
    return nullptr;
  };
  CADRE_CHECK(pthread_create(&thread, &attributes, run, &body) == 0)
      << "cannot start a thread";
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
}

}  // namespace cadre::testing

#endif  // CADRE_BASE_SMALL_STACK_H_
