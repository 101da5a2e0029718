#ifndef CADRE_TESTS_PARITY_REPORT_H_
#define CADRE_TESTS_PARITY_REPORT_H_

// The table of a parity run: one row per quantity with the largest error, where
// it is, and whether it is within the tolerance (models.md section 7).

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace cadre::parity {

// max |a - b| / max |b|
double MaxError(absl::Span<const float> a, absl::Span<const float> b);
// |a - b|_2 / |b|_2
double NormError(absl::Span<const float> a, absl::Span<const float> b);

class Report {
 public:
  // Rows keep the order in which their quantity first appears; each keeps its
  // worst error.
  void Add(const std::string& quantity, double error, double tolerance,
           const std::string& where);
  // Something that is missing or wrong in shape: never within tolerance.
  void Fail(const std::string& quantity, const std::string& why);

  bool passed() const;
  std::string Render() const;

 private:
  struct Row {
    std::string quantity, where;
    double error = -1, tolerance = 0;
    int count = 0;
    bool failed = false;
  };
  Row& Find(const std::string& quantity);
  std::vector<Row> rows_;
};

}  // namespace cadre::parity

#endif  // CADRE_TESTS_PARITY_REPORT_H_
