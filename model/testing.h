#ifndef CADRE_MODEL_TESTING_H_
#define CADRE_MODEL_TESTING_H_

// Helpers of the tests of model/: fixtures, scratch folders, files.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "model/safetensors.h"

namespace cadre::testing {

// The architectures with a golden fixture.
const std::vector<std::string>& GoldenModels();
// "tests/golden/ARCH/FILE" in the runfiles.
std::string GoldenPath(const std::string& arch, const std::string& file);

// A new empty folder of this test.
std::string NewFolder();
// Copies the regular files of a folder.
void CopyFolder(const std::string& from, const std::string& to);
std::string ReadFileOrDie(const std::string& path);
void WriteFileOrDie(const std::string& path, const std::string& content);

// A tensor of a file that a test changes before writing it back.
struct EditableTensor {
  SafetensorInfo info;
  std::string bytes;
};
std::vector<EditableTensor> LoadTensors(const std::string& path);
void StoreTensors(const std::string& path,
                  const std::vector<EditableTensor>& tensors);
// Load, change, store.
void EditTensors(
    const std::string& path,
    const std::function<void(std::vector<EditableTensor>&)>& change);
// Must be there.
EditableTensor& FindTensor(std::vector<EditableTensor>& tensors,
                           const std::string& name);

// Replaces text that must occur.
std::string Replaced(std::string text, const std::string& from,
                     const std::string& to);

}  // namespace cadre::testing

#endif  // CADRE_MODEL_TESTING_H_
