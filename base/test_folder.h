#ifndef CADRE_BASE_TEST_FOLDER_H_
#define CADRE_BASE_TEST_FOLDER_H_

// For tests: a folder of the running test's own. From the test's thread.

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

namespace cadre::testing {

// Empty, below TempDir() and named after the test; what an earlier run or call
// left there is gone.
inline std::string NewTestFolder() {
  const std::string path =
      ::testing::TempDir() + "/" +
      ::testing::UnitTest::GetInstance()->current_test_info()->name();
  std::filesystem::remove_all(path);
  std::filesystem::create_directories(path);
  return path;
}

}  // namespace cadre::testing

#endif  // CADRE_BASE_TEST_FOLDER_H_
