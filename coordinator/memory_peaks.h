#ifndef CADRE_COORDINATOR_MEMORY_PEAKS_H_
#define CADRE_COORDINATOR_MEMORY_PEAKS_H_

// Memory of the ranks of an attempt against the plan, as the workers tell it.
// The functions edit a job's record; the caller saves it.

#include "cadre/v1/job.pb.h"
#include "coordinator/ledger.h"

namespace cadre::coordinator {

// The rank's newest word, of the last attempt.
void TakeMemoryPeak(const v1::MemoryPeak& told, int rank, v1::Job* job);

// Of that attempt only the rank that came closest to its plan, or furthest
// above it, is kept: a record is written often, and earlier attempts' memory
// matters little.
void KeepWorstPeak(int index, v1::Job* job);

// An event that says how full the worst rank was; none told: nothing.
void TellMemory(const v1::Attempt& attempt, JobChange* change);

}  // namespace cadre::coordinator

#endif  // CADRE_COORDINATOR_MEMORY_PEAKS_H_
