#include "base/metrics/registry.h"

#include <prometheus/counter.h>
#include <prometheus/exposer.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <exception>

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/rpc/address.h"
#include "base/status_macros.h"

namespace cadre {

std::vector<double> BucketBounds(MetricDef::Buckets buckets) {
  if (buckets == MetricDef::Buckets::kFast) {
    return {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05,
            0.1,   0.25,   0.5,   1,    2.5,   10};
  }
  return {0.1, 0.25, 0.5, 1, 2.5, 10, 30, 60, 300, 900, 1800, 3600};
}

struct MetricsRegistry::Impl {
  // Shared with the exposer, which holds a weak reference.
  std::shared_ptr<prometheus::Registry> registry =
      std::make_shared<prometheus::Registry>();
};

MetricsRegistry::MetricsRegistry() : impl_(std::make_unique<Impl>()) {}
MetricsRegistry::~MetricsRegistry() = default;

prometheus::Counter& MetricsRegistry::Counter(const MetricDef& def,
                                              const MetricLabels& labels) {
  CADRE_CHECK(def.type == MetricType::kCounter) << def.name;
  return prometheus::BuildCounter()
      .Name(def.name)
      .Help(def.help)
      .Register(*impl_->registry)
      .Add(labels);
}

prometheus::Gauge& MetricsRegistry::Gauge(const MetricDef& def,
                                          const MetricLabels& labels) {
  CADRE_CHECK(def.type == MetricType::kGauge) << def.name;
  return prometheus::BuildGauge()
      .Name(def.name)
      .Help(def.help)
      .Register(*impl_->registry)
      .Add(labels);
}

prometheus::Histogram& MetricsRegistry::Histogram(const MetricDef& def,
                                                  const MetricLabels& labels) {
  CADRE_CHECK(def.type == MetricType::kHistogram) << def.name;
  return prometheus::BuildHistogram()
      .Name(def.name)
      .Help(def.help)
      .Register(*impl_->registry)
      .Add(labels, BucketBounds(def.buckets));
}

void MetricsRegistry::RemoveGauge(const MetricDef& def,
                                  const MetricLabels& labels) {
  auto& family =
      prometheus::BuildGauge().Name(def.name).Help(def.help).Register(
          *impl_->registry);
  if (family.Has(labels)) family.Remove(&family.Add(labels));
}

std::string MetricsRegistry::Text() const {
  return prometheus::TextSerializer().Serialize(impl_->registry->Collect());
}

struct MetricsServer::Impl {
  std::unique_ptr<prometheus::Exposer> exposer;
};

MetricsServer::MetricsServer() : impl_(std::make_unique<Impl>()) {}
MetricsServer::MetricsServer(MetricsServer&&) noexcept = default;
MetricsServer& MetricsServer::operator=(MetricsServer&&) noexcept = default;
MetricsServer::~MetricsServer() = default;

absl::StatusOr<MetricsServer> MetricsServer::Start(absl::string_view address,
                                                   MetricsRegistry* registry,
                                                   absl::string_view flag) {
  MetricsServer server;
  if (address == "off") return server;
  CADRE_ASSIGN_OR_RETURN(const Address parsed, ParseAddress(address));
  CADRE_RETURN_IF_ERROR(Annotate(CheckCanListen(parsed, flag), "metrics"));
  try {
    server.impl_->exposer =
        std::make_unique<prometheus::Exposer>(FormatAddress(parsed), 1);
    server.impl_->exposer->RegisterCollectable(registry->impl_->registry);
    const std::vector<int> ports = server.impl_->exposer->GetListeningPorts();
    if (!ports.empty()) server.port_ = ports[0];
  } catch (const std::exception& e) {
    return absl::FailedPreconditionError(
        absl::StrCat("metrics: cannot listen on ", address, ": ", e.what(),
                     "; choose another address with ", flag));
  }
  return server;
}

}  // namespace cadre
