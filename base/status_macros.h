#ifndef CADRE_BASE_STATUS_MACROS_H_
#define CADRE_BASE_STATUS_MACROS_H_

// Early return on error, for functions that return absl::Status or
// absl::StatusOr<T>. The packaged Abseil (20220623) has no such macros.
//
//   CADRE_RETURN_IF_ERROR(file.Flush());
//   CADRE_ASSIGN_OR_RETURN(Shard shard, OpenShard(path));

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define CADRE_RETURN_IF_ERROR(expr)                             \
  do {                                                          \
    if (absl::Status cadre_status = (expr); !cadre_status.ok()) \
      return cadre_status;                                      \
  } while (false)

#define CADRE_MACRO_CONCAT_INNER(a, b) a##b
#define CADRE_MACRO_CONCAT(a, b) CADRE_MACRO_CONCAT_INNER(a, b)

#define CADRE_ASSIGN_OR_RETURN(lhs, expr)                                    \
  CADRE_ASSIGN_OR_RETURN_IMPL(CADRE_MACRO_CONCAT(cadre_statusor_, __LINE__), \
                              lhs, expr)

#define CADRE_ASSIGN_OR_RETURN_IMPL(var, lhs, expr) \
  auto var = (expr);                                \
  if (!var.ok()) return std::move(var).status();    \
  lhs = *std::move(var)

namespace cadre {

// Puts what was being attempted in front of an error's message; OK stays OK.
absl::Status Annotate(const absl::Status& status, absl::string_view context);

}  // namespace cadre

#endif  // CADRE_BASE_STATUS_MACROS_H_
