#include "base/metrics/registry.h"

#include <prometheus/collectable.h>
#include <prometheus/counter.h>
#include <prometheus/exposer.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <exception>
#include <list>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/rpc/address.h"
#include "base/status_macros.h"

namespace cadre {

std::vector<double> BucketBounds(MetricDef::Buckets buckets) {
  if (buckets == MetricDef::Buckets::kCounts) {
    return {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048};
  }
  if (buckets == MetricDef::Buckets::kFast) {
    return {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05,
            0.1,   0.25,   0.5,   1,    2.5,   10};
  }
  return {0.1, 0.25, 0.5, 1, 2.5, 10, 30, 60, 300, 900, 1800, 3600};
}

namespace {

// A registry behind hooks. Shared with the exposer, which holds a weak
// reference.
struct Hooked final : public prometheus::Collectable {
  // On a thread of its own. civetweb's have 100 KiB of stack, from which the
  // thread-local data of every library is taken (OpenBLAS: 60 KiB), and one
  // guard page, over which a large frame steps into other memory. Hooks read
  // files, parse certificates and call drivers.
  std::vector<prometheus::MetricFamily> Collect() const override {
    std::vector<prometheus::MetricFamily> families;
    try {
      std::thread([&] {
        Refresh();
        families = registry.Collect();
      }).join();
    } catch (const std::system_error& e) {
      CADRE_LOG(WARNING) << "metrics: no thread to refresh them on: "
                         << e.what();
      return registry.Collect();
    }
    return families;
  }

  void Refresh() const {
    const std::lock_guard<std::mutex> lock(mutex);
    for (const std::function<void()>& refresh : hooks) refresh();
  }

  prometheus::Registry registry;
  mutable std::mutex mutex;
  std::list<std::function<void()>> hooks;
};

class Hook final : public ScrapeHook {
 public:
  Hook(Hooked* hooked, std::function<void()> refresh) : hooked_(hooked) {
    const std::lock_guard<std::mutex> lock(hooked_->mutex);
    place_ = hooked_->hooks.insert(hooked_->hooks.end(), std::move(refresh));
  }
  ~Hook() override {
    const std::lock_guard<std::mutex> lock(hooked_->mutex);
    hooked_->hooks.erase(place_);
  }

 private:
  Hooked* const hooked_;
  std::list<std::function<void()>>::iterator place_;
};

}  // namespace

struct MetricsRegistry::Impl {
  std::shared_ptr<Hooked> hooked = std::make_shared<Hooked>();
};

MetricsRegistry::MetricsRegistry() : impl_(std::make_unique<Impl>()) {}
MetricsRegistry::~MetricsRegistry() = default;

prometheus::Counter& MetricsRegistry::Counter(const MetricDef& def,
                                              const MetricLabels& labels) {
  CADRE_CHECK(def.type == MetricType::kCounter) << def.name;
  return prometheus::BuildCounter()
      .Name(def.name)
      .Help(def.help)
      .Register(impl_->hooked->registry)
      .Add(labels);
}

prometheus::Gauge& MetricsRegistry::Gauge(const MetricDef& def,
                                          const MetricLabels& labels) {
  CADRE_CHECK(def.type == MetricType::kGauge) << def.name;
  return prometheus::BuildGauge()
      .Name(def.name)
      .Help(def.help)
      .Register(impl_->hooked->registry)
      .Add(labels);
}

prometheus::Histogram& MetricsRegistry::Histogram(const MetricDef& def,
                                                  const MetricLabels& labels) {
  CADRE_CHECK(def.type == MetricType::kHistogram) << def.name;
  return prometheus::BuildHistogram()
      .Name(def.name)
      .Help(def.help)
      .Register(impl_->hooked->registry)
      .Add(labels, BucketBounds(def.buckets));
}

void MetricsRegistry::RemoveGauge(const MetricDef& def,
                                  const MetricLabels& labels) {
  auto& family =
      prometheus::BuildGauge().Name(def.name).Help(def.help).Register(
          impl_->hooked->registry);
  if (family.Has(labels)) family.Remove(&family.Add(labels));
}

std::unique_ptr<ScrapeHook> MetricsRegistry::BeforeScrape(
    std::function<void()> refresh) {
  return std::make_unique<Hook>(impl_->hooked.get(), std::move(refresh));
}

std::string MetricsRegistry::Text() const {
  return prometheus::TextSerializer().Serialize(impl_->hooked->Collect());
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
    server.impl_->exposer->RegisterCollectable(registry->impl_->hooked);
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
