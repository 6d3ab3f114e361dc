// What nvcc made of the kernels, as the text of PTX: that it keeps the host's arithmetic, and where all
// threads of a block meet. It says nothing of what a GPU's driver makes of it.

#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <sstream>
#include <string>

#include "device/kernel_image.h"
#include "device/kernels/kernel_list.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace bdn {
namespace {

// The text of each kernel, by its name.
std::map<std::string, std::string> ReadKernels() {
  std::ifstream file(BDN_KERNEL_PTX);
  EXPECT_TRUE(file.is_open());
  std::map<std::string, std::string> kernels;
  std::string name;
  for (std::string line; std::getline(file, line);) {
    std::smatch found;
    if (std::regex_search(line, found, std::regex(R"(\.entry (\w+))"))) name = found[1];
    kernels[name] += line + "\n";
  }
  return kernels;
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
  const auto kernels = ReadKernels();
  ASSERT_FALSE(kPhases.empty());
  for (const auto& [name, phases] : kPhases) EXPECT_EQ(kernels.count(name), 1u) << name;
}

TEST(KernelPtx, RoundsEveryOperationAsTheHostDoes) {
  size_t operations = 0;
  for (const auto& [name, text] : ReadKernels()) {
    operations += Count(text, R"((add|sub|mul|div|sqrt)\.rn\.f(32|64))");
    // Fused, flushed, approximate, or rounded otherwise.
    EXPECT_EQ(Count(text, R"(\b(fma|mad)\.(rn|rz|rm|rp|f)|\.ftz|\.approx|\.full)"), 0u) << name;
    EXPECT_EQ(Count(text, R"(\b(add|sub|mul|div|sqrt)\.(rz|rm|rp|f32|f64))"), 0u) << name;
  }
  EXPECT_GT(operations, 100u);
}

TEST(KernelPtx, MeetsBetweenPhasesAndNowhereElse) {
  const auto kernels = ReadKernels();
  for (const auto& [name, phases] : kPhases) {
    EXPECT_EQ(Count(kernels.at(name), R"(\bbar(rier)?\.(cta\.)?sync)"),
              static_cast<size_t>(phases - 1))
        << name;
  }
}

TEST(KernelPtx, KeepsArraysInRegistersAndSharedMemory) {
  for (const auto& [name, text] : ReadKernels()) {
    EXPECT_EQ(Count(text, R"(\.local\b)"), 0u) << name;
  }
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
