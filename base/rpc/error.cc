#include "base/rpc/error.h"

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "google/rpc/error_details.pb.h"

namespace cadre {
namespace {

constexpr char kTypePrefix[] = "type.googleapis.com/";

std::string TypeUrl(const google::protobuf::Message& message) {
  return absl::StrCat(kTypePrefix, message.GetDescriptor()->full_name());
}

}  // namespace

absl::Status Error(absl::StatusCode code, absl::string_view reason,
                   absl::string_view message,
                   const std::map<std::string, std::string>& metadata) {
  absl::Status status(code, message);
  google::rpc::ErrorInfo info;
  info.set_reason(std::string(reason));
  info.set_domain("cadre");
  for (const auto& [key, value] : metadata) {
    (*info.mutable_metadata())[key] = value;
  }
  AddDetail(info, &status);
  return status;
}

void AddDetail(const google::protobuf::Message& detail, absl::Status* status) {
  status->SetPayload(TypeUrl(detail), absl::Cord(detail.SerializeAsString()));
}

absl::Status WithRetry(absl::Status status, absl::Duration delay) {
  google::rpc::RetryInfo retry;
  retry.mutable_retry_delay()->set_seconds(absl::ToInt64Seconds(delay));
  retry.mutable_retry_delay()->set_nanos(
      static_cast<int32_t>(absl::ToInt64Nanoseconds(delay % absl::Seconds(1))));
  AddDetail(retry, &status);
  return status;
}

bool ReadDetail(const absl::Status& status,
                google::protobuf::Message* message) {
  const auto payload = status.GetPayload(TypeUrl(*message));
  return payload.has_value() && message->ParseFromString(std::string(*payload));
}

std::string ErrorReason(const absl::Status& status) {
  google::rpc::ErrorInfo info;
  return ReadDetail(status, &info) ? info.reason() : "";
}

std::string ErrorMetadata(const absl::Status& status, absl::string_view key) {
  google::rpc::ErrorInfo info;
  if (!ReadDetail(status, &info)) return "";
  const auto it = info.metadata().find(std::string(key));
  return it == info.metadata().end() ? "" : it->second;
}

google::rpc::Status ToRpcStatus(const absl::Status& status) {
  google::rpc::Status rpc;
  rpc.set_code(static_cast<int>(status.code()));
  rpc.set_message(std::string(status.message()));
  status.ForEachPayload(
      [&rpc](absl::string_view type_url, const absl::Cord& payload) {
        auto* detail = rpc.add_details();
        detail->set_type_url(std::string(type_url));
        detail->set_value(std::string(payload));
      });
  return rpc;
}

absl::Status FromRpcStatus(const google::rpc::Status& rpc) {
  absl::Status status(static_cast<absl::StatusCode>(rpc.code()), rpc.message());
  for (const auto& detail : rpc.details()) {
    status.SetPayload(detail.type_url(), absl::Cord(detail.value()));
  }
  return status;
}

}  // namespace cadre
