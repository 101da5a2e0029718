#ifndef CADRE_BASE_STATUS_MATCHERS_H_
#define CADRE_BASE_STATUS_MATCHERS_H_

// GoogleTest helpers for absl::Status (the packaged GoogleTest has none).
//
//   ASSERT_OK(store.Open());
//   ASSERT_OK_AND_ASSIGN(auto plan, MakePlan(spec));
//   EXPECT_THAT(Parse("x"), StatusIs(absl::StatusCode::kInvalidArgument,
//                                    HasSubstr("line 1")));

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_macros.h"

namespace cadre::testing {

inline const absl::Status& AsStatus(const absl::Status& status) {
  return status;
}
template <typename T>
const absl::Status& AsStatus(const absl::StatusOr<T>& value) {
  return value.status();
}

MATCHER(IsOk, "is OK") {
  *result_listener << AsStatus(arg).ToString();
  return AsStatus(arg).ok();
}

MATCHER_P2(StatusIsImpl, code, message, "") {
  *result_listener << AsStatus(arg).ToString();
  return AsStatus(arg).code() == code &&
         ::testing::ExplainMatchResult(
             message, std::string(AsStatus(arg).message()), result_listener);
}
template <typename M>
auto StatusIs(absl::StatusCode code, M message) {
  return StatusIsImpl(code, message);
}
inline auto StatusIs(absl::StatusCode code) {
  return StatusIsImpl(code, ::testing::_);
}

}  // namespace cadre::testing

#define ASSERT_OK(expr) ASSERT_THAT((expr), ::cadre::testing::IsOk())
#define EXPECT_OK(expr) EXPECT_THAT((expr), ::cadre::testing::IsOk())
#define ASSERT_OK_AND_ASSIGN(lhs, expr) \
  ASSERT_OK_AND_ASSIGN_IMPL(CADRE_MACRO_CONCAT(cadre_or_, __LINE__), lhs, expr)
#define ASSERT_OK_AND_ASSIGN_IMPL(var, lhs, expr) \
  auto var = (expr);                              \
  ASSERT_OK(var);                                 \
  lhs = *std::move(var)

#endif  // CADRE_BASE_STATUS_MATCHERS_H_
