#include "base/proto_file.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "google/protobuf/io/tokenizer.h"
#include "google/protobuf/text_format.h"

namespace cadre {
namespace {

class Collector final : public google::protobuf::io::ErrorCollector {
 public:
  explicit Collector(absl::string_view name) : name_(name) {}
  // Line and column count from 0; -1 says the whole file.
  void AddError(int line, google::protobuf::io::ColumnNumber column,
                const std::string& message) override {
    errors_.push_back(
        absl::StrCat(name_, ":", line + 1, ":", column + 1, ": ", message));
  }
  const std::vector<std::string>& errors() const { return errors_; }

 private:
  const std::string name_;
  std::vector<std::string> errors_;
};

}  // namespace

absl::Status ParseTextProto(absl::string_view name, const std::string& text,
                            google::protobuf::Message* message) {
  Collector collector(name);
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&collector);
  if (parser.ParseFromString(text, message)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrJoin(collector.errors(), "\n"));
}

absl::Status ReadTextProto(const std::string& path,
                           google::protobuf::Message* message) {
  CADRE_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  return ParseTextProto(path, text, message);
}

}  // namespace cadre
