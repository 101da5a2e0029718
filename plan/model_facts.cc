#include "plan/model_facts.h"

#include <sys/stat.h>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "model/model_dir.h"
#include "model/tensor_names.h"

namespace cadre {
namespace {

bool IsFile(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode);
}

bool IsFolder(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

absl::Status Load(const v1::ModelSpec& spec, ModelFacts* facts) {
  if (spec.init() == "random") {
    const std::string config = spec.config().empty()
                                   ? absl::StrCat(spec.path(), "/config.json")
                                   : spec.config();
    CADRE_ASSIGN_OR_RETURN(const std::string text, ReadFile(config));
    auto parsed = ParseModelSpec(text);
    if (!parsed.ok()) return Annotate(parsed.status(), config);
    facts->spec = *std::move(parsed);
    return absl::OkStatus();
  }
  if (!IsFolder(spec.path())) {
    return absl::NotFoundError(
        absl::StrCat("there is no folder ", spec.path(), " where this runs; ",
                     "model.path names a model folder that coordinator and ",
                     "workers can read"));
  }
  if (!IsFile(absl::StrCat(spec.path(), "/config.json"))) {
    return absl::NotFoundError(
        absl::StrCat(spec.path(), " has no config.json: it is not a model ",
                     "folder in the Hugging Face layout"));
  }
  CADRE_ASSIGN_OR_RETURN(const ModelDir dir, ModelDir::Open(spec.path()));
  facts->spec = dir.spec();
  facts->fingerprint = dir.Fingerprint();
  return absl::OkStatus();
}

}  // namespace

ModelFacts LoadModelFacts(const v1::ModelSpec& spec) {
  ModelFacts facts;
  facts.status = Load(spec, &facts);
  facts.tokenizer_dir =
      spec.tokenizer().empty() ? spec.path() : spec.tokenizer();
  facts.has_tokenizer =
      !facts.tokenizer_dir.empty() &&
      IsFile(absl::StrCat(facts.tokenizer_dir, "/tokenizer.json"));
  if (facts.spec.has_value()) {
    for (const LogicalTensor& tensor : LogicalTensors(*facts.spec)) {
      if (tensor.role == LogicalTensor::Role::kBuffer) continue;
      facts.total_parameters += tensor.num_elements();
    }
  }
  return facts;
}

}  // namespace cadre
