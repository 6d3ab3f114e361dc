#include "common/wire/message.h"

#include <limits>
#include <random>

#include "common/wire/frame.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/reference/wire_reference.h"
#include "tests/wire/wire_bytes.h"

namespace bdn {
namespace {

using ::testing::HasSubstr;

Hello SomeHello() {
  return {.job_id = "job-1", .node = 3, .role = Role::kServer, .token = "secret"};
}

Bytes HelloBytes(const Hello& hello) { return ToBytes(EncodeHello(hello).span()); }
Bytes ErrorBytes(const absl::Status& status) { return ToBytes(EncodeError(status).span()); }
Bytes RanksBytes(const std::vector<Rank>& ranks) { return ToBytes(EncodeRanks(ranks).span()); }

template <typename T>
Bytes Put(Bytes bytes, size_t offset, T value) {
  StoreLittle(std::as_writable_bytes(std::span(bytes)), offset, value);
  return bytes;
}

void ExpectBadHello(const Bytes& bytes, const std::string& named) {
  const absl::Status status = DecodeHello(Span(bytes)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << named;
  EXPECT_THAT(std::string(status.message()), HasSubstr(named));
  EXPECT_FALSE(wire_reference::ReadHello(bytes).has_value()) << named;
}

TEST(HelloTest, ComesBackAsItWas) {
  for (const size_t size : {0, 1, 255}) {
    Hello hello = SomeHello();
    hello.job_id = std::string(size, 'j');
    hello.token = std::string(255 - size, '\0');
    const auto decoded = DecodeHello(EncodeHello(hello).span());
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(*decoded, hello);
  }
}

TEST(HelloTest, IsReadAlikeByTheReference) {
  const auto theirs = wire_reference::ReadHello(HelloBytes(SomeHello()));
  ASSERT_TRUE(theirs.has_value());
  EXPECT_EQ(theirs->node, 3u);
  EXPECT_EQ(theirs->role, 1);
  EXPECT_EQ(theirs->job_id, "job-1");
  EXPECT_EQ(theirs->token, "secret");
}

TEST(HelloTest, RefusesEveryOtherLength) {
  Bytes bytes = HelloBytes(SomeHello());
  for (size_t size = 0; size < bytes.size(); ++size) {
    ExpectBadHello(Bytes(bytes.begin(), bytes.begin() + size), "bytes");
  }
  bytes.push_back(0);
  ExpectBadHello(bytes, "bytes");
}

TEST(HelloTest, NamesTheFieldThatIsWrong) {
  const Bytes good = HelloBytes(SomeHello());
  ExpectBadHello(Put(good, 0, uint32_t{0}), "node");
  ExpectBadHello(Put(good, 4, uint8_t{3}), "role 3");
  for (size_t at = 5; at < 8; ++at) ExpectBadHello(Put(good, at, uint8_t{1}), "reserved");
  ExpectBadHello(Put(good, 8, uint32_t{1}), "incarnation");
  for (size_t at = 12; at < 24; ++at) ExpectBadHello(Put(good, at, uint8_t{1}), "reserved");
  ExpectBadHello(Put(good, 24, uint64_t{1}), "capabilities");
}

TEST(HelloTest, RefusesALongString) {
  Hello hello = SomeHello();
  hello.job_id = std::string(100000, 'x');
  ExpectBadHello(HelloBytes(hello), "job_id");
  hello = SomeHello();
  hello.token = std::string(256, 'x');
  ExpectBadHello(HelloBytes(hello), "token");
}

TEST(HelloTest, IsDecodableByDefaultButForItsNode) {
  Hello hello;
  hello.node = 1;
  EXPECT_EQ(DecodeHello(EncodeHello(hello).span()).value(), hello);
}

TEST(ErrorTest, ComesBackAsItWas) {
  for (int code = 1; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), absl::StrCat("code ", code));
    EXPECT_EQ(DecodeError(EncodeError(status).span()), status);
    const auto theirs = wire_reference::ReadError(ErrorBytes(status));
    ASSERT_TRUE(theirs.has_value());
    EXPECT_EQ(theirs->code, static_cast<uint32_t>(code));
    EXPECT_EQ(theirs->message, std::string(status.message()));
  }
}

TEST(ErrorTest, IsCutAtFourKibibytes) {
  const absl::Status status = absl::InternalError(std::string(10000, 'x'));
  const absl::Status decoded = DecodeError(EncodeError(status).span());
  EXPECT_EQ(decoded.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(decoded.message().size(), 4096u);
}

TEST(ErrorTest, IsNeverOk) {
  const Bytes good = ErrorBytes(absl::AbortedError("why"));
  std::vector<Bytes> bad = {Put(good, 0, uint32_t{0}), Put(good, 0, uint32_t{17}),
                            Put(good, 4, uint32_t{4097}), Put(good, 4, uint32_t{2})};
  for (size_t size = 0; size < good.size(); ++size) {
    bad.emplace_back(good.begin(), good.begin() + size);
  }
  for (const Bytes& bytes : bad) {
    const absl::Status status = DecodeError(Span(bytes));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("error frame"));
    EXPECT_FALSE(wire_reference::ReadError(bytes).has_value());
  }
}

TEST(RanksTest, ComeBackAsTheyWere) {
  const std::vector<std::vector<Rank>> lists = {{}, {0}, {0, 2, 5}, {2147483647}};
  for (const std::vector<Rank>& ranks : lists) {
    EXPECT_EQ(DecodeRanks(EncodeRanks(ranks).span()).value(), ranks);
    EXPECT_EQ(wire_reference::ReadRanks(RanksBytes(ranks)).value(), ranks);
  }
}

TEST(RanksTest, MustRiseFromZero) {
  const std::vector<std::vector<Rank>> lists = {{-1}, {1, 1}, {2, 1}, {0, -5}};
  for (const std::vector<Rank>& ranks : lists) {
    const absl::Status status = DecodeRanks(EncodeRanks(ranks).span()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("must rise"));
    EXPECT_FALSE(wire_reference::ReadRanks(RanksBytes(ranks)).has_value());
  }
}

TEST(RanksTest, AllocateNothingForACountThatIsNotThere) {
  const Bytes good = RanksBytes({0, 2});
  for (const uint32_t count : {0u, 1u, 3u, 0xffffffffu, 0x40000002u}) {
    EXPECT_EQ(DecodeRanks(Span(Put(good, 0, count))).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_FALSE(DecodeRanks(Span(Bytes(good.begin(), good.begin() + size))).ok());
  }
}

TEST(PositionTest, SurvivesAndRefusesWhatNobodySends) {
  for (const KeyPosition& position : {KeyPosition{}, KeyPosition{kMaxStep, true}}) {
    const Buffer bytes = EncodePosition(position);
    const absl::StatusOr<KeyPosition> read = DecodePosition(bytes.span());
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(*read, position);
    EXPECT_FALSE(DecodePosition(bytes.span().first(15)).ok());
  }
  EXPECT_FALSE(DecodePosition(EncodePosition({kMaxStep + 1, false}).span()).ok());
  Bytes flagged = ToBytes(EncodePosition({5, true}).span());
  flagged[8] = 2;
  EXPECT_FALSE(DecodePosition(std::as_bytes(std::span(flagged))).ok());
}

Bytes CountersBytes(const StateCounters& counters) {
  return ToBytes(EncodeCounters(counters).span());
}

TEST(ReportTest, AgreesWithTheReferenceOnRandomReports) {
  std::mt19937_64 random(5);
  for (int i = 0; i < 500; ++i) {
    const auto step = [&] { return random() % (random() % 2 == 0 ? 40 : kMaxStep + 1); };
    KeyReport report{.done = step(),
                     .complete_from = step(),
                     .open = step(),
                     .uncompressed_from = step(),
                     .snapshots = {step(), step()},
                     .newest_snapshot = step(),
                     .keeps_value = step(),
                     .is_root = random() % 2 == 0,
                     .is_broken = random() % 2 == 0,
                     .is_retired = random() % 2 == 0,
                     .needs_snapshot = random() % 2 == 0,
                     .is_redone = random() % 2 == 0,
                     .has_reply = random() % 2 == 0};
    Step after = random() % 3;
    for (uint64_t n = random() % 5; n > 0; --n) {
      report.inits.push_back(
          {after, static_cast<uint32_t>(report.inits.size() * 7 + 1 + random() % 7)});
      after += 1 + random() % 9;
    }
    const Buffer payload = EncodeReport(report);
    EXPECT_EQ(DecodeReport(payload.span()).value(), report);
    Bytes bytes = ToBytes(payload.span());
    const auto theirs = wire_reference::ReadReport(bytes);
    ASSERT_TRUE(theirs.has_value());
    EXPECT_EQ(theirs->done, report.done);
    EXPECT_EQ(theirs->complete_from, report.complete_from);
    EXPECT_EQ(theirs->open, report.open);
    EXPECT_EQ(theirs->uncompressed_from, report.uncompressed_from);
    EXPECT_EQ(theirs->snapshots[0], report.snapshots[0]);
    EXPECT_EQ(theirs->snapshots[1], report.snapshots[1]);
    EXPECT_EQ(theirs->keeps_value, report.keeps_value);
    EXPECT_EQ(theirs->newest_snapshot, report.newest_snapshot);
    EXPECT_EQ(theirs->inits.size(), report.inits.size());
    const uint32_t flags = (report.is_root ? 1 : 0) + (report.is_broken ? 2 : 0) +
                           (report.is_retired ? 4 : 0) + (report.is_redone ? 8 : 0) +
                           (report.needs_snapshot ? 16 : 0) + (report.has_reply ? 32 : 0);
    EXPECT_EQ(theirs->flags, flags);
    // A damaged one is refused by both, or read alike.
    bytes[random() % bytes.size()] ^= static_cast<uint8_t>(1u << (random() % 8));
    const auto damaged = DecodeReport(Span(bytes));
    EXPECT_EQ(damaged.ok(), wire_reference::ReadReport(bytes).has_value()) << damaged.status();
  }
}

TEST(ReportTest, NamesWhatIsWrong) {
  const Bytes good = ToBytes(EncodeReport({.done = 5, .inits = {{1, 2}, {3, 4}}}).span());
  const auto refused = [](const Bytes& bytes, const std::string& named) {
    const absl::Status status = DecodeReport(Span(bytes)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(named));
    EXPECT_FALSE(wire_reference::ReadReport(bytes).has_value());
  };
  refused(Bytes(good.begin(), good.begin() + 71), "at least 72");
  refused(Bytes(good.begin(), good.end() - 1), "for 2 inits");
  refused(Put(good, 0, kMaxStep + 1), "done");
  refused(Put(good, 8, kMaxStep + 1), "complete_from");
  refused(Put(good, 40, kMaxStep + 1), "snapshot");
  refused(Put(good, 56, kMaxStep + 1), "newest_snapshot");
  refused(Put(good, 64, uint32_t{64}), "unknown flags 0x40");
  refused(Put(good, 68, uint32_t{1} << 31), "inits");
  refused(Put(good, 72, uint64_t{3}), "not in order");
  refused(Put(good, 80, uint32_t{0}), "not in order");
  refused(Put(good, 92, uint32_t{2}), "not in order");
}

TEST(OrderTest, ComesBackAndNamesWhatIsWrong) {
  const RebuildOrder order{RebuildOrder::What::kRedo, 9, 12};
  EXPECT_EQ(DecodeOrder(EncodeOrder(order).span()).value(), order);
  const Bytes good = ToBytes(EncodeOrder(order).span());
  const auto theirs = wire_reference::ReadOrder(good);
  ASSERT_TRUE(theirs.has_value());
  EXPECT_EQ(theirs->what, 2u);
  EXPECT_EQ(theirs->start, 9u);
  EXPECT_EQ(theirs->target, 12u);
  const auto refused = [](const Bytes& bytes, const std::string& named) {
    const absl::Status status = DecodeOrder(Span(bytes)).status();
    EXPECT_THAT(std::string(status.message()), HasSubstr(named));
    EXPECT_FALSE(wire_reference::ReadOrder(bytes).has_value());
  };
  refused(Bytes(good.begin(), good.begin() + 23), "expected 24");
  refused(Put(good, 0, uint64_t{4}), "unknown order 4");
  refused(Put(good, 8, uint64_t{13}), "from step 13 to step 12");
  refused(Put(good, 16, kMaxStep + 1), "target");
}

TEST(GivenReplyTest, AgreesWithTheReferenceOnRandomReplies) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 500; ++i) {
    GivenReply given{.step = random() % 30,
                     .flags = static_cast<uint8_t>(random() % 256),
                     .codec = static_cast<uint8_t>(random() % 256),
                     .is_refusal = random() % 4 == 0};
    given.payload_step = random() % (given.step + 1);
    given.base_step = random() % (given.payload_step + 1);
    const Bytes payload(given.payload_step == 0 ? 0 : random() % 9, 7);
    const Bytes replica(given.payload_step == 0 ? 0 : 4 * (random() % 3), 9);
    given.payload = Span(payload);
    given.replica = Span(replica);
    Bytes bytes = ToBytes(EncodeGivenReply(given).span());
    const auto ours = DecodeGivenReply(Span(bytes));
    ASSERT_TRUE(ours.ok()) << ours.status();
    EXPECT_EQ(ours->step, given.step);
    EXPECT_EQ(ours->base_step, given.base_step);
    EXPECT_EQ(ToBytes(ours->payload), payload);
    EXPECT_EQ(ToBytes(ours->replica), replica);
    const auto theirs = wire_reference::ReadGiven(bytes);
    ASSERT_TRUE(theirs.has_value());
    EXPECT_EQ(theirs->step, given.step);
    EXPECT_EQ(theirs->payload_step, given.payload_step);
    EXPECT_EQ(theirs->base_step, given.base_step);
    EXPECT_EQ(theirs->flags, given.flags);
    EXPECT_EQ(theirs->codec, given.codec);
    EXPECT_EQ(theirs->refusal == 1, given.is_refusal);
    EXPECT_EQ(theirs->payload_bytes, payload.size());
    EXPECT_EQ(theirs->replica_bytes, replica.size());
    // A damaged one is refused by both, or read alike.
    bytes[random() % bytes.size()] ^= static_cast<uint8_t>(1u << (random() % 8));
    const auto damaged = DecodeGivenReply(Span(bytes));
    EXPECT_EQ(damaged.ok(), wire_reference::ReadGiven(bytes).has_value()) << damaged.status();
  }
}

TEST(GivenReplyTest, NamesWhatIsWrong) {
  const Bytes payload(5, 1);
  const Bytes good = ToBytes(
      EncodeGivenReply({.step = 9, .payload_step = 7, .base_step = 6, .payload = Span(payload)})
          .span());
  ASSERT_EQ(good.size(), 48u);
  const auto refused = [](const Bytes& bytes, const std::string& named) {
    const absl::Status status = DecodeGivenReply(Span(bytes)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(named));
    EXPECT_FALSE(wire_reference::ReadGiven(bytes).has_value());
  };
  refused(Bytes(good.begin(), good.begin() + 39), "at least 40");
  refused(Bytes(good.begin(), good.end() - 1), "expected 48");
  refused(Put(good, 0, kMaxStep + 1), "step");
  refused(Put(good, 0, uint64_t{6}), "payload of step 7");
  refused(Put(good, 16, uint64_t{8}), "on step 8");
  refused(Put(good, 26, uint8_t{2}), "reserved");
  refused(Put(good, 31, uint8_t{1}), "reserved");
  refused(Put(good, 47, uint8_t{1}), "reserved");
}

TEST(CountersTest, ComeBackAsTheyWere) {
  for (const StateCounters& counters :
       {StateCounters{}, StateCounters{12, 0.25f}, StateCounters{kMaxStep, -1e30f}}) {
    EXPECT_EQ(DecodeCounters(EncodeCounters(counters).span()).value(), counters);
    const auto theirs = wire_reference::ReadCounters(CountersBytes(counters));
    ASSERT_TRUE(theirs.has_value());
    EXPECT_EQ(theirs->updates, counters.updates);
    EXPECT_EQ(theirs->previous_learning_rate, counters.previous_learning_rate);
  }
}

TEST(CountersTest, NameWhatIsWrong) {
  const Bytes good = CountersBytes({12, 0.25f});
  const auto refused = [](const Bytes& bytes, const std::string& named) {
    const absl::Status status = DecodeCounters(Span(bytes)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(named));
    EXPECT_FALSE(wire_reference::ReadCounters(bytes).has_value());
  };
  for (size_t size = 0; size < good.size(); ++size) {
    refused(Bytes(good.begin(), good.begin() + size), "expected 16");
  }
  Bytes longer = good;
  longer.push_back(0);
  refused(longer, "17 bytes");
  refused(Put(good, 8, std::numeric_limits<float>::quiet_NaN()), "learning rate nan");
  refused(Put(good, 8, std::numeric_limits<float>::infinity()), "learning rate inf");
  refused(Put(good, 12, uint32_t{1}), "reserved");
  refused(Put(good, 0, kMaxStep + 1), "4611686018427387905 updates");
}

TEST(MessageTest, AgreesWithTheReferenceOnDamagedPayloads) {
  std::mt19937 random(1);
  const std::vector<Bytes> originals = {HelloBytes(SomeHello()),
                                        ErrorBytes(absl::AbortedError("some words")),
                                        RanksBytes({0, 1, 2, 3, 9}), CountersBytes({12, 0.25f})};
  for (int i = 0; i < 20000; ++i) {
    Bytes bytes = originals[i % originals.size()];
    for (int change = 0; change < 1 + i % 2; ++change) {
      bytes[random() % bytes.size()] = static_cast<uint8_t>(random() % 4);
    }
    EXPECT_EQ(DecodeHello(Span(bytes)).ok(), wire_reference::ReadHello(bytes).has_value());
    EXPECT_EQ(DecodeRanks(Span(bytes)).ok(), wire_reference::ReadRanks(bytes).has_value());
    EXPECT_EQ(DecodeCounters(Span(bytes)).ok(), wire_reference::ReadCounters(bytes).has_value());
    const auto error = wire_reference::ReadError(bytes);
    const absl::Status ours = DecodeError(Span(bytes));
    EXPECT_FALSE(ours.ok());
    if (error.has_value()) {
      EXPECT_EQ(static_cast<uint32_t>(ours.code()), error->code);
      EXPECT_EQ(std::string(ours.message()), error->message);
    } else {
      EXPECT_EQ(ours.code(), absl::StatusCode::kInvalidArgument);
    }
  }
}

}  // namespace
}  // namespace bdn
