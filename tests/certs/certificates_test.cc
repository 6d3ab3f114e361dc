#include "common/certs/certificates.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace bdn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

class CertificatesTest : public ::testing::Test {
 protected:
  CertificatesTest() {
    std::string pattern = (fs::temp_directory_path() / "bdn-certs-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
  }
  ~CertificatesTest() override { fs::remove_all(folder_); }

  std::string Path(const std::string& name) const { return (fs::path(folder_) / name).string(); }
  static unsigned ModeOf(const std::string& path) {
    struct stat found = {};
    EXPECT_EQ(stat(path.c_str(), &found), 0) << path;
    return found.st_mode & 0777;
  }
  TlsFiles Issue(const std::string& directory, const std::string& name,
                 const std::vector<std::string>& roles) {
    const auto files = IssueCertificate(directory, name, roles, {now_, absl::Hours(24)});
    EXPECT_TRUE(files.ok()) << files.status();
    return files.value_or(TlsFiles());
  }
  static std::string Text(const absl::Status& status) { return std::string(status.message()); }

  const absl::Time now_ = absl::FromUnixSeconds(1800000000);
  std::string folder_;
};

TEST_F(CertificatesTest, ANodeOfAJobGetsWhatItsRolesAre) {
  const std::string ca = Path("certs");
  ASSERT_TRUE(MakeAuthority(ca, "gpt-7", {now_, absl::Hours(48)}).ok());
  const TlsFiles files = Issue(ca, "host1", {"server", "worker"});
  const auto facts = CheckTlsFiles(files, now_);
  ASSERT_TRUE(facts.ok()) << facts.status();
  EXPECT_THAT(facts->roles,
              ElementsAre(CertifiedRole{"gpt-7", "server"}, CertifiedRole{"gpt-7", "worker"}));
  EXPECT_EQ(facts->subject, "CN = host1");
  EXPECT_EQ(facts->issuer, "CN = gpt-7");
  EXPECT_FALSE(facts->is_authority);
  EXPECT_EQ(facts->valid_until, now_ + absl::Hours(24));
  EXPECT_EQ(facts->fingerprint.size(), 64u);
  EXPECT_TRUE(ReadCertificate(ca + "/ca.pem")->is_authority);
}

TEST_F(CertificatesTest, OnlyTheirOwnerMayReadThem) {
  const std::string ca = Path("certs");
  const mode_t before = umask(0);
  ASSERT_TRUE(MakeAuthority(ca, "job", {now_, absl::Hours(1)}).ok());
  const TlsFiles files = Issue(ca, "s", {"server"});
  umask(before);
  for (const std::string& folder : {ca, ca + "/s"}) EXPECT_EQ(ModeOf(folder), 0700u);
  for (const std::string& file :
       {ca + "/ca.pem", ca + "/ca-key.pem", files.authority, files.certificate, files.key}) {
    EXPECT_EQ(ModeOf(file), 0600u) << file;
  }
}

TEST_F(CertificatesTest, AnAuthorityIsNotOverwrittenAndANodesFilesAre) {
  const std::string ca = Path("certs");
  ASSERT_TRUE(MakeAuthority(ca, "job", {now_, absl::Hours(1)}).ok());
  EXPECT_THAT(Text(MakeAuthority(ca, "job", {now_, absl::Hours(1)})),
              HasSubstr("is there already"));
  const TlsFiles files = Issue(ca, "s", {"server"});
  const std::string first = CheckTlsFiles(files, now_)->fingerprint;
  Issue(ca, "s", {"server"});
  EXPECT_NE(CheckTlsFiles(files, now_)->fingerprint, first);
}

TEST_F(CertificatesTest, NothingIsValidLongerThanItsAuthority) {
  const std::string ca = Path("certs");
  ASSERT_TRUE(MakeAuthority(ca, "job", {now_, absl::Hours(1)}).ok());
  EXPECT_EQ(CheckTlsFiles(Issue(ca, "s", {"server"}), now_)->valid_until, now_ + absl::Hours(1));
}

TEST_F(CertificatesTest, AnAuthorityThatHasExpiredIssuesNothing) {
  const std::string ca = Path("certs");
  ASSERT_TRUE(MakeAuthority(ca, "job", {now_, absl::Hours(1)}).ok());
  const absl::Time later = now_ + absl::Hours(2);
  EXPECT_THAT(Text(IssueCertificate(ca, "s", {"server"}, {later, absl::Hours(24)}).status()),
              HasSubstr("ca.pem has expired"));
}

TEST_F(CertificatesTest, AnAuthorityWhoseKeyIsElsewhereIsNotReplaced) {
  const std::string ca = Path("certs");
  ASSERT_TRUE(MakeAuthority(ca, "job", {now_, absl::Hours(1)}).ok());
  fs::remove(ca + "/ca-key.pem");
  EXPECT_THAT(Text(MakeAuthority(ca, "job", {now_, absl::Hours(1)})),
              HasSubstr("ca.pem is there already"));
}

TEST_F(CertificatesTest, FilesThatDoNotFitAreNamed) {
  ASSERT_TRUE(MakeAuthority(Path("a"), "job", {now_, absl::Hours(48)}).ok());
  ASSERT_TRUE(MakeAuthority(Path("b"), "job", {now_, absl::Hours(48)}).ok());
  const TlsFiles good = Issue(Path("a"), "s", {"server"});
  const TlsFiles other = Issue(Path("b"), "s", {"server"});
  const auto refused = [&](const TlsFiles& files, absl::Time now) {
    return Text(CheckTlsFiles(files, now).status());
  };
  EXPECT_THAT(refused({other.authority, good.certificate, good.key}, now_),
              HasSubstr(good.certificate + " cannot be used with " + other.authority));
  EXPECT_THAT(refused({good.authority, good.certificate, other.key}, now_),
              HasSubstr(other.key + " is not the key of"));
  EXPECT_THAT(refused(good, now_ + absl::Hours(25)), HasSubstr("expired"));
  EXPECT_THAT(refused(good, now_ - absl::Hours(1)), HasSubstr("not yet valid"));
  EXPECT_THAT(refused({good.authority, Path("none"), good.key}, now_),
              HasSubstr(Path("none") + ": No such file"));
  EXPECT_THAT(refused({good.authority, good.key, good.key}, now_),
              HasSubstr(good.key + " holds no certificate"));
  EXPECT_THAT(refused({good.authority, good.certificate, good.certificate}, now_),
              HasSubstr(good.certificate + " holds no private key"));
}

TEST_F(CertificatesTest, BadNamesAndRolesAreRefused) {
  for (const char* job : {"", "a b", "a/b", "a,URI:x"}) {
    EXPECT_FALSE(MakeAuthority(Path("x"), job, {now_, absl::Hours(1)}).ok()) << job;
  }
  const std::string ca = Path("certs");
  ASSERT_TRUE(MakeAuthority(ca, "job", {now_, absl::Hours(1)}).ok());
  const auto refused = [&](const std::string& name, const std::vector<std::string>& roles) {
    return Text(IssueCertificate(ca, name, roles, {now_, absl::Hours(1)}).status());
  };
  for (const char* name : {"", "..", "a/b", "a b"}) {
    EXPECT_THAT(refused(name, {"server"}), HasSubstr("name '")) << name;
  }
  EXPECT_THAT(refused("s", {"boss"}), HasSubstr("role 'boss'"));
  EXPECT_THAT(refused("s", {}), HasSubstr("no role"));
}

TEST(CertifiedRole, IsAUriAndBack) {
  const CertifiedRole role{"gpt-7", "worker"};
  EXPECT_EQ(ToUri(role), "bandoneon://gpt-7/worker");
  EXPECT_EQ(ParseRoleUri(ToUri(role)), role);
  for (const char* uri :
       {"", "bandoneon://", "bandoneon://job", "bandoneon://job/", "bandoneon:///worker",
        "bandoneon://job/boss", "bandoneon://job/worker/", "spiffe://job/worker"}) {
    EXPECT_EQ(ParseRoleUri(uri), std::nullopt) << uri;
  }
}

}  // namespace
}  // namespace bdn
