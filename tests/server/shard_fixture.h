#ifndef BANDONEON_TESTS_SERVER_SHARD_FIXTURE_H_
#define BANDONEON_TESTS_SERVER_SHARD_FIXTURE_H_

#include <memory>
#include <utility>
#include <vector>

#include "common/base/endian.h"
#include "common/wire/headers.h"
#include "gtest/gtest.h"
#include "tests/support/shard_rig.h"

// A shard with one key, and the frames that workers send it.

namespace bdn::testing {

inline constexpr Key kKey = Key::Of(7, 0);
using Floats = std::vector<float>;

inline Buffer BytesOf(const Floats& values) {
  return Buffer::CopyOf(std::as_bytes(std::span(values)));
}

inline Floats FloatsIn(ByteSpan bytes) {
  Floats values(bytes.size() / sizeof(float));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = LoadLittle<float>(bytes, i * sizeof(float));
  }
  return values;
}

// A shard with one key, and the workers that send it frames.
class ShardFixture : public ::testing::Test {
 protected:
  // A fresh shard.
  void Start(int workers, const KeyOptions& options = {}) {
    options_ = options;
    outbox_.sent.clear();
    requests_ = 0;
    shard_ = ServerShard(OptionsOfShard());
    shard_.SetMembership(MakeMembership(workers));
    shard_.AddKey(MakePlan(kKey, options));
    shard_.SetCatalogueVersion(1);
  }
  const KeyPlan& Plan() { return *shard_.Find(kKey)->plan; }
  const DenseState& State() { return shard_.Find(kKey)->dense; }
  const StateParts& Parts() { return State().parts; }
  const SegmentedCodec& Layout() { return *Plan().codecs.pull; }
  size_t Elements() { return Plan().entry.elements; }

  // Sends a frame on the connection of the worker that its header names.
  void Send(const Frame& frame) { outbox_.Add(shard_.OnFrame(frame.header.sender, frame)); }
  void Push(Rank rank, Step step, const Floats& values) {
    Frame push = MakePush(kKey, step, rank, values, options_);
    push.header.learning_rate = rate_;
    push.header.program_steps = program_steps_;
    Send(push);
  }
  void PushFlagged(Rank rank, Step step, uint8_t flag) {
    Frame push = MakeBare(FrameType::kPush, kKey, step, rank, Elements(), flag);
    push.header.learning_rate = rate_;
    push.header.program_steps = program_steps_;
    Send(push);
  }
  // Segment 0 alone, in the push's codec.
  void PushFirstSegment(Rank rank, Step step, const Floats& values) {
    const SegmentedCodec& codec = *Plan().codecs.push;
    std::vector<SegmentedCodec::Input> inputs(codec.num_segments());
    for (size_t i = 0; i < inputs.size(); ++i) {
      inputs[i] = {{values.data(), DType::kFloat32, codec.segment_elements(i)}, 1.0f, i == 0};
    }
    Buffer payload = Buffer::Allocate(codec.MaxEncodedBytes());
    const size_t used = codec.Encode(inputs, Draw(), payload.mutable_span()).value();
    Frame push = MakeBare(FrameType::kPush, kKey, step, rank, Elements());
    push.header.codec = static_cast<uint8_t>(codec.codec().id());
    push.header.learning_rate = rate_;
    Send(MakeFrame(push.header, payload.Prefix(used)));
  }
  void Probe(Rank rank, Step step, uint8_t flags = 0) {
    Send(MakeBare(FrameType::kProbe, kKey, step, rank, Elements(), flags));
  }

  FrameHeader AboutState(FrameType type, StatePart part, size_t segment, Rank rank, Step step) {
    FrameHeader header = StateHeader(type,
                                     {.part = part,
                                      .key = kKey,
                                      .num_elements = Elements(),
                                      .element_offset = Layout().segment_offset(segment)},
                                     step, ++requests_);
    StampHeader({.sender = WorkerNode(rank), .epoch = 1}, &header);
    return header;
  }
  // An init of a part of segment `segment`, not sent.
  Frame MakeInit(StatePart part, Buffer payload, Step step = 0, Rank rank = 0, size_t segment = 0) {
    return MakeFrame(AboutState(FrameType::kInit, part, segment, rank, step), std::move(payload));
  }
  void Set(StatePart part, const Floats& values, Step step = 0, size_t segment = 0) {
    Send(MakeInit(part, BytesOf(values), step, 0, segment));
    ASSERT_EQ(outbox_.LastTo(0)->header.type, FrameType::kReply) << Error(0);
  }
  // The weights of all segments.
  void SetWeights(const Floats& values, Step step = 0) {
    for (size_t i = 0; i < Layout().num_segments(); ++i) {
      const auto begin = values.begin() + Layout().segment_offset(i);
      Set(StatePart::kWeights, Floats(begin, begin + Layout().segment_elements(i)), step, i);
    }
  }
  const Frame& Fetch(StatePart part, size_t segment = 0, Rank rank = 0, Step step = 77) {
    Send(Frame{AboutState(FrameType::kFetch, part, segment, rank, step), {}});
    return *outbox_.LastTo(rank);
  }

  // Returns the last frame that a worker was sent. REQUIRES: there is one.
  const Frame& Reply(Rank rank = 0) { return *outbox_.LastTo(rank); }
  Floats Result(Rank rank) { return ValuesOf(Reply(rank), options_); }
  absl::Status Error(Rank rank) { return ErrorOf(Reply(rank)); }

  // Returns the options of the shards that Start makes.
  virtual ShardOptions OptionsOfShard() { return {.self = kServerNode}; }

  KeyOptions options_;
  float rate_ = 0.5f;
  uint32_t program_steps_ = 0;
  uint32_t requests_ = 0;
  Outbox outbox_;
  ServerShard shard_{{.self = kServerNode}};
};

}  // namespace bdn::testing

#endif  // BANDONEON_TESTS_SERVER_SHARD_FIXTURE_H_
