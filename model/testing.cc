#include "model/testing.h"

#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/file.h"
#include "base/logging.h"
#include "gtest/gtest.h"

namespace cadre::testing {
namespace fs = std::filesystem;

const std::vector<std::string>& GoldenModels() {
  static const auto& models = *new std::vector<std::string>{
      "deepseek_v3", "deepseek_v32", "glm5_next", "glm_moe_dsa",
      "kimi_linear", "qwen3_5_moe",  "qwen3_moe", "qwen3_next"};
  return models;
}

std::string GoldenPath(const std::string& arch, const std::string& file) {
  return "tests/golden/" + arch + "/" + file;
}

std::string NewFolder() {
  static std::atomic<int> counter{0};
  const std::string path = ::testing::TempDir() + "/model_test_" +
                           std::to_string(counter.fetch_add(1));
  fs::remove_all(path);
  fs::create_directories(path);
  return path;
}

void CopyFolder(const std::string& from, const std::string& to) {
  fs::create_directories(to);
  for (const fs::directory_entry& entry : fs::directory_iterator(from)) {
    const fs::path target = fs::path(to) / entry.path().filename();
    fs::copy_file(entry.path(), target, fs::copy_options::overwrite_existing);
    fs::permissions(target, fs::perms::owner_write, fs::perm_options::add);
  }
}

std::string ReadFileOrDie(const std::string& path) {
  auto content = ReadFile(path);
  CADRE_CHECK(content.ok()) << content.status().ToString();
  return *content;
}

void WriteFileOrDie(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

std::vector<EditableTensor> LoadTensors(const std::string& path) {
  auto file = SafetensorsFile::Open(path);
  CADRE_CHECK(file.ok()) << file.status().ToString();
  std::vector<EditableTensor> tensors;
  for (const SafetensorInfo& info : file->tensors()) {
    const auto bytes = file->Bytes(info);
    tensors.push_back({info, std::string(bytes.begin(), bytes.end())});
  }
  return tensors;
}

void StoreTensors(const std::string& path,
                  const std::vector<EditableTensor>& tensors) {
  std::vector<SafetensorInfo> infos;
  for (const EditableTensor& tensor : tensors) infos.push_back(tensor.info);
  auto writer = SafetensorsWriter::Create(path, infos);
  CADRE_CHECK(writer.ok()) << writer.status().ToString();
  for (const EditableTensor& tensor : tensors) {
    const absl::Status status =
        (*writer)->Append(tensor.info.name, tensor.bytes);
    CADRE_CHECK(status.ok()) << status.ToString();
  }
  const absl::Status status = (*writer)->Commit();
  CADRE_CHECK(status.ok()) << status.ToString();
}

void EditTensors(
    const std::string& path,
    const std::function<void(std::vector<EditableTensor>&)>& change) {
  std::vector<EditableTensor> tensors = LoadTensors(path);
  change(tensors);
  StoreTensors(path, tensors);
}

EditableTensor& FindTensor(std::vector<EditableTensor>& tensors,
                           const std::string& name) {
  for (EditableTensor& tensor : tensors) {
    if (tensor.info.name == name) return tensor;
  }
  CADRE_CHECK(false) << name;
  return tensors.front();
}

std::string Replaced(std::string text, const std::string& from,
                     const std::string& to) {
  const size_t at = text.find(from);
  CADRE_CHECK(at != std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

}  // namespace cadre::testing
