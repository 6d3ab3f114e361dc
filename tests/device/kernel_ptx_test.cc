// The PTX that nvcc made of the kernels: it keeps the host's arithmetic, and has a barrier where
// all threads of a block meet. The test says nothing of what a GPU's driver makes of it.

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "device/kernel_image.h"
#include "device/kernels/kernel_list.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace bdn {
namespace {

// The text of each kernel, by its name; what is in front of them has none.
std::map<std::string, std::string> ReadKernels(std::istream& file) {
  std::map<std::string, std::string> kernels;
  std::string name;
  for (std::string line; std::getline(file, line);) {
    std::smatch found;
    if (std::regex_search(line, found, std::regex(R"(\.entry (\w+))"))) name = found[1];
    kernels[name] += line + "\n";
  }
  return kernels;
}

// The newest text, and the oldest, which is part of the program.
std::vector<std::map<std::string, std::string>> ReadTexts() {
  std::ifstream newest(BDN_KERNEL_PTX);
  EXPECT_TRUE(newest.is_open());
  const ByteSpan text = KernelText();
  std::istringstream oldest(std::string(reinterpret_cast<const char*>(text.data()), text.size()));
  return {ReadKernels(newest), ReadKernels(oldest)};
}

size_t Count(const std::string& text, const std::string& pattern) {
  const std::regex regex(pattern);
  return static_cast<size_t>(
      std::distance(std::sregex_iterator(text.begin(), text.end(), regex), std::sregex_iterator()));
}

// Name and phases of each kernel.
#define BDN_PHASES(Name) {"bdn_" #Name, device_kernels::Name::kPhases},
const std::map<std::string, int> kPhases = {BDN_FOR_EACH_KERNEL(BDN_PHASES)};
#undef BDN_PHASES

TEST(KernelPtx, HasEveryKernel) {
  ASSERT_FALSE(kPhases.empty());
  for (const auto& kernels : ReadTexts()) {
    for (const auto& [name, phases] : kPhases) EXPECT_EQ(kernels.count(name), 1u) << name;
  }
}

TEST(KernelPtx, RoundsEveryOperationAsTheHostDoes) {
  for (const auto& kernels : ReadTexts()) {
    size_t operations = 0;
    for (const auto& [name, text] : kernels) {
      operations += Count(text, R"((add|sub|mul|div|sqrt)\.rn\.f(32|64))");
      // Fused, flushed, approximate, or rounded otherwise.
      EXPECT_EQ(Count(text, R"(\b(fma|mad)\.(rn|rz|rm|rp|f)|\.ftz|\.approx|\.full)"), 0u) << name;
      EXPECT_EQ(Count(text, R"(\b(add|sub|mul|div|sqrt)\.(rz|rm|rp|f32|f64))"), 0u) << name;
    }
    EXPECT_GT(operations, 100u);
  }
}

TEST(KernelPtx, MeetsBetweenPhasesAndNowhereElse) {
  for (const auto& kernels : ReadTexts()) {
    for (const auto& [name, phases] : kPhases) {
      EXPECT_EQ(Count(kernels.at(name), R"(\bbar(rier)?\.(cta\.)?sync)"),
                static_cast<size_t>(phases - 1))
          << name;
    }
  }
}

TEST(KernelPtx, KeepsArraysInRegistersAndSharedMemory) {
  for (const auto& kernels : ReadTexts()) {
    for (const auto& [name, text] : kernels) EXPECT_EQ(Count(text, R"(\.local\b)"), 0u) << name;
  }
}

TEST(KernelText, IsOfTheOldestLanguageAndAssembled) {
  const ByteSpan text = KernelText();
  ASSERT_FALSE(text.empty());
  EXPECT_EQ(text.back(), std::byte{0}) << "the driver looks for its end";
  const std::string ptx(reinterpret_cast<const char*>(text.data()), text.size() - 1);
  EXPECT_NE(ptx.find("\n.version 7.0\n"), std::string::npos);
  if (std::string(BDN_PTXAS).empty()) GTEST_SKIP() << "there is no ptxas beside nvcc";
  const std::string path = ::testing::TempDir() + "/kernels_of_the_test.ptx";
  std::ofstream(path) << ptx;
  for (const char* const architecture : {"sm_75", "sm_90"}) {
    const std::string command =
        absl::StrFormat("%s -arch=%s %s -o /dev/null 2>&1", BDN_PTXAS, architecture, path);
    EXPECT_EQ(std::system(command.c_str()), 0) << command;
  }
  std::remove(path.c_str());
}

TEST(KernelImage, IsPartOfTheProgram) {
  // A fat binary begins so.
  constexpr uint32_t kMagic = 0xBA55ED50;
  uint32_t magic = 0;
  ASSERT_GT(KernelImage().size(), sizeof(magic));
  std::memcpy(&magic, KernelImage().data(), sizeof(magic));
  EXPECT_EQ(magic, kMagic);
  EXPECT_GE(KernelImageVersion(), 11000);
}

}  // namespace
}  // namespace bdn
