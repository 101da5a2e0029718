#include "worker/device/buffer.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/status_matchers.h"
#include "worker/device/transfer.h"

namespace cadre {
namespace {

TEST(BufferTest, IsZeroedAndAligned) {
  absl::StatusOr<Buffer> buffer = Buffer::Create({}, 100, "test");
  ASSERT_OK(buffer);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % 64, 0u);
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(static_cast<const char*>(buffer->data())[i], 0);
  }
}

TEST(BufferTest, MovesItsMemory) {
  absl::StatusOr<Buffer> first = Buffer::Create({}, 8, "test");
  ASSERT_OK(first);
  void* data = first->data();
  Buffer second = *std::move(first);
  EXPECT_EQ(second.data(), data);
  Buffer* self = &second;
  second = std::move(*self);
  EXPECT_EQ(second.data(), data);
}

TEST(BufferTest, SaysThatThereIsNoCuda) {
  const Exec cuda{.backend = Backend::kCuda};
  EXPECT_EQ(Buffer::Create(cuda, 8, "weights").status().code(),
            absl::StatusCode::kUnimplemented);
  EXPECT_EQ(Synchronize(cuda).code(), absl::StatusCode::kUnimplemented);
}

TEST(TransferTest, RoundsToBf16AndBack) {
  absl::StatusOr<Buffer> buffer = Buffer::Create({}, 8, "test");
  ASSERT_OK(buffer);
  const Tensor t = buffer->View(DType::kBF16, {4});
  const std::vector<float> values = {1.0f, -2.5f, 1.00390625f, 3.0e38f};
  ASSERT_OK(WriteFloats({}, values, t));
  const absl::StatusOr<std::vector<float>> back = ReadFloats({}, t);
  ASSERT_OK(back);
  EXPECT_EQ((*back)[0], 1.0f);
  EXPECT_EQ((*back)[1], -2.5f);
  EXPECT_EQ((*back)[2], 1.0f);  // half way: to even
  EXPECT_NEAR((*back)[3] / 3.0e38f, 1.0f, 4e-3f);
}

TEST(TransferTest, RefusesAnotherSize) {
  absl::StatusOr<Buffer> buffer = Buffer::Create({}, 8, "test");
  ASSERT_OK(buffer);
  EXPECT_FALSE(WriteFloats({}, {1.0f}, buffer->View(DType::kF32, {2})).ok());
}

}  // namespace
}  // namespace cadre
