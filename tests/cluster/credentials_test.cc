#include "common/cluster/credentials.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "common/cluster/listen_address.h"
#include "common/cluster/settings.h"

namespace bdn {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Credentials, AdmitWhoShowsTheTokenAndNobodyElse) {
  const Credentials credentials("open sesame");
  EXPECT_TRUE(credentials.Admits("open sesame"));
  for (const char* token : {"", "open", "open sesamf", "Open sesame", "open sesame "}) {
    EXPECT_FALSE(credentials.Admits(token)) << token;
  }
}

TEST(Credentials, WithoutATokenAdmitEverybody) {
  EXPECT_TRUE(Credentials().Admits(""));
  EXPECT_TRUE(Credentials().Admits("whatever"));
}

TEST(Credentials, AdmitRolesOfTheirOwnJob) {
  const Credentials credentials("", TlsFiles{"ca", "cert", "key"}, "gpt");
  EXPECT_TRUE(credentials.AdmitsRole({"https://x", "bandoneon://gpt/server"}, "server"));
  EXPECT_TRUE(credentials.AdmitsRole({"bandoneon://gpt/observer"}, ""));
  EXPECT_FALSE(credentials.AdmitsRole({"bandoneon://gpt/worker"}, "server"));
  EXPECT_FALSE(credentials.AdmitsRole({"bandoneon://other/server"}, "server"));
  EXPECT_FALSE(credentials.AdmitsRole({}, ""));
}

class LoadedCredentialsTest : public ::testing::Test {
 protected:
  LoadedCredentialsTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "bdn-creds-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
  }
  ~LoadedCredentialsTest() override { std::filesystem::remove_all(folder_); }

  static absl::StatusOr<Credentials> Load(const std::vector<std::string>& flags,
                                          const char* role = "server") {
    const auto config = Config::Load(ServerSettings(), flags, {});
    EXPECT_TRUE(config.ok()) << config.status();
    return Credentials::Load(*config, role);
  }
  static std::string Refused(const std::vector<std::string>& flags) {
    return std::string(Load(flags).status().message());
  }
  std::string WriteToken(const std::string& text) const {
    std::ofstream(folder_ + "/token") << text;
    return "--token-file=" + folder_ + "/token";
  }

  std::string folder_;
};

TEST_F(LoadedCredentialsTest, ATokenComesFromItsFile) {
  const auto credentials = Load({WriteToken("from a file\n")});
  ASSERT_TRUE(credentials.ok()) << credentials.status();
  EXPECT_EQ(credentials->token(), "from a file");
  EXPECT_THAT(Refused({WriteToken("\n")}), HasSubstr("is empty"));
  EXPECT_THAT(Refused({"--token-file=/nonexistent"}), HasSubstr("/nonexistent: No such file"));
  EXPECT_THAT(Refused({WriteToken("a"), "--token=b"}), HasSubstr("token and token-file"));
  EXPECT_THAT(Refused({"--token=" + std::string(256, 't')}),
              AllOf(HasSubstr("256 bytes"), Not(HasSubstr("ttt"))));
  EXPECT_THAT(Refused({"--token=a\nb"}), HasSubstr("printable"));
}

TEST_F(LoadedCredentialsTest, CertificatesAreCheckedBeforeAnythingListens) {
  const Validity day{absl::Now(), absl::Hours(24)};
  ASSERT_TRUE(MakeAuthority(folder_ + "/ca", "gpt", day).ok());
  const auto files = IssueCertificate(folder_ + "/ca", "w", {"worker"}, day);
  ASSERT_TRUE(files.ok()) << files.status();
  const std::vector<std::string> flags = {"--tls-ca=" + files->authority,
                                          "--tls-cert=" + files->certificate,
                                          "--tls-key=" + files->key};
  EXPECT_TRUE(Load(flags, "worker")->AdmitsRole({"bandoneon://gpt/worker"}, "worker"));
  EXPECT_TRUE(Load(flags, "").ok());
  EXPECT_THAT(Refused(flags), AllOf(HasSubstr(files->certificate), HasSubstr("--role server")));
  EXPECT_THAT(Refused({flags[0], flags[1]}), HasSubstr("setting tls-key is missing"));
  EXPECT_THAT(Refused({flags[0], flags[1], "--tls-key=/nonexistent"}), HasSubstr("/nonexistent"));
}

TEST_F(LoadedCredentialsTest, WhatOtherHostsReachNeedsASecretAndMore) {
  const auto may_listen = [](const std::vector<std::string>& flags, const std::string& address) {
    return Load(flags)->CheckMayListen("listen", address);
  };
  for (const char* address :
       {"127.0.0.1:0", "[::1]:7", "localhost:0", "tcp://127.9.9.9:1", "ipc:///tmp/x"}) {
    EXPECT_TRUE(may_listen({}, address).ok()) << address;
  }
  for (const char* address : {"0.0.0.0:0", "[::]:7", "10.0.0.1:7", "tcp://*:1", "host:7", "0:7"}) {
    EXPECT_THAT(std::string(may_listen({}, address).message()),
                AllOf(HasSubstr(address), HasSubstr("no secret"), HasSubstr("bandoneon certs")));
    EXPECT_FALSE(may_listen({"--insecure"}, address).ok()) << address;
    EXPECT_THAT(std::string(may_listen({"--token=t"}, address).message()),
                AllOf(HasSubstr("in the clear"), HasSubstr("--insecure")));
    EXPECT_TRUE(may_listen({"--token=t", "--insecure"}, address).ok());
  }
  EXPECT_THAT(std::string(Load({"--token=t"})->CheckMayAsk("10.0.0.1:7").message()),
              HasSubstr("--insecure"));
  EXPECT_FALSE(Load({"--insecure"})->CheckMayAsk("10.0.0.1:7").ok());
  EXPECT_TRUE(Load({"--token=t", "--insecure"})->CheckMayAsk("10.0.0.1:7").ok());
  EXPECT_TRUE(Load({})->CheckMayAsk("127.0.0.1:7").ok());
}

TEST(ListenAddress, WildcardsAreNoAddressToConnectTo) {
  for (const char* address : {"0.0.0.0:7", "tcp://0.0.0.0:0", "tcp://*:7", "[::]:7", "0:7"}) {
    EXPECT_TRUE(IsWildcardAddress(address)) << address;
  }
  for (const char* address : {"10.0.0.1:7", "tcp://host:7", "[::1]:7", "ipc://0.0.0.0", ""}) {
    EXPECT_FALSE(IsWildcardAddress(address)) << address;
  }
}

}  // namespace
}  // namespace bdn
