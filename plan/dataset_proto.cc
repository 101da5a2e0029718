#include "plan/dataset_proto.h"

#include <cstdint>
#include <string>

namespace cadre {

v1::Diagnostic ToProto(const DataError& error,
                       v1::Diagnostic::Severity severity) {
  v1::Diagnostic item;
  item.set_severity(severity);
  item.set_file(error.file);
  item.set_line(static_cast<int32_t>(error.line));
  item.set_column(static_cast<int32_t>(error.column));
  item.set_code(std::string(DataErrorCodeName(error.code)));
  item.set_message(error.message);
  return item;
}

v1::TokenStats ToProto(const TokenStats& stats) {
  v1::TokenStats proto;
  proto.set_records(stats.records);
  proto.set_total_tokens(stats.total_tokens);
  proto.set_loss_tokens(stats.loss_tokens);
  proto.set_min_tokens(stats.min);
  proto.set_p5_tokens(stats.p5);
  proto.set_p50_tokens(stats.p50);
  proto.set_p95_tokens(stats.p95);
  proto.set_p99_tokens(stats.p99);
  proto.set_max_tokens(stats.max);
  for (int64_t count : stats.log2_buckets) proto.add_log2_buckets(count);
  proto.set_truncated(stats.truncated);
  proto.set_dropped(stats.dropped);
  proto.set_packing_fill(stats.packing_fill);
  return proto;
}

}  // namespace cadre
