// Whatever workers send about a key that has come from a lost server, the shard goes on, answers
// with frames that can be sent, and counts the key once.

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/log.h"
#include "common/wire/headers.h"
#include "common/wire/message.h"
#include "server/key_snapshot.h"
#include "server/shard.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/support/shard_rig.h"

namespace bdn {
namespace {

using testing::WorkerNode;

const testing::KeyOptions kKeys[] = {
    {.push = "none", .pull = "none"},
    {.push = "none", .pull = "ef(onebit)", .segments = {5}},
    {.push = "none", .pull = "none", .segments = {3, 5}, .rule = "sgd(momentum=0.9)"},
    {.push = "none", .pull = "delta(int4)", .segments = {4, 2}, .rule = "adamw"},
    {.push = "none", .pull = "none", .segments = {6}, .kind = KeyKind::kBroadcast},
};
constexpr Key kKey = Key::Of(3, 1);

class Job {
 public:
  explicit Job(fuzz::FuzzInput input)
      : input_(input),
        options_(kKeys[Less(std::size(kKeys))]),
        plan_(testing::MakePlan(kKey, options_)),
        shard_({.self = testing::kServerNode,
                .tells_roots = true,
                .on_failure = [this](const auto&) { has_failed_ = true; }}) {}

  void Run() {
    SetMembership();
    shard_.AddKey(plan_, true);
    shard_.SetCatalogueVersion(1);
    for (int moves = 0; !input_.empty() && !has_failed_ && moves < 200; ++moves) {
      if (Less(16) == 0) {
        SetMembership();
      } else {
        Send(MakeFrame());
      }
      Check();
    }
  }

 private:
  size_t Less(size_t bound) { return input_.Get<uint8_t>() % bound; }
  Step SmallStep() { return Less(8) == 7 ? input_.Get<uint64_t>() : Less(4); }
  size_t elements() const { return plan_->entry.elements; }

  void SetMembership() {
    ++epoch_;
    const size_t lost = Less(4);
    std::vector<Rank> ranks = ranks_;
    if (lost == 1 && ranks.size() > 1) ranks.pop_back();
    auto next = std::make_shared<Membership>(*testing::MembershipOf(ranks, epoch_));
    if (ranks.size() != ranks_.size()) unsafe_ = epoch_;
    ranks_ = ranks;
    next->unsafe = unsafe_;
    Take(shard_.SetMembership(std::move(next)));
  }

  void Send(Frame frame) {
    frame.header.sender = WorkerNode(static_cast<Rank>(Less(3)));
    frame.header.epoch = Less(8) == 0 ? input_.Get<uint8_t>() : epoch_;
    frame.header.catalogue_version = 1;
    // Only what a header may be comes through a transport.
    const auto header = DecodeHeader(EncodeHeader(frame.header));
    if (header.ok()) Take(shard_.OnFrame(frame.header.sender, {*header, frame.payload}));
  }

  void Take(const Sends& sends) {
    for (const Outgoing& send : sends) {
      fuzz::Require(send.to >= WorkerNode(0) && send.to <= WorkerNode(2));
      fuzz::Require(DecodeHeader(EncodeHeader(send.frame.header)).ok());
      fuzz::Require(CheckPayload(send.frame).ok());
    }
  }

  void Check() const {
    const KeyState* const state = shard_.Find(kKey);
    fuzz::Require(state != nullptr && shard_.stats().rebuilding <= 1);
    const bool is_over =
        state->rebuild.is_over() || state->rebuild.phase == KeyRebuild::Phase::kGone;
    fuzz::Require(is_over == (shard_.stats().rebuilding == 0));
  }

  Frame MakeFrame() {
    const size_t kind = Less(9);
    // A broadcast has no such parts.
    const bool is_of_part = kind == 2 || kind == 3 || kind == 6;
    switch (is_broadcast() && is_of_part ? 0 : kind) {
      case 0:
      case 1:
        return Made(FrameType::kReport, EncodeReport(MakeReport()));
      case 2:
        return Part(StatePart::kSnapshot, MakeSnapshot());
      case 3:
        return Part(StatePart::kReply, MakeGiven());
      case 4: {
        const Step step = Less(6);
        if (is_broadcast()) return Made(FrameType::kInit, Values(elements()));
        Frame push =
            testing::MakePush(kKey, step, 0, std::vector<float>(elements(), 0.5f), options_);
        push.header.learning_rate = 0.1f;
        if (Less(4) == 0)
          push = testing::MakeBare(FrameType::kPush, kKey, step, 0, elements(), kFlagAbsent);
        return push;
      }
      case 5:
        return testing::MakeBare(FrameType::kProbe, kKey, SmallStep(), 0, elements());
      case 6:
        return Part(StatePart::kWeights, Values(options_.segments[0]));
      case 7:
        return Frame{
            StateHeader(
                FrameType::kFetch,
                {.part = static_cast<StatePart>(Less(10)), .key = kKey, .num_elements = elements()},
                SmallStep(), static_cast<uint32_t>(1 + Less(4))),
            {}};
      default: {
        const auto type = static_cast<FrameType>(Less(13));
        const std::vector<std::byte> bytes = input_.Bytes(input_.Get<uint8_t>());
        FrameHeader header = Header(type);
        header.flags = static_cast<uint8_t>(Less(32));
        return bdn::MakeFrame(header, Buffer::CopyOf(bytes));
      }
    }
  }

  bool is_broadcast() const { return options_.kind == KeyKind::kBroadcast; }

  FrameHeader Header(FrameType type) {
    FrameHeader header;
    header.type = type;
    header.key = kKey;
    header.step = SmallStep();
    header.num_elements = elements();
    if (!is_broadcast() || type == FrameType::kReport)
      header.request = static_cast<uint32_t>(Less(4));
    header.part = type == FrameType::kInit && !is_broadcast() ? static_cast<StatePart>(Less(10))
                                                              : StatePart::kNone;
    return header;
  }
  Frame Made(FrameType type, Buffer payload) {
    FrameHeader header = Header(type);
    header.part = StatePart::kNone;
    if (type == FrameType::kReport) header.request = static_cast<uint32_t>(1 + Less(4));
    return bdn::MakeFrame(header, std::move(payload));
  }
  Frame Part(StatePart part, Buffer payload) {
    return bdn::MakeFrame(
        StateHeader(FrameType::kInit, {.part = part, .key = kKey, .num_elements = elements()},
                    SmallStep(), static_cast<uint32_t>(1 + Less(4))),
        std::move(payload));
  }
  Buffer Values(size_t n) {
    const std::vector<float> values(n, static_cast<float>(Less(4)));
    return Buffer::CopyOf(std::as_bytes(std::span(values)));
  }

  KeyReport MakeReport() {
    KeyReport report{.done = SmallStep(), .complete_from = Less(4), .open = Less(6)};
    if (Less(4) == 0) report.uncompressed_from = SmallStep();
    for (Step& step : report.snapshots) step = Less(6);
    report.newest_snapshot = SmallStep();
    report.keeps_value = Less(4);
    const auto flags = input_.Get<uint8_t>();
    report.is_root = (flags & 1) != 0;
    report.is_broken = (flags & 14) == 14;
    report.is_retired = (flags & 112) == 112;
    report.is_redone = (flags & 2) != 0;
    report.needs_snapshot = (flags & 4) != 0;
    report.has_reply = (flags & 128) != 0;
    for (Step after = 0; after < Less(4); ++after) {
      report.inits.push_back({after, static_cast<uint32_t>(after + 1)});
    }
    return report;
  }

  // The snapshot is of a key as it was declared, or of one with weights and moments; the input says
  // what is changed in it.
  Buffer MakeSnapshot() {
    DenseState state;
    state.parts = MakeStateParts(*plan_);
    state.last_step = Less(4);
    if (plan_->rule != nullptr && Less(2) == 0) {
      state.parts.weights.Resize(elements());
      std::fill_n(state.parts.weights.Mutable(), elements(), 0.5f);
      if (plan_->codecs.reply == ReplyKind::kDelta) state.parts.replica.assign(elements(), 0.5f);
      for (SegmentState& segment : state.parts.segments) segment = {1, true};
      state.parts.moments.assign(elements() * Less(3), 0.25f);
    }
    const Buffer encoded = EncodeSnapshot(*plan_, state);
    Buffer changed = Buffer::CopyOf(encoded.span());
    for (size_t changes = Less(4) == 0 ? Less(8) : 0; changes > 0; --changes) {
      changed.mutable_span()[input_.Get<uint8_t>() % changed.size()] =
          std::byte{input_.Get<uint8_t>()};
    }
    return changed;
  }

  Buffer MakeGiven() {
    GivenReply given{.step = Less(4), .flags = static_cast<uint8_t>(Less(16))};
    given.is_refusal = Less(8) == 0;
    given.payload_step = std::min<Step>(given.step, Less(4));
    given.codec = static_cast<uint8_t>(plan_->codecs.Pull(given.payload_step).codec().id());
    const std::vector<std::byte> payload = input_.Bytes(
        Less(4) == 0 ? Less(64) : plan_->codecs.Pull(given.payload_step).MaxEncodedBytes());
    const std::vector<float> replica(elements(), 0.5f);
    if (given.payload_step > 0) {
      given.payload = payload;
      if (Less(2) == 0) given.replica = std::as_bytes(std::span(replica));
    }
    return EncodeGivenReply(given);
  }

  fuzz::FuzzInput input_;
  const testing::KeyOptions options_;
  const std::shared_ptr<const KeyPlan> plan_;
  ServerShard shard_;
  std::vector<Rank> ranks_ = {0, 1, 2};
  Epoch epoch_ = 1;
  Epoch unsafe_ = 0;
  bool has_failed_ = false;
};

}  // namespace
}  // namespace bdn

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  bdn::InitLog(bdn::LogLevel::kOff, "fuzz");
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  bdn::Job(bdn::fuzz::FuzzInput(data, size)).Run();
  return 0;
}
