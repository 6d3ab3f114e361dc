// Any bytes are what two ends of a fabric say, or are refused; what is taken encodes to its own
// bytes, and the reference decoder agrees.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "common/transport/fabric/fabric_wire.h"
#include "tests/reference/wire_reference.h"

namespace {

void Check(bool holds) {
  if (!holds) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::vector<uint8_t> bytes(data, data + size);
  const bdn::ByteSpan span = std::as_bytes(std::span(bytes));
  const auto handshake = bdn::DecodeFabricHandshake(span);
  Check(handshake.ok() == wire_reference::ReadFabricHandshake(bytes).has_value());
  if (handshake.ok()) {
    const bdn::Buffer encoded = bdn::EncodeFabricHandshake(*handshake);
    Check(std::equal(encoded.span().begin(), encoded.span().end(), span.begin(), span.end()));
  }
  const auto prefix = bdn::DecodeFabricPrefix(span);
  Check(prefix.ok() == wire_reference::ReadFabricPrefix(bytes).has_value());
  if (prefix.ok()) {
    const auto encoded = bdn::EncodeFabricPrefix(*prefix);
    Check(std::equal(encoded.begin(), encoded.end(), span.begin()));
  }
  return 0;
}
