#include "tests/gpu/runtime_calls.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <atomic>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace cadre::testing {
namespace {

std::atomic<int64_t> allocations{0}, frees{0}, handles{0}, waits{0},
    blocking_copies{0};
thread_local int uncounted = 0;

void Count(std::atomic<int64_t>* what) {
  if (uncounted == 0) ++*what;
}

bool Pageable(const void* data) {
  cudaPointerAttributes attributes;
  if (cudaPointerGetAttributes(&attributes, data) != cudaSuccess) {
    cudaGetLastError();
    return true;
  }
  return attributes.type == cudaMemoryTypeUnregistered;
}

decltype(&cuMemCreate) real_mem_create = nullptr;
decltype(&cuMemRelease) real_mem_release = nullptr;

CUresult CountedMemCreate(CUmemGenericAllocationHandle* handle, size_t size,
                          const CUmemAllocationProp* properties,
                          unsigned long long flags) {
  Count(&allocations);
  return real_mem_create(handle, size, properties, flags);
}
CUresult CountedMemRelease(CUmemGenericAllocationHandle handle) {
  Count(&frees);
  return real_mem_release(handle);
}

}  // namespace

RuntimeCalls RuntimeCalls::operator-(const RuntimeCalls& other) const {
  return {.allocations = allocations - other.allocations,
          .frees = frees - other.frees,
          .handles = handles - other.handles,
          .waits = waits - other.waits,
          .blocking_copies = blocking_copies - other.blocking_copies};
}

std::string RuntimeCalls::ToString() const {
  return absl::StrCat(allocations, " allocations, ", frees, " frees, ", handles,
                      " handles made, ", waits, " waits, ", blocking_copies,
                      " blocking copies");
}

RuntimeCalls CountedCalls() {
  return {.allocations = allocations,
          .frees = frees,
          .handles = handles,
          .waits = waits,
          .blocking_copies = blocking_copies};
}

Uncounted::Uncounted() { ++uncounted; }
Uncounted::~Uncounted() { --uncounted; }

}  // namespace cadre::testing

// Defines __wrap_NAME, which counts and calls the runtime's function.
#define CADRE_COUNT(counter, name, parameters, arguments) \
  cudaError_t __real_##name parameters;                   \
  cudaError_t __wrap_##name parameters {                  \
    cadre::testing::Count(&cadre::testing::counter);      \
    return __real_##name arguments;                       \
  }

extern "C" {

CADRE_COUNT(allocations, cudaMalloc, (void** data, size_t size), (data, size))
CADRE_COUNT(allocations, cudaMallocAsync,
            (void** data, size_t size, cudaStream_t stream),
            (data, size, stream))
CADRE_COUNT(allocations, cudaMallocHost, (void** data, size_t size),
            (data, size))
CADRE_COUNT(allocations, cudaHostAlloc,
            (void** data, size_t size, unsigned int flags), (data, size, flags))
CADRE_COUNT(frees, cudaFree, (void* data), (data))
CADRE_COUNT(frees, cudaFreeAsync, (void* data, cudaStream_t stream),
            (data, stream))
CADRE_COUNT(frees, cudaFreeHost, (void* data), (data))
CADRE_COUNT(handles, cudaStreamCreateWithFlags,
            (cudaStream_t * stream, unsigned int flags), (stream, flags))
CADRE_COUNT(handles, cudaEventCreateWithFlags,
            (cudaEvent_t * event, unsigned int flags), (event, flags))
CADRE_COUNT(waits, cudaStreamSynchronize, (cudaStream_t stream), (stream))
CADRE_COUNT(waits, cudaEventSynchronize, (cudaEvent_t event), (event))
CADRE_COUNT(waits, cudaDeviceSynchronize, (), ())
CADRE_COUNT(blocking_copies, cudaMemcpy,
            (void* to, const void* from, size_t size, cudaMemcpyKind kind),
            (to, from, size, kind))
CADRE_COUNT(blocking_copies, cudaMemset, (void* data, int value, size_t size),
            (data, value, size))

cudaError_t __real_cudaMemcpyAsync(void* to, const void* from, size_t size,
                                   cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t __wrap_cudaMemcpyAsync(void* to, const void* from, size_t size,
                                   cudaMemcpyKind kind, cudaStream_t stream) {
  using namespace cadre::testing;  // NOLINT: this file's own
  if (Pageable(to) || Pageable(from)) Count(&blocking_copies);
  return __real_cudaMemcpyAsync(to, from, size, kind, stream);
}

// Functions of the driver that are asked for by name.
cudaError_t __real_cudaGetDriverEntryPointByVersion(
    const char* name, void** function, unsigned int version,
    unsigned long long flags, cudaDriverEntryPointQueryResult* result);
cudaError_t __wrap_cudaGetDriverEntryPointByVersion(
    const char* name, void** function, unsigned int version,
    unsigned long long flags, cudaDriverEntryPointQueryResult* result) {
  using namespace cadre::testing;  // NOLINT: this file's own
  const cudaError_t error = __real_cudaGetDriverEntryPointByVersion(
      name, function, version, flags, result);
  if (error != cudaSuccess || *function == nullptr) return error;
  if (std::strcmp(name, "cuMemCreate") == 0) {
    real_mem_create = reinterpret_cast<decltype(real_mem_create)>(*function);
    *function = reinterpret_cast<void*>(&CountedMemCreate);
  } else if (std::strcmp(name, "cuMemRelease") == 0) {
    real_mem_release = reinterpret_cast<decltype(real_mem_release)>(*function);
    *function = reinterpret_cast<void*>(&CountedMemRelease);
  }
  return error;
}

}  // extern "C"
