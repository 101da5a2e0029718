#ifndef CADRE_PLAN_DATASET_PROTO_H_
#define CADRE_PLAN_DATASET_PROTO_H_

// What a check of a data set found, as the API and the client's JSON say it.
// Pure functions.

#include "base/text/dataset_check.h"
#include "base/text/token_stats.h"
#include "cadre/v1/diagnostics.pb.h"
#include "cadre/v1/job.pb.h"

namespace cadre {

v1::Diagnostic ToProto(const DataError& error,
                       v1::Diagnostic::Severity severity);

// Without long_records and steps_per_epoch.
v1::TokenStats ToProto(const TokenStats& stats);

}  // namespace cadre

#endif  // CADRE_PLAN_DATASET_PROTO_H_
