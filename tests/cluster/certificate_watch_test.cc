#include "common/cluster/certificate_watch.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>

namespace bdn {
namespace {

namespace fs = std::filesystem;

std::string TextOf(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

class CertificateWatchTest : public testing::Test {
 protected:
  CertificateWatchTest() {
    std::string pattern = (fs::temp_directory_path() / "bdn-watch-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
    EXPECT_TRUE(MakeAuthority(folder_, "job", {absl::Now(), absl::Hours(24)}).ok());
    files_ = Issue("used");
  }
  ~CertificateWatchTest() override { fs::remove_all(folder_); }

  TlsFiles Issue(const std::string& name) const {
    return *IssueCertificate(folder_, name, {"scheduler"}, {absl::Now(), absl::Hours(1)});
  }
  std::string PairIn(const TlsFiles& files) const {
    return TextOf(files.certificate) + "\n" + TextOf(files.key);
  }
  void Put(const std::string& path, const std::string& text) const {
    std::ofstream(path + ".next") << text;
    fs::rename(path + ".next", path);
  }
  template <typename Condition>
  void Await(const Condition& condition) const {
    const absl::Time deadline = absl::Now() + absl::Seconds(30);
    while (!condition()) {
      ASSERT_LT(absl::Now(), deadline);
      std::this_thread::yield();
    }
  }

  std::string folder_;
  TlsFiles files_;
};

TEST_F(CertificateWatchTest, ShowsWhatIsThereAndWhatReplacesIt) {
  const CertificateWatch watch(files_, absl::Milliseconds(1));
  EXPECT_EQ(TextOf(watch.shown().authority), TextOf(files_.authority));
  EXPECT_EQ(TextOf(watch.shown().certificate), PairIn(files_));
  EXPECT_TRUE(CheckTlsFiles(watch.shown(), absl::Now()).ok());
  Issue("used");
  Await([&] { return TextOf(watch.shown().key) == PairIn(files_); });
  EXPECT_TRUE(CheckTlsFiles(watch.shown(), absl::Now()).ok());
}

TEST_F(CertificateWatchTest, RubbishIsSaidOnceAndTheLastGoodPairStays) {
  testing::internal::CaptureStderr();
  const std::string good = PairIn(files_);
  int refusals = 0;  // more than two where a look fell between the new certificate and its key
  {
    const CertificateWatch watch(files_, absl::Milliseconds(1));
    Put(files_.certificate, "rubbish\n");
    Await([&] { return watch.refusals() == 1; });
    EXPECT_EQ(TextOf(watch.shown().certificate), good);
    Put(files_.certificate, TextOf(Issue("other").certificate));  // whose key is another
    Await([&] { return watch.refusals() == 2; });
    EXPECT_EQ(TextOf(watch.shown().certificate), good);
    Issue("used");
    Await([&] { return TextOf(watch.shown().certificate) == PairIn(files_); });
    refusals = watch.refusals();
  }
  const std::string said = testing::internal::GetCapturedStderr();
  int lines = 0;
  for (size_t at = 0; (at = said.find("cannot be used", at)) != std::string::npos; ++at) ++lines;
  EXPECT_EQ(lines, refusals) << said;
  EXPECT_NE(said.find(files_.certificate), std::string::npos) << said;
}

TEST_F(CertificateWatchTest, FilesThatAreGoneLeaveWhatTheyWere) {
  const std::string good = PairIn(files_);
  const CertificateWatch watch(files_, absl::Milliseconds(1));
  fs::remove(files_.key);
  Await([&] { return watch.refusals() == 1; });
  EXPECT_EQ(TextOf(watch.shown().key), good);
}

}  // namespace
}  // namespace bdn
