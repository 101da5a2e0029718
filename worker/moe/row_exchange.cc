#include "worker/moe/row_exchange.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace cadre {
namespace {

constexpr int64_t kWordBytes = sizeof(float);

int64_t RowBytes(const Tensor& rows) {
  return rows.dim(0) == 0 ? 0 : rows.num_bytes() / rows.dim(0);
}

template <typename T>
void Add(const char* from, char* to, int64_t bytes) {
  auto* const sum = reinterpret_cast<T*>(to);
  for (int64_t i = 0; i < bytes / static_cast<int64_t>(sizeof(T)); ++i) {
    T value;
    std::memcpy(&value, from + i * sizeof(T), sizeof(T));
    sum[i] += value;
  }
}

// Calls visit(transfer, copy, row bytes, rank of the source, of the target).
template <typename Visit>
void ForEachCopy(absl::Span<const RowTransfer> transfers, Visit visit) {
  for (const RowTransfer& transfer : transfers) {
    const int64_t slots = transfer.rows.dim(0);
    if (slots == 0) continue;
    for (const RowCopy& copy : *transfer.copies) {
      visit(transfer, copy, RowBytes(transfer.rows), copy.from_slot / slots,
            copy.to_slot / slots);
    }
  }
}

}  // namespace

absl::Status ExchangeRows(Communicator* group,
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
    if (source == me) send_words[target] += bytes / kWordBytes;
    if (target == me) recv_words[source] += bytes / kWordBytes;
  });
  const auto begins = [](const std::vector<int64_t>& words) {
    std::vector<int64_t> out(words.size() + 1, 0);
    for (size_t i = 0; i < words.size(); ++i) out[i + 1] = out[i] + words[i];
    return out;
  };
  std::vector<int64_t> next = begins(send_words);
  std::vector<float> send(next.back());
  ForEachCopy(transfers, [&](const RowTransfer& transfer, const RowCopy& copy,
                             int64_t bytes, int64_t source, int64_t target) {
    if (source != me) return;
    const int64_t row = copy.from_slot - me * transfer.rows.dim(0);
    std::memcpy(&send[next[target]],
                static_cast<const char*>(transfer.rows.raw()) + row * bytes,
                bytes);
    next[target] += bytes / kWordBytes;
  });
  next = begins(recv_words);
  std::vector<float> recv(next.back());
  if (group == nullptr) {
    recv = send;
  } else {
    CADRE_RETURN_IF_ERROR(group->AllToAllV(absl::MakeConstSpan(send),
                                           send_words, absl::MakeSpan(recv),
                                           recv_words));
  }
  ForEachCopy(transfers, [&](const RowTransfer& transfer, const RowCopy& copy,
                             int64_t bytes, int64_t source, int64_t target) {
    if (target != me) return;
    const auto* const from = reinterpret_cast<const char*>(&recv[next[source]]);
    char* const to = static_cast<char*>(transfer.rows.raw()) +
                     (copy.to_slot - me * transfer.rows.dim(0)) * bytes;
    next[source] += bytes / kWordBytes;
    if (!transfer.add) {
      std::memcpy(to, from, bytes);
    } else if (transfer.rows.dtype() == DType::kF64) {
      Add<double>(from, to, bytes);
    } else {
      Add<float>(from, to, bytes);
    }
  });
  return absl::OkStatus();
}

}  // namespace cadre
