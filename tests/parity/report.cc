#include "tests/parity/report.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_format.h"

namespace cadre::parity {

double MaxError(absl::Span<const float> a, absl::Span<const float> b) {
  double difference = 0, largest = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    const double d = std::abs(double{a[i]} - double{b[i]});
    // A NaN compares false with everything: the next value would replace it.
    if (std::isnan(d)) return d;
    difference = std::max(difference, d);
    largest = std::max(largest, std::abs(double{b[i]}));
  }
  return largest > 0 ? difference / largest : difference;
}

double NormError(absl::Span<const float> a, absl::Span<const float> b) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    const double d = double{a[i]} - double{b[i]};
    difference += d * d;
    norm += double{b[i]} * double{b[i]};
  }
  return std::sqrt(norm > 0 ? difference / norm : difference);
}

Report::Row& Report::Find(const std::string& quantity) {
  for (Row& row : rows_) {
    if (row.quantity == quantity) return row;
  }
  rows_.push_back({.quantity = quantity});
  return rows_.back();
}

void Report::Add(const std::string& quantity, double error, double tolerance,
                 const std::string& where) {
  Row& row = Find(quantity);
  ++row.count;
  // A NaN, once there, stays: it is the worst error of all.
  if (!std::isnan(row.error) && !(error <= row.error)) {
    row.error = error;
    row.tolerance = tolerance;
    if (!row.failed) row.where = where;
  }
  if (!(error <= tolerance)) row.failed = true;
}

void Report::Fail(const std::string& quantity, const std::string& why) {
  Row& row = Find(quantity);
  ++row.count;
  row.failed = true;
  row.error = std::numeric_limits<double>::infinity();
  row.where = why;
}

bool Report::passed() const {
  return !rows_.empty() &&
         std::none_of(rows_.begin(), rows_.end(),
                      [](const Row& row) { return row.failed; });
}

std::string Report::Render() const {
  std::string out =
      absl::StrFormat("%-30s %6s %11s %9s  %-4s %s\n", "quantity", "count",
                      "max error", "allowed", "", "where");
  for (const Row& row : rows_) {
    absl::StrAppendFormat(&out, "%-30s %6d %11.3e %9.0e  %-4s %s\n",
                          row.quantity, row.count, row.error, row.tolerance,
                          row.failed ? "FAIL" : "ok", row.where);
  }
  return out;
}

}  // namespace cadre::parity
