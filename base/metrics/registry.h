#ifndef CADRE_BASE_METRICS_REGISTRY_H_
#define CADRE_BASE_METRICS_REGISTRY_H_

// Prometheus metrics of one process. A registry is created in main (or a test)
// and handed down; there is no global one. Series are made once at start, and
// the references kept: making one is slow. Thread-safe.
//
//   MetricsRegistry metrics;
//   prometheus::Counter& ok = metrics.Counter(metric::kSync,
//   {{"result","ok"}}); ok.Increment();                       // include
//   prometheus/counter.h auto server = MetricsServer::Start("127.0.0.1:0",
//   &metrics,
//                                      "--metrics-listen");

#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/metrics/names.h"

namespace prometheus {
class Counter;
class Gauge;
class Histogram;
}  // namespace prometheus

namespace cadre {

using MetricLabels = std::map<std::string, std::string>;

class MetricsRegistry {
 public:
  MetricsRegistry();
  ~MetricsRegistry();
  MetricsRegistry(const MetricsRegistry&) = delete;
  MetricsRegistry& operator=(const MetricsRegistry&) = delete;

  // The series of these labels, made on first use with value 0. Valid until
  // Remove or the end of the registry. The type must be the definition's.
  prometheus::Counter& Counter(const MetricDef& def,
                               const MetricLabels& labels = {});
  prometheus::Gauge& Gauge(const MetricDef& def,
                           const MetricLabels& labels = {});
  prometheus::Histogram& Histogram(const MetricDef& def,
                                   const MetricLabels& labels = {});

  // Deletes a gauge's series; references to it dangle from then on.
  void RemoveGauge(const MetricDef& def, const MetricLabels& labels);

  // The text exposition format, as served.
  std::string Text() const;

 private:
  friend class MetricsServer;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Serves a registry at http://ADDRESS/metrics. One per process and none in unit
// tests: stopping it takes over a second (civetweb polls). Movable.
class MetricsServer {
 public:
  // `address` is host:port, port 0 picks one; "off" serves nothing. `flag` is
  // named as the remedy when the address cannot be had. The registry must
  // outlive the server.
  static absl::StatusOr<MetricsServer> Start(absl::string_view address,
                                             MetricsRegistry* registry,
                                             absl::string_view flag);
  MetricsServer(MetricsServer&&) noexcept;
  MetricsServer& operator=(MetricsServer&&) noexcept;
  ~MetricsServer();

  // 0 when off.
  int port() const { return port_; }

 private:
  struct Impl;
  MetricsServer();
  std::unique_ptr<Impl> impl_;
  int port_ = 0;
};

}  // namespace cadre

#endif  // CADRE_BASE_METRICS_REGISTRY_H_
