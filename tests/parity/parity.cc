// Compares Cadre's training against a golden fixture made by an independent
// implementation: forward, gradients, trajectories, adapters. Exit 0: all
// within tolerance; 1: not; 2: usage or unreadable fixture.

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/status_macros.h"
#include "plan/mesh.h"
#include "plan/pass_memory.h"
#include "tests/parity/mesh_run.h"
#include "tests/parity/runs.h"
#include "worker/device/device.h"

namespace {

struct Flags {
  std::string golden, device = "cpu", dtype = "f32";
  int ranks = 1, expert_parallel_size = 1, fsdp_shard_group_size = 1;
  int cpu_threads = 1;
  int replayed_blocks = 0;
};

cadre::MeshSpec MeshOf(const Flags& flags) {
  return {.world_size = flags.ranks,
          .fsdp_shard_group_size = flags.fsdp_shard_group_size,
          .expert_parallel_size = flags.expert_parallel_size};
}

// What this build cannot run is refused, never skipped.
absl::Status CheckSupported(const Flags& flags) {
  if (flags.device != "cpu" && flags.device != "cuda") {
    return absl::InvalidArgumentError(
        absl::StrCat("--device ", flags.device, ": must be cpu or cuda"));
  }
  if (flags.dtype != "f32" &&
      (flags.dtype != "bf16" || flags.device == "cpu")) {
    return absl::InvalidArgumentError(
        absl::StrCat("--dtype ", flags.dtype, " with --device ", flags.device,
                     ": must be f32, or bf16 on cuda"));
  }
  // The same rules as for a job, under the names of the flags.
  const absl::Status mesh = cadre::Mesh::Create(MeshOf(flags)).status();
  if (mesh.ok()) return mesh;
  return absl::InvalidArgumentError(absl::StrReplaceAll(
      mesh.message(),
      {{"parallelism.expert_parallel_size", "--expert-parallel-size"},
       {"parallelism.fsdp_shard_group_size", "--fsdp-shard-group-size"},
       {"workers of the job", "ranks (--ranks)"}}));
}

absl::Status Run(const Flags& flags, const std::string& scratch,
                 cadre::parity::Report* report) {
  CADRE_RETURN_IF_ERROR(CheckSupported(flags));
  CADRE_ASSIGN_OR_RETURN(const cadre::parity::Golden golden,
                         cadre::parity::ReadGolden(flags.golden));
  CADRE_ASSIGN_OR_RETURN(const cadre::ModelDir dir,
                         cadre::ModelDir::Open(flags.golden + "/model"));
  std::unique_ptr<cadre::Device> device;
  if (flags.device == "cuda") {
    absl::StatusOr<std::unique_ptr<cadre::Device>> opened =
        cadre::OpenCudaDevice(0);
    CADRE_RETURN_IF_ERROR(cadre::Annotate(opened.status(), "--device cuda"));
    device = *std::move(opened);
  }
  const bool narrow = flags.dtype == "bf16";
  const cadre::parity::RunOptions options{
      .exec = device == nullptr ? cadre::Exec() : device->exec(),
      .dtype = narrow ? cadre::DType::kBF16 : cadre::DType::kF32,
      .tolerances = narrow ? cadre::parity::kBf16Tolerances
                           : cadre::parity::kF32Tolerances,
      .cpu_threads = flags.cpu_threads,
      .replayed_blocks = flags.replayed_blocks,
      .scratch_dir = scratch};
  if (flags.ranks > 1) {
    if (device != nullptr) {
      return absl::InvalidArgumentError(
          "--device cuda with --ranks above 1: ranks are threads of this "
          "program, which share one GPU; use cpu");
    }
    const cadre::MeshSpec mesh = MeshOf(flags);
    CADRE_RETURN_IF_ERROR(
        CompareFullOnMesh(golden, dir, mesh, options, report));
    for (const std::string& run : golden.lora_runs) {
      CADRE_RETURN_IF_ERROR(cadre::Annotate(
          CompareLoraOnMesh(golden, dir, run, mesh, options, report),
          "lora_" + run));
    }
    return absl::OkStatus();
  }
  CADRE_RETURN_IF_ERROR(cadre::Annotate(CompareExport(dir, options, report),
                                        "writing the checkpoint back"));
  CADRE_RETURN_IF_ERROR(CompareForward(golden, dir, options, report));
  CADRE_RETURN_IF_ERROR(CompareFull(golden, dir, options, report));
  for (const std::string& run : golden.lora_runs) {
    CADRE_RETURN_IF_ERROR(cadre::Annotate(
        CompareLora(golden, dir, run, options, report), "lora_" + run));
  }
  return absl::OkStatus();
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags;
  CLI::App app("Compares training against a golden fixture.", "parity");
  app.add_option("--golden", flags.golden, "Folder of one architecture")
      ->required();
  app.add_option("--device", flags.device, "cpu or cuda")
      ->capture_default_str();
  app.add_option("--dtype", flags.dtype, "f32, or bf16 on cuda")
      ->capture_default_str();
  app.add_option("--ranks", flags.ranks,
                 "Ranks; above 1 only what ranks share is compared")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--expert-parallel-size", flags.expert_parallel_size,
                 "Ranks that share one copy of the experts")
      ->capture_default_str();
  app.add_option("--fsdp-shard-group-size", flags.fsdp_shard_group_size,
                 "Ranks that share one copy of the dense parameters")
      ->capture_default_str();
  app.add_option("--cpu-threads", flags.cpu_threads, "Threads of a rank")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--replayed-blocks", flags.replayed_blocks,
                 "Replay the first so many blocks in the backward pass");
  app.add_flag_callback(
      "--activation-checkpointing",
      [&flags] { flags.replayed_blocks = cadre::kAllBlocks; },
      "Replay each block in the backward pass");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  }
  const char* base = std::getenv("TEST_TMPDIR");
  const std::string scratch =
      absl::StrCat(base != nullptr ? base : "/tmp", "/parity-", getpid());
  cadre::parity::Report report;
  const absl::Status status = Run(flags, scratch, &report);
  std::error_code error;
  std::filesystem::remove_all(scratch, error);
  if (!status.ok()) {
    std::cerr << "parity: " << status.message() << "\n";
    return 2;
  }
  std::cout << report.Render();
  std::cout << (report.passed() ? "PASS " : "FAIL ") << flags.golden << "\n";
  return report.passed() ? 0 : 1;
}
