// Any bytes are a payload of a kind or are refused; what is taken encodes to its own bytes, and the
// reference decoder agrees.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "common/wire/message.h"
#include "tests/reference/wire_reference.h"

namespace {

void Check(bool holds) {
  if (!holds) std::abort();
}

void CheckSame(const bdn::Buffer& encoded, bdn::ByteSpan bytes) {
  Check(std::equal(encoded.span().begin(), encoded.span().end(), bytes.begin(), bytes.end()));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::vector<uint8_t> bytes(data, data + size);
  const bdn::ByteSpan span = std::as_bytes(std::span(bytes));

  const auto hello = bdn::DecodeHello(span);
  Check(hello.ok() == wire_reference::ReadHello(bytes).has_value());
  if (hello.ok()) CheckSame(bdn::EncodeHello(*hello), span);

  const auto ranks = bdn::DecodeRanks(span);
  Check(ranks.ok() == wire_reference::ReadRanks(bytes).has_value());
  if (ranks.ok()) CheckSame(bdn::EncodeRanks(*ranks), span);

  const auto counters = bdn::DecodeCounters(span);
  Check(counters.ok() == wire_reference::ReadCounters(bytes).has_value());
  if (counters.ok()) CheckSame(bdn::EncodeCounters(*counters), span);

  const auto report = bdn::DecodeReport(span);
  Check(report.ok() == wire_reference::ReadReport(bytes).has_value());
  if (report.ok()) CheckSame(bdn::EncodeReport(*report), span);

  const auto order = bdn::DecodeOrder(span);
  Check(order.ok() == wire_reference::ReadOrder(bytes).has_value());
  if (order.ok()) CheckSame(bdn::EncodeOrder(*order), span);

  const auto given = bdn::DecodeGivenReply(span);
  Check(given.ok() == wire_reference::ReadGiven(bytes).has_value());
  if (given.ok()) CheckSame(bdn::EncodeGivenReply(*given), span);

  const absl::Status error = bdn::DecodeError(span);
  Check(!error.ok());
  if (wire_reference::ReadError(bytes).has_value()) CheckSame(bdn::EncodeError(error), span);
  return 0;
}
