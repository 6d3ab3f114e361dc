#include "common/transport/fabric/fabric_library.h"

#include <signal.h>

#include "absl/status/status.h"
#include "gtest/gtest.h"

namespace bdn {
namespace {

// The libraries of PSM replace signal handlers when they are loaded, and theirs end the process in
// their own way.
TEST(FabricLibraryTest, LeavesSignalsToWhoseProcessItIs) {
  const int signals[] = {SIGINT, SIGTERM, SIGSEGV, SIGABRT, SIGBUS, SIGILL};
  for (const int number : signals) {
    ASSERT_NE(signal(number, number == SIGTERM ? SIG_IGN : SIG_DFL), SIG_ERR);
  }
  ASSERT_TRUE(FabricLibrary::Open(kFabricLibrary).ok());
  for (const int number : signals) {
    struct sigaction now;
    ASSERT_EQ(sigaction(number, nullptr, &now), 0);
    EXPECT_EQ(now.sa_handler, number == SIGTERM ? SIG_IGN : SIG_DFL) << number;
  }
}

TEST(FabricLibraryTest, SaysWhatToInstall) {
  const auto library = FabricLibrary::Open("libfabric.so.none");
  EXPECT_TRUE(absl::IsNotFound(library.status())) << library.status();
  EXPECT_NE(library.status().message().find("install it"), std::string::npos);
}

TEST(FabricLibraryTest, AnotherLibraryIsNone) {
  const auto library = FabricLibrary::Open("libm.so.6");
  EXPECT_TRUE(absl::IsFailedPrecondition(library.status())) << library.status();
}

}  // namespace
}  // namespace bdn
