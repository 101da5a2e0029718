#include "model/safetensors.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "base/status_matchers.h"
#include "model/quantized.h"
#include "model/testing.h"

namespace cadre {
namespace {

using ::cadre::testing::GoldenModels;
using ::cadre::testing::GoldenPath;
using ::cadre::testing::LoadTensors;
using ::cadre::testing::NewFolder;
using ::cadre::testing::ReadFileOrDie;
using ::cadre::testing::StatusIs;
using ::cadre::testing::StoreTensors;
using ::cadre::testing::WriteFileOrDie;
using ::testing::HasSubstr;

// A file with that header text and so many data bytes.
std::string FileBytes(const std::string& header, size_t data) {
  std::string bytes(8, '\0');
  for (int i = 0; i < 8; ++i) bytes[i] = header.size() >> (8 * i) & 0xff;
  return bytes + header + std::string(data, 'x');
}

absl::Status OpenBytes(const std::string& bytes) {
  const std::string path = NewFolder() + "/t.safetensors";
  WriteFileOrDie(path, bytes);
  return SafetensorsFile::Open(path).status();
}

TEST(Safetensors, LoadedAndStoredFilesAreBitIdentical) {
  for (const std::string& arch : GoldenModels()) {
    for (const char* file : {"model/model.safetensors",
                             "lora_attn_init/adapter_model.safetensors"}) {
      const std::string path = GoldenPath(arch, file);
      const std::string copy = NewFolder() + "/t.safetensors";
      StoreTensors(copy, LoadTensors(path));
      EXPECT_EQ(ReadFileOrDie(path), ReadFileOrDie(copy)) << path;
    }
  }
}

TEST(Safetensors, RefusesDamagedFiles) {
  const auto refused = [](const std::string& bytes, const char* message) {
    EXPECT_THAT(OpenBytes(bytes),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr(message)));
  };
  refused("", "too few");
  refused("1234567", "too few");
  refused(FileBytes("{}", 0).substr(0, 9), "truncated");
  refused(std::string(8, '\xff') + "{}", "exceeds the limit");
  refused(FileBytes("[]", 0), "not a JSON object");
  refused(FileBytes("{\"a\":", 0), "damaged header");
  const std::string a =
      R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  EXPECT_OK(OpenBytes(FileBytes("{" + a + "}", 8)));
  refused(FileBytes("{" + a + "}", 7), "tensor a: bytes 0 to 8 lie outside");
  refused(FileBytes("{" + a + "}", 9), "tensors end at 8 of 9");
  refused(FileBytes("{" + a + "," + a + "}", 8), "twice");
  refused(FileBytes("{" + a +
                        R"(,"b":{"dtype":"U8","shape":[4],)"
                        R"("data_offsets":[4,8]}})",
                    8),
          "tensor b: data starts at 4, inside of");
  refused(FileBytes("{" + a +
                        R"(,"b":{"dtype":"U8","shape":[4],)"
                        R"("data_offsets":[12,16]}})",
                    16),
          "tensor b: data starts at 12, with a gap behind");
  refused(FileBytes(R"({"a":{"dtype":"F32","shape":[3],)"
                    R"("data_offsets":[0,8]}})",
                    8),
          "F32 [3] needs 12 bytes");
  refused(FileBytes(R"({"a":{"dtype":"F32","shape":[-1],)"
                    R"("data_offsets":[0,8]}})",
                    8),
          "shape is not a list of sizes");
  refused(FileBytes(R"({"a":{"dtype":"F64","shape":[4294967296,4294967296],)"
                    R"("data_offsets":[0,8]}})",
                    8),
          "overflows");
  refused(FileBytes(R"({"a":{"dtype":"F32","shape":[2],)"
                    R"("data_offsets":[8,0]}})",
                    8),
          "lie outside");
  EXPECT_THAT(OpenBytes(FileBytes(R"({"a":{"dtype":"I16","shape":[4],)"
                                  R"("data_offsets":[0,8]}})",
                                  8)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("dtype I16 is not supported")));
  EXPECT_THAT(SafetensorsFile::Open("absent.safetensors").status(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("absent")));
}

TEST(Safetensors, RandomBytesNeverCrash) {
  std::mt19937_64 random(7);
  const std::string good = ReadFileOrDie(
      GoldenPath("qwen3_moe", "lora_attn_init/adapter_model.safetensors"));
  for (int round = 0; round < 3000; ++round) {
    std::string header = good.substr(8, 300 + random() % 800);
    for (int i = 0; i < 3; ++i) {
      header[random() % header.size()] = static_cast<char>(random());
    }
    ParseSafetensorsHeader(header, 1000).status().IgnoreError();
    std::string noise(random() % 64, '\0');
    for (char& c : noise) c = static_cast<char>(random());
    ParseSafetensorsHeader(noise, 8).status().IgnoreError();
  }
  for (int round = 0; round < 200; ++round) {
    std::string bytes = good.substr(0, random() % good.size());
    OpenBytes(bytes).IgnoreError();
    bytes = good;
    bytes[random() % 1500] = static_cast<char>(random());
    OpenBytes(bytes).IgnoreError();
  }
}

TEST(SafetensorsWriter, LeavesNothingBehindUnlessCommitted) {
  const std::string path = NewFolder() + "/t.safetensors";
  const SafetensorInfo a{"a", DType::kF32, {2}, 0, 0};
  const SafetensorInfo b{"b", DType::kU8, {3}, 0, 0};
  {
    ASSERT_OK_AND_ASSIGN(auto writer, SafetensorsWriter::Create(path, {a, b}));
    EXPECT_THAT(writer->Append("b", {"xyz", 3}),
                StatusIs(absl::StatusCode::kFailedPrecondition));
    EXPECT_OK(writer->Append("a", {"12345678", 8}));
    EXPECT_THAT(writer->Append("a", {"9", 1}),
                StatusIs(absl::StatusCode::kFailedPrecondition));
    EXPECT_THAT(writer->Commit(),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr("tensor b is incomplete")));
  }
  EXPECT_THAT(SafetensorsFile::Open(path).status(),
              StatusIs(absl::StatusCode::kNotFound));
  ASSERT_OK_AND_ASSIGN(auto writer, SafetensorsWriter::Create(path, {a, b}));
  EXPECT_OK(writer->Append("a", {"1234", 4}));
  EXPECT_OK(writer->Append("a", {"5678", 4}));
  EXPECT_OK(writer->Append("b", {"xyz", 3}));
  EXPECT_OK(writer->Commit());
  ASSERT_OK_AND_ASSIGN(const auto file, SafetensorsFile::Open(path));
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_EQ(std::string(file.Bytes(*file.Find("b")).data(), 3), "xyz");
}

TEST(ConvertElements, DecodesEveryFloatType) {
  const uint16_t bf16[] = {0x3f80, 0xc040, 0x0001};
  float out[3];
  ASSERT_OK(ConvertElements(DType::kBF16, bf16, 3, DType::kF32, out));
  EXPECT_EQ(out[0], 1.0f);
  EXPECT_EQ(out[1], -3.0f);
  EXPECT_EQ(out[2], std::ldexp(1.0f, -133));
  const uint16_t f16[] = {0x3c00, 0xc200, 0x0001};
  ASSERT_OK(ConvertElements(DType::kF16, f16, 3, DType::kF32, out));
  EXPECT_EQ(out[0], 1.0f);
  EXPECT_EQ(out[1], -3.0f);
  EXPECT_EQ(out[2], std::ldexp(1.0f, -24));
  const uint16_t special[] = {0x7c00, 0xfc00, 0x7e00};
  ASSERT_OK(ConvertElements(DType::kF16, special, 3, DType::kF32, out));
  EXPECT_EQ(out[0], std::numeric_limits<float>::infinity());
  EXPECT_EQ(out[1], -std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(out[2]));
  double wide[2];
  const float narrow[] = {0.1f, -2.5f};
  ASSERT_OK(ConvertElements(DType::kF32, narrow, 2, DType::kF64, wide));
  EXPECT_EQ(wide[0], static_cast<double>(0.1f));
  const int64_t ints[] = {-7, 1};
  ASSERT_OK(ConvertElements(DType::kI64, ints, 2, DType::kF64, wide));
  EXPECT_EQ(wide[0], -7.0);
  EXPECT_THAT(ConvertElements(DType::kF32, narrow, 2, DType::kF16, wide),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(ConvertElements, RoundsToBf16AsNearestEven) {
  const auto round = [](float value) {
    uint16_t bits = 0;
    EXPECT_OK(ConvertElements(DType::kF32, &value, 1, DType::kBF16, &bits));
    return bits;
  };
  EXPECT_EQ(round(1.0f), 0x3f80);
  EXPECT_EQ(round(1.0f + 1.0f / 256), 0x3f80);          // tie to even
  EXPECT_EQ(round(1.0f + 3.0f / 256), 0x3f82);          // tie to even
  EXPECT_EQ(round(1.0f + 1.0f / 256 + 1e-6f), 0x3f81);  // above the tie
  EXPECT_EQ(round(std::numeric_limits<float>::infinity()), 0x7f80);
  EXPECT_EQ(round(std::nanf("")) & 0x7fc0, 0x7fc0);
}

TEST(Quantized, DecodesE4M3) {
  EXPECT_EQ(DecodeF8E4M3(0x00), 0.0f);
  EXPECT_EQ(DecodeF8E4M3(0x01), std::ldexp(1.0f, -9));
  EXPECT_EQ(DecodeF8E4M3(0x08), std::ldexp(1.0f, -6));
  EXPECT_EQ(DecodeF8E4M3(0x38), 1.0f);
  EXPECT_EQ(DecodeF8E4M3(0xc4), -3.0f);
  EXPECT_EQ(DecodeF8E4M3(0x7e), 448.0f);
  EXPECT_TRUE(std::isnan(DecodeF8E4M3(0x7f)));
  EXPECT_TRUE(std::isnan(DecodeF8E4M3(0xff)));
}

TEST(Quantized, ScalesFp8ByBlock) {
  // 130 x 129: a second row of blocks and a second column, both short.
  const int64_t rows = 130, cols = 129;
  std::vector<uint8_t> codes(rows * cols, 0x38);  // 1
  codes[129 * cols + 128] = 0xc4;                 // -3
  const std::vector<float> scales = {1.0f, 2.0f, 3.0f, 0.25f};
  std::vector<float> out(rows * cols);
  DequantizeFp8Blocks(codes, scales, rows, cols, absl::MakeSpan(out));
  EXPECT_EQ(out[0], 1.0f);
  EXPECT_EQ(out[128], 2.0f);
  EXPECT_EQ(out[127 * cols + 127], 1.0f);
  EXPECT_EQ(out[128 * cols], 3.0f);
  EXPECT_EQ(out[129 * cols + 128], -0.75f);
}

TEST(Quantized, UnpacksMxfp4LowNibbleFirst) {
  // Two rows of 64 columns; the byte 0x2F with scale 128 is -12, 2.
  std::vector<uint8_t> packed(64, 0x2f);
  packed[63] = 0x71;
  const std::vector<uint8_t> scales = {128, 127, 126, 127};
  std::vector<float> out(128);
  DequantizeMxfp4(packed, scales, 2, 64, absl::MakeSpan(out));
  EXPECT_EQ(out[0], -12.0f);
  EXPECT_EQ(out[1], 2.0f);
  EXPECT_EQ(out[32], -6.0f);
  EXPECT_EQ(out[64], -3.0f);
  EXPECT_EQ(out[126], 0.5f);
  EXPECT_EQ(out[127], 6.0f);
  for (uint8_t code = 0; code < 16; ++code) {
    const float magnitudes[] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
    EXPECT_EQ(std::fabs(DecodeE2M1(code)), magnitudes[code & 7]);
    EXPECT_EQ(std::signbit(DecodeE2M1(code)), code >= 8);
  }
}

}  // namespace
}  // namespace cadre
