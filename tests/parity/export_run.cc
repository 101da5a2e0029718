// A checkpoint that is loaded into a model and written again holds the bytes it
// was read from.

#include <cstring>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/status_macros.h"
#include "kernels/common/thread_pool.h"
#include "model/checkpoint_writer.h"
#include "tests/parity/runs.h"
#include "worker/model/model.h"

namespace cadre::parity {
namespace {

constexpr char kQuantity[] = "checkpoint written back";

void CompareRaw(const ModelDir& base, const ModelDir& written,
                const std::string& name, Report* report) {
  const auto before = base.ReadRaw(name);
  auto after = written.ReadRaw(name);
  if (!after.ok()) {
    // A dense layer is written under the name that published models have.
    after = written.ReadRaw(
        absl::StrReplaceAll(name, {{".block_sparse_moe.", ".mlp."}}));
  }
  if (!before.ok() || !after.ok()) {
    report->Fail(kQuantity, absl::StrCat(name, " is missing"));
  } else if (before->info.dtype != after->info.dtype ||
             before->info.shape != after->info.shape) {
    report->Fail(kQuantity, absl::StrCat(name, " has another type or shape"));
  } else {
    const bool same = before->bytes.size() == after->bytes.size() &&
                      std::memcmp(before->bytes.data(), after->bytes.data(),
                                  before->bytes.size()) == 0;
    report->Add(kQuantity, same ? 0 : 1, 0, name);
  }
}

}  // namespace

absl::Status CompareExport(const ModelDir& dir, const RunOptions& options,
                           Report* report) {
  ThreadPool pool(options.cpu_threads);
  CADRE_ASSIGN_OR_RETURN(const std::unique_ptr<Model> model,
                         Model::Create(dir.spec(), {.exec = {.pool = &pool}}));
  CADRE_RETURN_IF_ERROR(model->LoadWeights(dir));
  const TensorSource source = [&](const LogicalTensor& tensor, int64_t begin,
                                  int64_t end,
                                  absl::Span<float> out) -> absl::Status {
    const Parameter* parameter = model->parameters().Find(tensor.name);
    if (parameter == nullptr) {
      return absl::InternalError(
          absl::StrCat("the model has no ", tensor.name));
    }
    const Tensor rows = parameter->value.Rows(begin, end);
    std::memcpy(out.data(), rows.raw(), rows.num_bytes());
    return absl::OkStatus();
  };
  const std::string to = options.scratch_dir + "/checkpoint";
  CADRE_RETURN_IF_ERROR(WriteCheckpoint(dir, source, to, {}));
  CADRE_ASSIGN_OR_RETURN(const ModelDir written, ModelDir::Open(to));
  for (const LogicalTensor& tensor : dir.tensors()) {
    for (const DiskPiece& piece : dir.layout(tensor).pieces) {
      CompareRaw(dir, written, piece.disk_name, report);
    }
  }
  for (const std::string& name : dir.skipped().names) {
    CompareRaw(dir, written, name, report);
  }
  return absl::OkStatus();
}

}  // namespace cadre::parity
