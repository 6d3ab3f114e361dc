#include "common/certs/digest.h"

#include <string>

#include "absl/strings/escaping.h"
#include "gtest/gtest.h"

namespace bdn {
namespace {

std::string HexOf(const std::string& text) {
  const Digest digest = DigestOf(std::as_bytes(std::span(text)));
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(digest.data()), digest.size()));
}

// These are examples of FIPS 180-4.
TEST(Digest, IsSha256) {
  EXPECT_EQ(HexOf("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(HexOf("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(HexOf(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

}  // namespace
}  // namespace bdn
