#include "coordinator/etcd.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "base/rpc/address.h"
#include "base/rpc/grpc_status.h"
#include "base/rpc/tls.h"
#include "base/status_macros.h"
#include "etcd/etcd.grpc.pb.h"

namespace cadre::coordinator {
namespace {

namespace pb = ::etcdserverpb;

// So that one endpoint that swallows packets leaves time for the next.
constexpr absl::Duration kPerEndpoint = absl::Milliseconds(700);

}  // namespace

struct Etcd::Impl {
  struct Endpoint {
    std::string address;
    std::shared_ptr<grpc::Channel> channel;
    std::unique_ptr<pb::KV::Stub> kv;
    std::unique_ptr<pb::Lease::Stub> lease;
  };
  std::vector<Endpoint> endpoints;
  std::atomic<size_t> preferred{0};

  // call(context, endpoint) until one answers.
  template <typename Call>
  absl::Status Try(absl::Duration timeout, Call call) {
    const absl::Time deadline = absl::Now() + timeout;
    const size_t first = preferred;
    absl::Status last =
        absl::DeadlineExceededError("etcd: no time left to ask");
    for (size_t i = 0; absl::Now() < deadline; ++i) {
      const size_t index = (first + i) % endpoints.size();
      const Endpoint& endpoint = endpoints[index];
      grpc::ClientContext context;
      // gRPC goes on connecting only while someone waits for it: calls that
      // fail at once would leave each attempt lying until its time is over.
      context.set_wait_for_ready(true);
      context.set_deadline(absl::ToChronoTime(
          endpoints.size() == 1
              ? deadline
              : std::min(deadline, absl::Now() + kPerEndpoint)));
      last = FromGrpcStatus(call(&context, endpoint));
      if (absl::IsDeadlineExceeded(last) &&
          endpoint.channel->GetState(false) != GRPC_CHANNEL_READY) {
        last = absl::UnavailableError("cannot connect");
      }
      if (!absl::IsUnavailable(last) && !absl::IsDeadlineExceeded(last)) {
        preferred = index;
        if (last.ok()) return last;
        return Annotate(last, absl::StrCat("etcd at ", endpoint.address));
      }
      last = Annotate(last, absl::StrCat("etcd at ", endpoint.address));
      if (i + 1 >= endpoints.size()) {
        absl::SleepFor(
            std::min(absl::Milliseconds(100), deadline - absl::Now()));
      }
    }
    return last;
  }
};

absl::StatusOr<std::unique_ptr<Etcd>> Etcd::Connect(
    const EtcdOptions& options) {
  auto impl = std::make_unique<Impl>();
  std::shared_ptr<grpc::ChannelCredentials> credentials =
      grpc::InsecureChannelCredentials();
  if (!options.ca_file.empty()) {
    CADRE_ASSIGN_OR_RETURN(credentials,
                           ClientTls({.ca = options.ca_file,
                                      .certificate = options.certificate_file,
                                      .key = options.key_file}));
  }
  for (const std::string& address : options.endpoints) {
    CADRE_RETURN_IF_ERROR(
        Annotate(ParseAddress(address).status(), "election.endpoints"));
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
    // In truth the time that one attempt to connect may take.
    arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 2000);
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500);
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    const auto channel =
        grpc::CreateCustomChannel(address, credentials, arguments);
    impl->endpoints.push_back({.address = address,
                               .channel = channel,
                               .kv = pb::KV::NewStub(channel),
                               .lease = pb::Lease::NewStub(channel)});
  }
  if (impl->endpoints.empty()) {
    return absl::InvalidArgumentError(
        "election.endpoints is empty: name etcd's members as host:port");
  }
  return std::unique_ptr<Etcd>(new Etcd(std::move(impl)));
}

Etcd::Etcd(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Etcd::~Etcd() = default;

absl::StatusOr<int64_t> Etcd::GrantLease(absl::Duration ttl,
                                         absl::Duration timeout) {
  pb::LeaseGrantRequest request;
  request.set_ttl(static_cast<int64_t>(std::ceil(absl::ToDoubleSeconds(ttl))));
  pb::LeaseGrantResponse response;
  CADRE_RETURN_IF_ERROR(impl_->Try(
      timeout, [&](grpc::ClientContext* context, const auto& endpoint) {
        return endpoint.lease->LeaseGrant(context, request, &response);
      }));
  if (!response.error().empty()) {
    return absl::InternalError(
        absl::StrCat("etcd grants no lease: ", response.error()));
  }
  return response.id();
}

absl::Status Etcd::KeepAlive(int64_t lease, absl::Duration timeout) {
  pb::LeaseKeepAliveResponse response;
  CADRE_RETURN_IF_ERROR(impl_->Try(
      timeout,
      [&](grpc::ClientContext* context, const auto& endpoint) -> grpc::Status {
        const auto stream = endpoint.lease->LeaseKeepAlive(context);
        pb::LeaseKeepAliveRequest request;
        request.set_id(lease);
        const bool answered = stream->Write(request) && stream->Read(&response);
        if (answered) {
          // The one answer is all that is wanted of the stream.
          context->TryCancel();
          stream->Finish();
          return grpc::Status::OK;
        }
        return stream->Finish();
      }));
  if (response.ttl() <= 0) {
    return absl::NotFoundError(
        absl::StrCat("etcd knows no lease ", lease, " any more"));
  }
  return absl::OkStatus();
}

absl::Status Etcd::Revoke(int64_t lease, absl::Duration timeout) {
  pb::LeaseRevokeRequest request;
  request.set_id(lease);
  pb::LeaseRevokeResponse response;
  return impl_->Try(
      timeout, [&](grpc::ClientContext* context, const auto& endpoint) {
        return endpoint.lease->LeaseRevoke(context, request, &response);
      });
}

absl::StatusOr<Etcd::Claimed> Etcd::Claim(const std::string& key,
                                          const std::string& value,
                                          int64_t lease,
                                          absl::Duration timeout) {
  pb::TxnRequest request;
  auto* compare = request.add_compare();
  compare->set_key(key);
  compare->set_target(pb::Compare::CREATE);
  compare->set_result(pb::Compare::EQUAL);
  compare->set_create_revision(0);
  auto* put = request.add_success()->mutable_request_put();
  put->set_key(key);
  put->set_value(value);
  put->set_lease(lease);
  request.add_failure()->mutable_request_range()->set_key(key);
  pb::TxnResponse response;
  CADRE_RETURN_IF_ERROR(impl_->Try(
      timeout, [&](grpc::ClientContext* context, const auto& endpoint) {
        return endpoint.kv->Txn(context, request, &response);
      }));
  // The store's revision grows with each put, so it orders the holders.
  if (response.succeeded()) {
    return Claimed{.won = true, .term = response.header().revision()};
  }
  if (response.responses_size() != 1 ||
      response.responses(0).response_range().kvs_size() != 1) {
    return absl::UnavailableError(
        absl::StrCat("etcd: ", key, " came and went; ask again"));
  }
  const auto& kv = response.responses(0).response_range().kvs(0);
  if (kv.lease() == lease) {
    return Claimed{.won = true, .term = kv.create_revision()};
  }
  return Claimed{.holder = kv.value()};
}

}  // namespace cadre::coordinator
