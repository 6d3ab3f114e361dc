#include "common/transport/zmq/zap_handler.h"
#include "common/transport/zmq/zmq_keys.h"
#include "gtest/gtest.h"

namespace bdn {
namespace {

constexpr PublicKey kMember = {{1, 2, 3}};
constexpr PublicKey kStranger = {{4, 5, 6}};
const std::string kSecret(32, 's');

PublicKey Plain(const Admissions& admissions, const std::string& user, const std::string& password,
                LinkSecurity security = LinkSecurity::kAuthenticated) {
  return admissions.Decide({security, "PLAIN", {user, password}});
}
PublicKey Curve(const Admissions& admissions, std::string_view key,
                LinkSecurity security = LinkSecurity::kEncrypted) {
  return admissions.Decide({security, "CURVE", {std::string(key)}});
}

TEST(Admissions, AdmitKeysOfTheRosterAlone) {
  Admissions admissions;
  EXPECT_FALSE(admissions.is_known());
  admissions.Set({{kMember, PublicKey()}, kSecret});
  EXPECT_TRUE(admissions.is_known());
  const std::string member = ToZ85(kMember.view());
  EXPECT_EQ(Curve(admissions, kMember.view()), kMember);
  EXPECT_EQ(Plain(admissions, member, ToZ85(kSecret)), kMember);

  EXPECT_TRUE(Curve(admissions, kStranger.view()).empty());
  EXPECT_TRUE(Curve(admissions, "").empty());
  EXPECT_TRUE(Curve(admissions, std::string(32, '\0')).empty());  // none is nobody's
  EXPECT_TRUE(Curve(admissions, "short").empty());
  EXPECT_TRUE(Plain(admissions, ToZ85(kStranger.view()), ToZ85(kSecret)).empty());
  EXPECT_TRUE(Plain(admissions, member, "").empty());
  EXPECT_TRUE(Plain(admissions, member, kSecret).empty());
  EXPECT_TRUE(Plain(admissions, "\xff not Z85 of forty letters as it should b", "").empty());

  admissions.Set({{kStranger}, kSecret});
  EXPECT_TRUE(Curve(admissions, kMember.view()).empty());
}

TEST(Admissions, ComeByTheWayThatIsAskedForAlone) {
  Admissions admissions;
  admissions.Set({{kMember}, kSecret});
  const std::string member = ToZ85(kMember.view());
  EXPECT_TRUE(Plain(admissions, member, ToZ85(kSecret), LinkSecurity::kEncrypted).empty());
  EXPECT_TRUE(Curve(admissions, kMember.view(), LinkSecurity::kAuthenticated).empty());
  EXPECT_TRUE(admissions.Decide({LinkSecurity::kEncrypted, "NULL", {}}).empty());
  EXPECT_TRUE(admissions.Decide({LinkSecurity::kAuthenticated, "NULL", {}}).empty());
}

TEST(Admissions, WithoutASecretAdmitNobodyByOne) {
  Admissions admissions;
  admissions.Set({{kMember}, ""});
  EXPECT_TRUE(Plain(admissions, ToZ85(kMember.view()), "").empty());
}

TEST(ZmqKeys, AreDifferentAndCanBeWritten) {
  ASSERT_TRUE(CheckCurve().ok()) << CheckCurve();
  const KeyPair one = *MakeKeyPair();
  EXPECT_NE(one.public_key, MakeKeyPair()->public_key);
  EXPECT_EQ(ToZ85(one.public_key.view()), one.public_text);
  EXPECT_EQ(PublicKeyFromZ85(one.public_text), one.public_key);
  EXPECT_EQ(one.secret_text.size(), 40u);
}

}  // namespace
}  // namespace bdn
