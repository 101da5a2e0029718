#include "worker/moe/row_exchange.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/elementwise/elementwise.h"
#include "worker/device/buffer.h"
#include "worker/device/transfer.h"

namespace cadre {
namespace {

constexpr int64_t kWordBytes = sizeof(float);

int64_t RowBytes(const Tensor& rows) {
  return rows.dim(0) == 0 ? 0 : rows.num_bytes() / rows.dim(0);
}

// On the way a row begins on 16 bytes, as the device's wide accesses want it.
int64_t RowWords(int64_t bytes) { return (bytes + 15) / 16 * 16 / kWordBytes; }

// Calls visit(transfer, copy, row bytes, rank of the source, of the target)
// until one fails.
template <typename Visit>
absl::Status ForEachCopy(absl::Span<const RowTransfer> transfers, Visit visit) {
  for (const RowTransfer& transfer : transfers) {
    const int64_t slots = transfer.rows.dim(0);
    if (slots == 0) continue;
    for (const RowCopy& copy : *transfer.copies) {
      CADRE_RETURN_IF_ERROR(visit(transfer, copy, RowBytes(transfer.rows),
                                  copy.from_slot / slots,
                                  copy.to_slot / slots));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ExchangeRows(const Exec& exec, Communicator* group,
                          absl::Span<const RowTransfer> transfers) {
  for (const RowTransfer& transfer : transfers) {
    const DType dtype = transfer.rows.dtype();
    if (RowBytes(transfer.rows) % kWordBytes != 0 ||
        (transfer.add && dtype != DType::kF32 && dtype != DType::kF64)) {
      return absl::InvalidArgumentError(
          absl::StrCat("moving rows of ", transfer.rows.DebugString(),
                       ": a row must be whole 4-byte words, a sum f32 or f64"));
    }
  }
  const int ranks = group == nullptr ? 1 : group->size();
  const int me = group == nullptr ? 0 : group->rank();
  std::vector<int64_t> send_words(ranks, 0), recv_words(ranks, 0);
  ForEachCopy(transfers, [&](const RowTransfer&, const RowCopy&, int64_t bytes,
                             int64_t source, int64_t target) {
    if (source == me) send_words[target] += RowWords(bytes);
    if (target == me) recv_words[source] += RowWords(bytes);
    return absl::OkStatus();
  }).IgnoreError();
  const auto begins = [](const std::vector<int64_t>& words) {
    std::vector<int64_t> out(words.size() + 1, 0);
    for (size_t i = 0; i < words.size(); ++i) out[i + 1] = out[i] + words[i];
    return out;
  };
  std::vector<int64_t> next = begins(send_words);
  const int64_t num_sent = next.back(), num_got = begins(recv_words).back();
  CADRE_ASSIGN_OR_RETURN(
      const Buffer send,
      Buffer::Create(exec, num_sent * kWordBytes, "rows of experts to send"));
  CADRE_ASSIGN_OR_RETURN(
      const Buffer recv,
      Buffer::Create(exec, num_got * kWordBytes, "rows of experts to get"));
  // Word `at` of a buffer and what follows, as a row.
  const auto row_at = [](const Buffer& buffer, int64_t at, const Tensor& rows,
                         int64_t bytes) {
    return Tensor(static_cast<char*>(buffer.data()) + at * kWordBytes,
                  rows.dtype(), {bytes / SizeOf(rows.dtype())});
  };
  const auto row_of = [me](const RowTransfer& transfer, int64_t slot) {
    const int64_t row = slot - me * transfer.rows.dim(0);
    const Tensor part = transfer.rows.Rows(row, row + 1);
    return part.Reshape({part.num_elements()});
  };
  CADRE_RETURN_IF_ERROR(ForEachCopy(
      transfers, [&](const RowTransfer& transfer, const RowCopy& copy,
                     int64_t bytes, int64_t source, int64_t target) {
        if (source != me) return absl::OkStatus();
        const int64_t at = next[target];
        next[target] += RowWords(bytes);
        return CopyOnDevice(exec, row_of(transfer, copy.from_slot),
                            row_at(send, at, transfer.rows, bytes));
      }));
  const auto words = [](const Buffer& buffer, int64_t n) {
    return absl::MakeSpan(static_cast<float*>(buffer.data()), n);
  };
  if (group == nullptr) {
    CADRE_RETURN_IF_ERROR(CopyOnDevice(exec, send.View(DType::kF32, {num_sent}),
                                       recv.View(DType::kF32, {num_got})));
  } else {
    CADRE_RETURN_IF_ERROR(group->AllToAllV(words(send, num_sent), send_words,
                                           words(recv, num_got), recv_words));
  }
  next = begins(recv_words);
  CADRE_RETURN_IF_ERROR(ForEachCopy(
      transfers, [&](const RowTransfer& transfer, const RowCopy& copy,
                     int64_t bytes, int64_t source, int64_t target) {
        if (target != me) return absl::OkStatus();
        const Tensor from = row_at(recv, next[source], transfer.rows, bytes);
        const Tensor to = row_of(transfer, copy.to_slot);
        next[source] += RowWords(bytes);
        return transfer.add ? AddInPlace(exec, from, to)
                            : CopyOnDevice(exec, from, to);
      }));
  // The buffers go.
  return Synchronize(exec);
}

}  // namespace cadre
