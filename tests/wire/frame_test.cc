#include "common/wire/frame.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <map>
#include <random>
#include <set>

#include "common/wire/message.h"
#include "common/wire/row_records.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/reference/wire_reference.h"
#include "tests/wire/wire_bytes.h"

namespace bdn {
namespace {

using ::testing::HasSubstr;

constexpr float kMaxFloat = std::numeric_limits<float>::max();

FrameHeader PushHeader() {
  FrameHeader header;
  header.type = FrameType::kPush;
  header.codec = 4;
  header.sender = 3;
  header.key = Key::Of(7, 2);
  header.step = 12;
  header.num_elements = 9;
  header.epoch = 1;
  header.catalogue_version = 4;
  return header;
}

FrameHeader Changed(FrameHeader header, const std::function<void(FrameHeader&)>& change) {
  change(header);
  return header;
}

Buffer BufferOf(const Bytes& bytes) { return Buffer::CopyOf(Span(bytes)); }

// The frames of tests/golden/frames.txt, built through the interface.
std::map<std::string, Frame> GoldenFrames() {
  const Buffer onebit = BufferOf({0, 0, 0xa0, 0x40, 0xaa, 0, 0, 0});
  const Buffer raw = BufferOf({1, 2, 3, 4, 5});
  const FrameHeader push = PushHeader();
  const FrameHeader reply = Changed(push, [](FrameHeader& h) {
    h.type = FrameType::kReply;
    h.sender = 1;
    h.weight = 0;  // reserved
  });
  const FrameHeader answer = Changed(reply, [](FrameHeader& h) {
    h.codec = 0;
    h.weight = 1;
  });
  const auto header_only = [](FrameHeader header, uint8_t flags, Step step) {
    header.codec = 0;
    header.flags = flags;
    header.step = step;
    return Frame{header, {}};
  };
  const auto bytes_key = [&](FrameType type, NodeId sender) {
    return Changed(push, [&](FrameHeader& h) {
      h.type = type;
      h.codec = 0;
      h.sender = sender;
      h.key = Key::Of(9, 0);
      h.step = 1;
      h.num_elements = 5;
    });
  };
  const auto of_type = [](FrameHeader header, FrameType type) {
    header.type = type;
    return header;
  };

  std::map<std::string, Frame> frames;
  FrameHeader hello;
  hello.sender = 3;
  frames["hello"] = MakeFrame(
      hello, EncodeHello({.job_id = "job-1", .node = 3, .role = Role::kWorker, .token = "secret"}));
  frames["push"] = MakeFrame(push, onebit);
  frames["push_weighted"] = MakeFrame(Changed(push,
                                              [](FrameHeader& h) {
                                                h.sender = 4;
                                                h.weight = 0.5f;
                                                h.learning_rate = 0.001f;
                                              }),
                                      onebit);
  frames["push_urgent"] = MakeFrame(Changed(push, [](FrameHeader& h) { h.priority = -3; }), onebit);
  frames["push_counted"] =
      MakeFrame(Changed(push, [](FrameHeader& h) { h.program_steps = 0x01020304; }), onebit);
  frames["push_absent"] = header_only(push, kFlagAbsent, 13);
  frames["push_nonfinite"] = header_only(push, kFlagNonFinite, 14);
  frames["push_unwanted"] = header_only(push, kFlagAbsent | kFlagUnwanted, 13);
  frames["push_asks_uncompressed"] =
      MakeFrame(Changed(push, [](FrameHeader& h) { h.flags = kFlagUncompressed; }), onebit);
  frames["reply"] = MakeFrame(reply, onebit);
  frames["reply_uncompressed"] =
      MakeFrame(Changed(reply, [](FrameHeader& h) { h.flags = kFlagUncompressed; }), onebit);
  frames["reply_absent_uncompressed"] = header_only(reply, kFlagAbsent | kFlagUncompressed, 13);
  frames["reply_absent"] = header_only(reply, kFlagAbsent, 13);
  frames["reply_nonfinite"] = header_only(reply, kFlagNonFinite, 14);
  frames["reply_unwanted"] = header_only(reply, kFlagUnwanted, 13);
  frames["probe_unwanted"] = header_only(of_type(push, FrameType::kProbe), kFlagUnwanted, 12);
  frames["probe"] = header_only(of_type(push, FrameType::kProbe), 0, 12);
  frames["init"] = MakeFrame(bytes_key(FrameType::kInit, 3), raw);
  frames["fetch"] = Frame{bytes_key(FrameType::kFetch, 4), {}};
  frames["fetch_unwanted"] = Frame{
      Changed(bytes_key(FrameType::kFetch, 4), [](FrameHeader& h) { h.flags = kFlagUnwanted; }),
      {}};
  frames["value"] = MakeFrame(bytes_key(FrameType::kValue, 1), raw);
  const std::vector<std::byte> digest(kDigestBytes, std::byte{0xab});
  frames["fetch_digest"] = MakeFrame(bytes_key(FrameType::kFetch, 4), Buffer::CopyOf(digest));
  frames["value_same"] = Frame{
      Changed(bytes_key(FrameType::kValue, 1), [](FrameHeader& h) { h.flags = kFlagSame; }), {}};
  const auto state = [&](FrameType type, NodeId sender, StatePart part) {
    return Changed(bytes_key(type, sender), [&](FrameHeader& h) {
      h.part = part;
      h.element_offset = 2;
      h.request = 6;
    });
  };
  const Buffer counters = EncodeCounters({7, 0.5f});
  frames["reply_based"] =
      MakeFrame(Changed(reply, [](FrameHeader& h) { h.base_step = 11; }), onebit);
  frames["init_counters"] = MakeFrame(state(FrameType::kInit, 3, StatePart::kCounters), counters);
  const std::string_view rule = "sgd(momentum=0.5)";
  frames["init_rule"] = MakeFrame(state(FrameType::kInit, 3, StatePart::kRule),
                                  Buffer::CopyOf(std::as_bytes(std::span(rule))));
  frames["reply_to_init"] = Frame{Changed(bytes_key(FrameType::kReply, 1),
                                          [](FrameHeader& h) {
                                            h.request = 6;
                                            h.weight = 0;
                                          }),
                                  {}};
  frames["fetch_moment1"] = Frame{state(FrameType::kFetch, 4, StatePart::kMoment1), {}};
  const uint8_t wanted[] = {0, 0, 0, 0, 3, 0, 0, 0, 3, 3, 1};  // the rows 3, 4 and 9
  frames["fetch_rows"] = MakeFrame(state(FrameType::kFetch, 4, StatePart::kRows),
                                   Buffer::CopyOf(std::as_bytes(std::span(wanted))));
  frames["fetch_records"] = MakeFrame(state(FrameType::kFetch, 4, StatePart::kRecords),
                                      EncodeRecordsAsk({.cursor = 64, .since = 3, .most = 1000}));
  const std::vector<uint64_t> held = {3, 9};
  MutableByteSpan records;
  Buffer value = MakeRecords({.next = 128, .updates = 12}, held, RecordBytes(1, 0), &records);
  const uint32_t record[] = {0x3f800000, 5, 12, 0xc0000000, 1, 4};  // of 1.0 and -2.0
  std::ranges::copy(std::as_bytes(std::span(record)), records.begin());
  frames["value_records"] = MakeFrame(Changed(state(FrameType::kValue, 1, StatePart::kRecords),
                                              [](FrameHeader& h) { h.base_step = 12; }),
                                      value);
  frames["value_counters"] = MakeFrame(Changed(state(FrameType::kValue, 1, StatePart::kCounters),
                                               [](FrameHeader& h) { h.base_step = 12; }),
                                       counters);
  frames["error"] = MakeFrame(of_type(answer, FrameType::kError),
                              EncodeError(absl::FailedPreconditionError("epoch 1 has ended")));
  frames["waiting"] = MakeFrame(of_type(answer, FrameType::kWaiting), EncodeRanks({0, 2, 5}));
  frames["push_saved"] = MakeFrame(Changed(push, [](FrameHeader& h) { h.saved_step = 9; }), onebit);
  frames["reply_saved"] =
      MakeFrame(Changed(reply, [](FrameHeader& h) { h.saved_step = 8; }), onebit);
  const auto of_rebuild = [&](FrameType type, NodeId sender) {
    return Changed(bytes_key(type, sender), [](FrameHeader& h) { h.request = 6; });
  };
  frames["report"] =
      MakeFrame(of_rebuild(FrameType::kReport, 4), EncodeReport({.done = 12,
                                                                 .complete_from = 9,
                                                                 .open = 13,
                                                                 .uncompressed_from = 11,
                                                                 .snapshots = {9, 10},
                                                                 .newest_snapshot = 10,
                                                                 .is_broken = true,
                                                                 .is_redone = true,
                                                                 .has_reply = true,
                                                                 .inits = {{9, 4}, {12, 6}}}));
  frames["rebuild"] = MakeFrame(of_rebuild(FrameType::kRebuild, 1),
                                EncodeOrder({RebuildOrder::What::kRedo, 9, 12}));
  const uint8_t given[] = {1, 2, 3, 4, 5};
  const std::vector<float> replica = {1.0f, -2.0f};
  frames["init_reply"] =
      MakeFrame(state(FrameType::kInit, 3, StatePart::kReply),
                EncodeGivenReply({.step = 12,
                                  .payload_step = 12,
                                  .base_step = 11,
                                  .flags = kFlagUncompressed,
                                  .codec = 4,
                                  .payload = std::as_bytes(std::span(given)),
                                  .replica = std::as_bytes(std::span(replica))}));
  const FrameHeader largest = {.type = FrameType::kReply,
                               .codec = 255,
                               .sender = ~NodeId{0},
                               .key = Key{~uint64_t{0}},
                               .step = ~Step{0},
                               .base_step = ~Step{0},
                               .num_elements = ~uint64_t{0},
                               .saved_step = ~Step{0} - 1,
                               .epoch = ~Epoch{0},
                               .catalogue_version = ~uint32_t{0},
                               .weight = kMaxFloat,
                               .learning_rate = -kMaxFloat,
                               .request = ~uint32_t{0}};
  frames["largest_reply"] = MakeFrame(largest, EncodeRanks({}));
  frames["largest_value"] = MakeFrame(Changed(largest,
                                              [](FrameHeader& h) {
                                                h.type = FrameType::kValue;
                                                h.codec = 0;
                                                h.part = kLastStatePart;
                                                h.saved_step = 0;
                                                h.element_offset = ~uint64_t{0};
                                              }),
                                      EncodeRanks({}));
  return frames;
}

void ExpectAgreement(const FrameHeader& ours, const wire_reference::Header& theirs) {
  EXPECT_EQ(static_cast<uint8_t>(ours.type), theirs.type);
  EXPECT_EQ(ours.codec, theirs.codec);
  EXPECT_EQ(ours.flags, theirs.flags);
  EXPECT_EQ(static_cast<uint8_t>(ours.part), theirs.part);
  EXPECT_EQ(ours.sender, theirs.sender);
  EXPECT_EQ(ours.key.value, theirs.key);
  EXPECT_EQ(ours.step, theirs.step);
  EXPECT_EQ(ours.base_step, theirs.base_step);
  EXPECT_EQ(ours.num_elements, theirs.num_elements);
  EXPECT_EQ(ours.element_offset, theirs.element_offset);
  EXPECT_EQ(ours.saved_step, theirs.saved_step);
  EXPECT_EQ(ours.epoch, theirs.epoch);
  EXPECT_EQ(ours.catalogue_version, theirs.catalogue_version);
  EXPECT_EQ(std::bit_cast<uint32_t>(ours.weight), std::bit_cast<uint32_t>(theirs.weight));
  EXPECT_EQ(std::bit_cast<uint32_t>(ours.learning_rate),
            std::bit_cast<uint32_t>(theirs.learning_rate));
  EXPECT_EQ(ours.payload_bytes, theirs.payload_bytes);
  EXPECT_EQ(ours.payload_crc, theirs.payload_crc);
  EXPECT_EQ(ours.request, theirs.request);
  EXPECT_EQ(ours.priority, theirs.priority);
  EXPECT_EQ(ours.program_steps, theirs.program_steps);
}

// Both decoders take it, or neither; what they take they read alike, and it encodes to itself.
void ExpectBothAgree(const Bytes& bytes) {
  const auto ours = DecodeHeader(Span(bytes));
  const auto theirs = wire_reference::ReadHeader(bytes);
  ASSERT_EQ(ours.ok(), theirs.has_value()) << ours.status();
  if (!ours.ok()) return;
  ExpectAgreement(*ours, *theirs);
  EXPECT_EQ(HeaderBytes(*ours), bytes);
}

void ExpectRefused(const Bytes& bytes, absl::StatusCode code, const std::string& named) {
  const absl::Status status = DecodeHeader(Span(bytes)).status();
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(named));
  EXPECT_FALSE(wire_reference::ReadHeader(bytes).has_value()) << named;
}

TEST(FrameTest, WritesTheGoldenBytes) {
  const auto golden = ReadGoldenFrames();
  const auto frames = GoldenFrames();
  EXPECT_EQ(golden.size(), frames.size());
  for (const auto& [name, frame] : frames) {
    ASSERT_TRUE(golden.contains(name)) << name;
    EXPECT_EQ(FrameBytes(frame), golden.at(name)) << name;
  }
}

TEST(FrameTest, ReadsTheGoldenBytes) {
  const auto frames = GoldenFrames();
  for (const auto& [name, bytes] : ReadGoldenFrames()) {
    SCOPED_TRACE(name);
    const Bytes header_bytes(bytes.begin(), bytes.begin() + kHeaderBytes);
    const auto header = DecodeHeader(Span(header_bytes));
    ASSERT_TRUE(header.ok()) << header.status();
    EXPECT_EQ(*header, frames.at(name).header);
    const Frame frame{*header, BufferOf(Bytes(bytes.begin() + kHeaderBytes, bytes.end()))};
    EXPECT_EQ(CheckPayload(frame), absl::OkStatus());
    ExpectBothAgree(header_bytes);
  }
}

TEST(FrameTest, AgreesWithTheReferenceOnRandomHeaders) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 2000; ++i) {
    FrameHeader header;
    constexpr std::array kTypes = {1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12};
    header.type = static_cast<FrameType>(kTypes[random() % kTypes.size()]);
    const bool is_state = header.type == FrameType::kInit || header.type == FrameType::kFetch ||
                          header.type == FrameType::kValue;
    const bool is_result = header.type == FrameType::kReply || header.type == FrameType::kValue;
    const bool has_codec = header.type == FrameType::kPush || header.type == FrameType::kReply;
    if (header.type == FrameType::kPush) {
      header.priority = static_cast<int32_t>(random());
      header.program_steps = static_cast<uint32_t>(random());
    }
    if (has_codec) header.codec = static_cast<uint8_t>(random());
    if (is_state) header.part = static_cast<StatePart>(random() % 10);
    if (is_state) header.element_offset = random();
    if (is_result) header.base_step = random();
    if (is_state || is_result || header.type >= FrameType::kError) {
      header.request = static_cast<uint32_t>(random());
    }
    header.sender = static_cast<NodeId>(random());
    header.key = Key{random()};
    header.step = random();
    if (has_codec) header.saved_step = random() % 2 * (random() % std::max<Step>(1, header.step));
    header.num_elements = random();
    header.epoch = static_cast<Epoch>(random());
    header.catalogue_version = static_cast<uint32_t>(random());
    header.weight = static_cast<float>(random() % 1000) / 7;
    header.learning_rate = static_cast<float>(random()) - 1e18f;
    if (header.type != FrameType::kProbe && header.type != FrameType::kFetch) {
      header.payload_bytes = static_cast<uint32_t>(1 + random() % MaxPayloadBytesOf(header.type));
      header.payload_crc = static_cast<uint32_t>(random());
    }
    const Bytes bytes = HeaderBytes(header);
    const auto decoded = DecodeHeader(Span(bytes));
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(*decoded, header);
    ExpectBothAgree(bytes);
  }
}

TEST(FrameTest, AgreesWithTheReferenceOnDamagedHeaders) {
  std::mt19937_64 random(2);
  const auto golden = ReadGoldenFrames();
  for (int i = 0; i < 300; ++i) {
    for (const auto& [name, frame] : golden) {
      Bytes header(frame.begin(), frame.begin() + kHeaderBytes);
      const int changes = 1 + static_cast<int>(random() % 3);
      for (int change = 0; change < changes; ++change) {
        header[8 + random() % 84] ^= static_cast<uint8_t>(1u << (random() % 8));
      }
      ExpectBothAgree(Sealed(header));
    }
  }
}

TEST(FrameTest, RefusesEveryOtherLength) {
  const Bytes header = HeaderBytes(PushHeader());
  for (size_t size = 0; size < header.size(); ++size) {
    ExpectRefused(Bytes(header.begin(), header.begin() + size), absl::StatusCode::kInvalidArgument,
                  absl::StrFormat("%d bytes", size));
  }
  Bytes longer = header;
  longer.push_back(0);
  ExpectRefused(longer, absl::StatusCode::kInvalidArgument, "97 bytes");
}

TEST(FrameTest, CatchesEachFlippedBit) {
  const Bytes header = HeaderBytes(PushHeader());
  for (size_t bit = 0; bit < header.size() * 8; ++bit) {
    Bytes damaged = header;
    damaged[bit / 8] ^= static_cast<uint8_t>(1u << (bit % 8));
    EXPECT_FALSE(DecodeHeader(Span(damaged)).ok()) << bit;
    if (bit >= 64) ExpectRefused(damaged, absl::StatusCode::kDataLoss, "header_crc");
  }
}

TEST(FrameTest, NamesTheFieldThatIsWrong) {
  const Bytes good = HeaderBytes(PushHeader());
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  const auto invalid = [](const Bytes& bytes, const std::string& named) {
    ExpectRefused(bytes, absl::StatusCode::kInvalidArgument, named);
  };
  invalid(With(good, 0, uint32_t{0x12345678}), "magic 0x12345678");
  invalid(With(good, 4, uint16_t{1}), "version 1, this process speaks 3");
  invalid(With(good, 4, uint16_t{0}), "version 0");
  invalid(With(good, 6, uint16_t{104}), "header_bytes 104");
  invalid(With(good, 8, uint8_t{0}), "type 0");
  invalid(With(good, 8, uint8_t{13}), "type 13");
  invalid(With(good, 10, uint8_t{4}), "flags 0x04");
  invalid(With(good, 10, uint8_t{0x81}), "flags 0x80");
  invalid(With(good, 10, uint8_t{3}), "absent and non-finite");
  invalid(With(With(good, 8, uint8_t{4}), 10, uint8_t{1}), "probe");
  const Bytes uncoded = With(good, 9, uint8_t{0});
  for (const uint8_t type : {1, 4, 5, 6, 7, 8, 9}) {
    invalid(With(good, 8, type), "codec is 4 on a");
  }
  for (const uint8_t type : {1, 2, 3, 4, 8, 9}) {
    invalid(With(With(uncoded, 8, type), 11, uint8_t{1}), "part is 1 on a");
    const bool is_of_round = type == 2 || type == 3;
    invalid(With(With(uncoded, 8, type), 48, uint64_t{1} << 63),
            is_of_round ? "saved_step is" : "element_offset is");
  }
  for (const uint8_t type : {5, 6, 7}) {
    invalid(With(With(uncoded, 8, type), 11, uint8_t{13}), "unknown part 13");
  }
  for (const uint8_t type : {1, 2, 4, 5, 6, 8, 9}) {
    invalid(With(With(uncoded, 8, type), 32, uint64_t{1}), "base_step is 1 on a");
    invalid(With(With(uncoded, 8, type), 32, uint64_t{1} << 60), "base_step is 11529215");
  }
  for (const uint8_t type : {1, 2, 4}) {
    invalid(With(With(uncoded, 8, type), 88, uint32_t{1}), "request is 1 on a");
  }
  invalid(With(good, 64, -1.0f), "weight");
  invalid(With(good, 64, nan), "weight");
  invalid(With(good, 64, infinity), "weight");
  invalid(With(good, 68, nan), "learning_rate");
  invalid(With(good, 68, -infinity), "learning_rate");
  invalid(With(good, 72, static_cast<uint32_t>(kMaxPayloadBytes + 1)), "payload_bytes");
  for (const uint8_t type : {1, 8}) {
    const auto most = static_cast<uint32_t>(MaxPayloadBytesOf(FrameType{type}));
    invalid(With(With(uncoded, 8, type), 72, most + 1), "payload_bytes");
  }
  invalid(With(good, 76, uint32_t{1}), "payload_crc");
  invalid(With(With(good, 72, uint32_t{4}), 10, uint8_t{1}), "payload_bytes");
  invalid(With(With(uncoded, 72, uint32_t{4}), 8, uint8_t{4}), "payload_bytes");
  invalid(With(With(uncoded, 72, uint32_t{4}), 8, uint8_t{6}), "payload_bytes");
  for (const uint8_t type : {1, 3, 4, 5, 6, 7, 8, 9}) {
    const Bytes other = With(type == 3 ? good : uncoded, 8, type);
    invalid(With(other, 80, uint32_t{1} << 31), "program_steps is 2147483648 on a");
    invalid(With(other, 84, int32_t{-3}), "priority is -3 on a");
    invalid(With(other, 84, std::numeric_limits<int32_t>::min()), "priority is -2147483648 on a");
  }
}

TEST(FrameTest, TakesTheseFlagsTogetherAndNoOthers) {
  const std::map<FrameType, std::set<int>> legal = {
      {FrameType::kPush, {0, kFlagAbsent, kFlagNonFinite, kFlagAbsent | kFlagUnwanted}},
      {FrameType::kReply, {0, kFlagAbsent, kFlagNonFinite, kFlagUnwanted}},
      {FrameType::kProbe, {0, kFlagUnwanted}},
      {FrameType::kFetch, {0, kFlagUnwanted}},
      {FrameType::kValue, {0, kFlagSame}}};
  const auto is_legal_of = [&](FrameType type, int flags) {
    const bool is_of_round = type == FrameType::kPush || type == FrameType::kReply;
    if (is_of_round) flags &= ~kFlagUncompressed;
    const auto found = legal.find(type);
    return found == legal.end() ? flags == 0 : found->second.contains(flags);
  };
  for (int type = 1; type <= 9; ++type) {
    FrameHeader header = PushHeader();
    header.type = static_cast<FrameType>(type);
    header.codec = 0;
    for (int flags = 0; flags < 256; ++flags) {
      header.flags = static_cast<uint8_t>(flags);
      const bool is_legal = is_legal_of(header.type, flags);
      EXPECT_EQ(DecodeHeader(Span(HeaderBytes(header))).ok(), is_legal) << type << " " << flags;
      ExpectBothAgree(HeaderBytes(header));
    }
  }
}

TEST(FrameTest, HasAPayloadBesideNoFlagButUncompressed) {
  for (int flags = 0; flags < 256; ++flags) {
    EXPECT_EQ(HasPayload(static_cast<uint8_t>(flags)), flags == 0 || flags == kFlagUncompressed);
  }
}

TEST(FrameTest, FetchCarriesNothingOrADigestOrNamesRows) {
  FrameHeader header = PushHeader();
  header.type = FrameType::kFetch;
  header.codec = 0;
  for (const uint32_t bytes : {0u, 1u, 23u, 24u, 25u, 31u, 32u, 33u, 1u << 30}) {
    header.payload_bytes = bytes;
    EXPECT_EQ(DecodeHeader(Span(HeaderBytes(header))).ok(), bytes == 0 || bytes == 32) << bytes;
    ExpectBothAgree(HeaderBytes(header));
    FrameHeader of_rows = header;
    of_rows.part = StatePart::kRows;
    EXPECT_TRUE(DecodeHeader(Span(HeaderBytes(of_rows))).ok()) << bytes;
    ExpectBothAgree(HeaderBytes(of_rows));
    of_rows.part = StatePart::kRecords;
    EXPECT_EQ(DecodeHeader(Span(HeaderBytes(of_rows))).ok(), bytes == 0 || bytes == 24) << bytes;
    ExpectBothAgree(HeaderBytes(of_rows));
  }
}

TEST(FrameTest, TakesTheExtremesOfEachField) {
  const Bytes good = HeaderBytes(PushHeader());
  ExpectBothAgree(With(good, 64, -0.0f));
  ExpectBothAgree(With(good, 64, std::numeric_limits<float>::denorm_min()));
  ExpectBothAgree(With(good, 72, static_cast<uint32_t>(kMaxPayloadBytes)));
  EXPECT_TRUE(DecodeHeader(Span(With(good, 64, -0.0f))).ok());
  for (const int32_t priority :
       {std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max()}) {
    ExpectBothAgree(With(good, 84, priority));
    EXPECT_EQ(DecodeHeader(Span(With(good, 84, priority)))->priority, priority);
  }
  EXPECT_TRUE(DecodeHeader(Span(With(good, 72, static_cast<uint32_t>(kMaxPayloadBytes)))).ok());
}

TEST(FrameTest, FillsInAndChecksThePayload) {
  Frame frame = MakeFrame(PushHeader(), BufferOf({1, 2, 3}));
  EXPECT_EQ(frame.header.payload_bytes, 3u);
  EXPECT_EQ(frame.header.payload_crc, wire_reference::Crc32c({1, 2, 3}));
  EXPECT_EQ(CheckPayload(frame), absl::OkStatus());

  Frame flipped = frame;
  flipped.payload = BufferOf({1, 2, 2});
  EXPECT_EQ(CheckPayload(flipped).code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(CheckPayload(flipped).message()),
              HasSubstr("push key=7.2 step=12 from node 3"));
  Frame shorter = frame;
  shorter.payload = frame.payload.Prefix(2);
  EXPECT_EQ(CheckPayload(shorter).code(), absl::StatusCode::kDataLoss);
}

TEST(FrameTest, GivesAFrameThatWasMadeWithoutItsChecksum) {
  const Frame expected = MakeFrame(PushHeader(), Buffer::CopyOf(std::vector<std::byte>(9)));
  Frame frame = MakeFrame(PushHeader(), expected.payload, /*with_checksum=*/false);
  AddChecksum(&frame);
  EXPECT_EQ(frame.header, expected.header);
  Frame empty = MakeFrame(PushHeader(), Buffer(), /*with_checksum=*/false);
  AddChecksum(&empty);
  EXPECT_EQ(empty.header.payload_crc, 0u);
}

TEST(FrameTest, GivesAnEmptyPayloadNoCrc) {
  const Frame frame = MakeFrame(PushHeader(), Buffer());
  EXPECT_EQ(frame.header.payload_bytes, 0u);
  EXPECT_EQ(frame.header.payload_crc, 0u);
  EXPECT_EQ(CheckPayload(frame), absl::OkStatus());
}

TEST(FrameTest, NamesEveryType) {
  EXPECT_STREQ(FrameTypeName(FrameType::kHello), "hello");
  EXPECT_STREQ(FrameTypeName(FrameType::kWaiting), "waiting");
  EXPECT_STREQ(FrameTypeName(FrameType::kTransport), "transport");
  EXPECT_STREQ(FrameTypeName(static_cast<FrameType>(99)), "unknown frame");
}

TEST(FrameTest, NamesEveryPart) {
  EXPECT_STREQ(StatePartName(StatePart::kNone), "none");
  EXPECT_STREQ(StatePartName(StatePart::kMoment1), "moment1");
  EXPECT_STREQ(StatePartName(static_cast<StatePart>(99)), "unknown part");
}

}  // namespace
}  // namespace bdn
