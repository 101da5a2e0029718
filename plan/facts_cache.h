#ifndef CADRE_PLAN_FACTS_CACHE_H_
#define CADRE_PLAN_FACTS_CACHE_H_

// LoadModelFacts for models that are asked for again and again: reading the
// headers of a large model takes seconds, looking at its folder takes none.
// An answer is given again while every file of the folder is the same by name,
// inode, size and time. Thread-safe.

#include <cstddef>
#include <list>
#include <memory>
#include <string>

#include "absl/synchronization/mutex.h"
#include "cadre/v1/job_spec.pb.h"
#include "plan/model_facts.h"

namespace cadre {

class ModelFactsCache {
 public:
  explicit ModelFactsCache(size_t capacity = 16) : capacity_(capacity) {}

  // Never null. Failures are not kept.
  std::shared_ptr<const ModelFacts> Load(const v1::ModelSpec& spec);

 private:
  struct Entry {
    std::string key;      // what was asked for
    std::string content;  // what the files were like
    std::shared_ptr<const ModelFacts> facts;
  };

  const size_t capacity_;
  absl::Mutex mutex_;
  std::list<Entry> entries_ ABSL_GUARDED_BY(mutex_);  // newest first
};

}  // namespace cadre

#endif  // CADRE_PLAN_FACTS_CACHE_H_
