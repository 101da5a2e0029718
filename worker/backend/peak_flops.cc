#include "worker/backend/peak_flops.h"

#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace cadre {
namespace {

struct Peak {
  const char* part;  // of the name
  double tflops;
};
// The longer names first: "H100 PCIe" before "H100".
constexpr Peak kGpus[] = {
    {"H100 PCIe", 756}, {"H100 NVL", 835}, {"H100", 989.4},  {"H200", 989.4},
    {"H20", 148},       {"H800", 989.4},   {"GH200", 989.4}, {"B300", 2500},
    {"B200", 2250},     {"B100", 1750},    {"A100", 312},    {"A800", 312},
    {"L40S", 362.05},   {"L40", 181.05},   {"A40", 149.7},   {"L4", 121},
};

}  // namespace

double GpuPeakFlops(absl::string_view name) {
  for (const Peak& peak : kGpus) {
    if (absl::StrContains(name, peak.part)) return 1e12 * peak.tflops;
  }
  return 0.0;
}

double CpuPeakFlops(absl::string_view cpuinfo, int num_threads) {
  double mhz = 0.0, per_cycle = 0.0;
  for (const absl::string_view line : absl::StrSplit(cpuinfo, '\n')) {
    const std::vector<absl::string_view> parts =
        absl::StrSplit(line, absl::MaxSplits(':', 1));
    if (parts.size() != 2) continue;
    const absl::string_view key = absl::StripAsciiWhitespace(parts[0]);
    if (key == "cpu MHz") {
      if (!absl::SimpleAtod(absl::StripAsciiWhitespace(parts[1]), &mhz)) {
        return 0.0;
      }
    } else if (key == "flags") {
      bool fma = false, avx = false, avx512 = false;
      for (const absl::string_view flag : absl::StrSplit(parts[1], ' ')) {
        fma = fma || flag == "fma";
        avx = avx || flag == "avx";
        avx512 = avx512 || flag == "avx512f";
      }
      // Lanes x two units x a multiply-add.
      per_cycle = avx512 ? 16 * 2 * 2 : fma ? 8 * 2 * 2 : avx ? 8 * 2 : 4 * 2;
    }
    if (mhz > 0.0 && per_cycle > 0.0) break;
  }
  return 1e6 * mhz * per_cycle * num_threads;
}

}  // namespace cadre
