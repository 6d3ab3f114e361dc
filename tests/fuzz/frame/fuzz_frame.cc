// Any bytes are a header or are refused; a header encodes to its own bytes, and the reference
// decoder agrees. The first byte chooses whether the fields that nothing gets past are put right
// first.

#include <cstdint>
#include <cstdlib>
#include <vector>

#include "common/base/crc32c.h"
#include "common/base/endian.h"
#include "common/wire/frame.h"
#include "tests/reference/wire_reference.h"

namespace {

void Check(bool holds) {
  if (!holds) std::abort();
}

std::vector<uint8_t> Repaired(std::vector<uint8_t> bytes) {
  bytes.resize(bdn::kHeaderBytes);
  const auto out = std::as_writable_bytes(std::span(bytes));
  bdn::StoreLittle(out, 0, bdn::kFrameMagic);
  bdn::StoreLittle(out, 4, bdn::kWireVersion);
  bdn::StoreLittle(out, 6, static_cast<uint16_t>(bdn::kHeaderBytes));
  bdn::StoreLittle(out, 92, bdn::Crc32c(std::as_bytes(std::span(bytes)).first(92)));
  return bytes;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  std::vector<uint8_t> bytes(data + 1, data + size);
  if (data[0] % 2 != 0) bytes = Repaired(std::move(bytes));
  const auto header = bdn::DecodeHeader(std::as_bytes(std::span(bytes)));
  Check(header.ok() == wire_reference::ReadHeader(bytes).has_value());
  if (!header.ok()) return 0;
  const auto encoded = bdn::EncodeHeader(*header);
  Check(std::equal(encoded.begin(), encoded.end(), std::as_bytes(std::span(bytes)).begin()));
  (void)bdn::Describe(*header);
  return 0;
}
