#include "base/metrics/registry.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>

#include "base/small_stack.h"
#include "base/status_matchers.h"

namespace cadre {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(MetricsRegistry, ServesWhatWasCounted) {
  MetricsRegistry metrics;
  metrics.Counter(metric::kJobsCreated, {{"result", "ok"}}).Increment();
  metrics.Counter(metric::kJobsCreated, {{"result", "ok"}}).Increment();
  metrics.Gauge(metric::kJobs, {{"state", "QUEUED"}}).Set(3);
  metrics.Histogram(metric::kJournalCommit).Observe(0.002);
  const std::string text = metrics.Text();
  EXPECT_THAT(text, HasSubstr("cadre_jobs_created_total{result=\"ok\"} 2"));
  EXPECT_THAT(text, HasSubstr("cadre_jobs{state=\"QUEUED\"} 3"));
  EXPECT_THAT(
      text, HasSubstr("cadre_journal_commit_seconds_bucket{le=\"0.0025\"} 1"));
}

TEST(MetricsRegistry, RemovesASeriesAndMakesItAnew) {
  MetricsRegistry metrics;
  metrics.Gauge(metric::kJobProgress, {{"job", "a"}}).Set(1);
  metrics.RemoveGauge(metric::kJobProgress, {{"job", "a"}});
  metrics.RemoveGauge(metric::kJobProgress, {{"job", "never"}});
  EXPECT_THAT(metrics.Text(), Not(HasSubstr("job=\"a\"")));
  metrics.Gauge(metric::kJobProgress, {{"job", "a"}}).Set(0.5);
  EXPECT_THAT(metrics.Text(), HasSubstr("{job=\"a\"} 0.5"));
}

TEST(MetricsRegistry, RefreshesBeforeAScrapeUntilTheHookGoes) {
  MetricsRegistry metrics;
  prometheus::Gauge& jobs = metrics.Gauge(metric::kJobs, {{"state", "A"}});
  int scrapes = 0;
  auto hook = metrics.BeforeScrape([&] { jobs.Set(++scrapes); });
  EXPECT_THAT(metrics.Text(), HasSubstr("{state=\"A\"} 1"));
  EXPECT_THAT(metrics.Text(), HasSubstr("{state=\"A\"} 2"));
  hook.reset();
  EXPECT_THAT(metrics.Text(), HasSubstr("{state=\"A\"} 2"));
}

// The server's threads have small ones.
TEST(MetricsRegistry, HooksHaveAWholeStackWhereverTheScrapeComesFrom) {
  MetricsRegistry metrics;
  prometheus::Gauge& jobs = metrics.Gauge(metric::kJobs, {{"state", "A"}});
  const auto hook = metrics.BeforeScrape([&] {
    volatile char large[4 * testing::kSmallStackBytes];
    for (size_t i = 0; i < sizeof(large); i += 1024) large[i] = 1;
    jobs.Set(large[0]);
  });
  testing::RunOnSmallStack(
      [&] { EXPECT_THAT(metrics.Text(), HasSubstr("{state=\"A\"} 1")); });
}

TEST(MetricsServer, OffServesNothing) {
  MetricsRegistry metrics;
  ASSERT_OK_AND_ASSIGN(auto server,
                       MetricsServer::Start("off", &metrics, "--m"));
  EXPECT_EQ(server.port(), 0);
  EXPECT_FALSE(MetricsServer::Start("nonsense", &metrics, "--m").ok());
}

}  // namespace
}  // namespace cadre
