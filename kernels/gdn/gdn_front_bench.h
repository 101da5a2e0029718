#ifndef CADRE_KERNELS_GDN_GDN_FRONT_BENCH_H_
#define CADRE_KERNELS_GDN_GDN_FRONT_BENCH_H_

// What stands between Gated DeltaNet's projection and its recurrence, timed.
// Bench only; one thread.

#include <cstdint>

namespace cadre {

// Prints a JSON line for each pass of the front, and one for each of the gated
// norm: in the rows of a projection grouped by key head, and with a launch for
// each copy, convolution and norm. Heads are 128 wide, key heads half as many
// as value heads, tokens one document.
void BenchGdnFront(int64_t tokens, int64_t value_heads);

}  // namespace cadre

#endif  // CADRE_KERNELS_GDN_GDN_FRONT_BENCH_H_
