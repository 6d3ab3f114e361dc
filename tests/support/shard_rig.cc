#include "tests/support/shard_rig.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "common/wire/headers.h"
#include "common/wire/row_block.h"
#include "compressors/codec_spec.h"

namespace bdn::testing {
namespace {

SegmentedCodec CodecOf(const std::string& spec, const KeyOptions& options) {
  return SegmentedCodec(ParseCodecSpec(spec)->codec, options.segments, options.dtype);
}

}  // namespace

std::shared_ptr<const Membership> MakeMembership(int workers, Epoch epoch) {
  std::vector<Rank> ranks(static_cast<size_t>(workers));
  std::iota(ranks.begin(), ranks.end(), 0);
  return MembershipOf(ranks, epoch);
}

std::shared_ptr<const Places> MakePlaces(int workers) {
  return std::make_shared<const Places>(MakeMembership(workers)->workers);
}

std::shared_ptr<const Membership> MembershipOf(const std::vector<Rank>& ranks, Epoch epoch) {
  auto membership = std::make_shared<Membership>();
  membership->epoch = epoch;
  Rank next = 0;
  for (const Rank rank : ranks) {
    while (next < rank) membership->vacant.push_back(next++);
    next = rank + 1;
    membership->workers.push_back({.id = WorkerNode(rank), .role = Role::kWorker, .rank = rank});
  }
  membership->servers.push_back({.id = kServerNode,
                                 .role = Role::kServer,
                                 .rank = 0,
                                 .endpoints = {EndpointOf("loopback://server")}});
  membership->MakeIndex();
  return membership;
}

KeyEntry MakeEntry(Key key, const KeyOptions& options) {
  KeyEntry entry{.key = key,
                 .dtype = options.dtype,
                 .kind = options.kind,
                 .push_spec = options.push,
                 .pull_spec = options.pull,
                 .rule = options.rule,
                 .warmup_steps = options.warmup};
  for (size_t i = 0; i < options.segments.size(); ++i) {
    entry.segments.push_back(
        {.tensor = key.tensor() + static_cast<uint32_t>(i), .elements = options.segments[i]});
    entry.elements += options.segments[i];
  }
  return entry;
}

std::shared_ptr<const KeyPlan> MakePlan(Key key, const KeyOptions& options) {
  return MakeKeyPlan(MakeEntry(key, options), "tensor").value();
}

void Outbox::Add(Sends sends) {
  for (Outgoing& send : sends) sent.push_back(std::move(send));
}

const Frame* Outbox::LastTo(Rank rank) const {
  for (auto it = sent.rbegin(); it != sent.rend(); ++it) {
    if (it->to == WorkerNode(rank)) return &it->frame;
  }
  return nullptr;
}

Frame MakePush(Key key, Step step, Rank rank, const std::vector<float>& values,
               const KeyOptions& options) {
  const SegmentedCodec codec =
      CodecOf(step <= options.warmup ? std::string("none") : options.push, options);
  Buffer payload = Buffer::Allocate(codec.MaxEncodedBytes());
  std::vector<SegmentedCodec::Input> inputs;
  for (size_t i = 0; i < codec.num_segments(); ++i) {
    inputs.push_back(
        {{values.data() + codec.segment_offset(i), DType::kFloat32, codec.segment_elements(i)}});
  }
  const Draw draw({.tensor_name_hash = Draw::HashName("tensor"),
                   .partition = key.partition(),
                   .step = step,
                   .purpose = DrawPurpose::kShared});
  const size_t used = codec.Encode(inputs, draw, payload.mutable_span()).value();
  Frame bare = MakeBare(FrameType::kPush, key, step, rank, codec.num_elements());
  bare.header.codec = static_cast<uint8_t>(codec.codec().id());
  return MakeFrame(bare.header, payload.Prefix(used));
}

std::shared_ptr<const KeyPlan> MakeRowsPlan(Key key, size_t tables, const std::string& rule,
                                            const std::string& table) {
  KeyEntry entry{.key = key, .kind = KeyKind::kRows, .rule = rule, .buckets = 1};
  std::vector<TensorDeclaration> declared;
  for (uint32_t t = 0; t < tables; ++t) {
    entry.segments.push_back({key.tensor() + t, 0, kRowsWidth});
    entry.elements += kRowsWidth;
    declared.push_back({.name = absl::StrFormat("t%d", t),
                        .elements = kRowsWidth,
                        .kind = KeyKind::kRows,
                        .rule = rule,
                        .table = table});
  }
  return MakeKeyPlan(entry, "t0", declared).value();
}

Buffer RowsPayload(const std::vector<std::optional<PushedRows>>& tables) {
  constexpr size_t kRowBytes = kRowsWidth * sizeof(float);
  std::vector<std::optional<size_t>> lengths(tables.size());
  for (size_t i = 0; i < tables.size(); ++i) {
    if (tables[i].has_value())
      lengths[i] = RowBlockBytes(tables[i]->ids, tables[i]->wanted, kRowBytes);
  }
  const RowPayload payload = MakeRowPayload(lengths);
  for (size_t i = 0; i < tables.size(); ++i) {
    if (!tables[i].has_value()) continue;
    const auto out = WriteRowBlock(tables[i]->ids, tables[i]->wanted, payload.parts[i]);
    std::ranges::copy(std::as_bytes(std::span(tables[i]->values)), out.begin());
  }
  return payload.bytes;
}

Frame MakeRowsPush(Key key, Step step, Rank rank,
                   const std::vector<std::optional<PushedRows>>& tables) {
  FrameHeader header = PushHeader(key, step, kRowsWidth * tables.size());
  header.codec = static_cast<uint8_t>(CodecId::kNone);
  header.learning_rate = 1.0f;
  StampHeader({.sender = WorkerNode(rank), .epoch = 1}, &header);
  return MakeFrame(header, RowsPayload(tables));
}

Frame MakeBare(FrameType type, Key key, Step step, Rank rank, size_t elements, uint8_t flags) {
  FrameHeader header;
  header.type = type;
  header.flags = flags;
  header.sender = WorkerNode(rank);
  header.key = key;
  header.step = step;
  header.num_elements = elements;
  header.epoch = 1;
  return Frame{header, {}};
}

std::vector<float> ValuesOf(const Frame& reply, const KeyOptions& options) {
  const SegmentedCodec codec =
      CodecOf(reply.header.step <= options.warmup ? std::string("none") : options.pull, options);
  std::vector<float> values(codec.num_elements(), 0.0f);
  if (!codec.Validate(reply.payload.span()).ok()) return {};
  SegmentedCodec::Segments segments(codec, reply.payload.span());
  for (size_t i = 0; i < codec.num_segments(); ++i) {
    const std::optional<ByteSpan> payload = segments.Next();
    if (!payload.has_value()) continue;
    codec.codec().Decode(
        *payload, 1.0f,
        {values.data() + codec.segment_offset(i), DType::kFloat32, codec.segment_elements(i)});
  }
  return values;
}

absl::Status ErrorOf(const Frame& frame) {
  if (frame.header.type != FrameType::kError) return absl::OkStatus();
  return DecodeError(frame.payload.span());
}

std::vector<Rank> RanksOf(const Frame& frame) {
  if (frame.header.type != FrameType::kWaiting) return {-1};
  return DecodeRanks(frame.payload.span()).value();
}

}  // namespace bdn::testing
