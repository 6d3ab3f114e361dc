// Any bytes are a snapshot of a key, or the last reply of a worker from which a key is estimated,
// or are refused. A snapshot that was taken is encoded as one that says the same, and an estimate
// has the shape of its key.

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "common/wire/message.h"
#include "server/key_estimate.h"
#include "server/key_snapshot.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/support/shard_rig.h"

namespace bdn {
namespace {

const std::vector<std::shared_ptr<const KeyPlan>>& Plans() {
  static const auto& plans = *new std::vector<std::shared_ptr<const KeyPlan>>([] {
    std::vector<std::shared_ptr<const KeyPlan>> made;
    const testing::KeyOptions keys[] = {
        {.push = "none", .pull = "none"},
        {.push = "none", .pull = "ef(onebit)", .segments = {5}},
        {.push = "none", .pull = "none", .segments = {3, 5}, .rule = "sgd(momentum=0.9)"},
        {.push = "none", .pull = "delta(int4)", .segments = {4, 2}, .rule = "adamw"},
        {.push = "sign", .pull = "sign", .segments = {6}, .rule = "sign_momentum"},
    };
    for (const testing::KeyOptions& key : keys) {
      made.push_back(testing::MakePlan(Key::Of(3, 1), key));
    }
    return made;
  }());
  return plans;
}

DenseState MakeState(const KeyPlan& plan) {
  DenseState state;
  state.parts = MakeStateParts(plan);
  state.places = testing::MakePlaces(2);
  return state;
}

void RequireShape(const KeyPlan& plan, const StateParts& parts) {
  const size_t n = plan.entry.elements;
  for (const size_t size : {parts.residual.size(), parts.weights.size(), parts.replica.size()}) {
    fuzz::Require(size == 0 || size == n);
  }
  fuzz::Require(parts.moments.size() % n == 0);
  fuzz::Require(parts.segments.size() == plan.entry.segments.size());
}

void CheckSnapshot(const KeyPlan& plan, ByteSpan bytes) {
  DenseState state = MakeState(plan);
  if (!ApplySnapshot(plan, nullptr, bytes, &state).ok()) return;
  RequireShape(plan, state.parts);
  const Buffer again = EncodeSnapshot(plan, state);
  DenseState second = MakeState(plan);
  fuzz::Require(ApplySnapshot(plan, nullptr, again.span(), &second).ok());
  // The bytes are compared, because the values may be NaN.
  fuzz::Require(std::ranges::equal(EncodeSnapshot(plan, second).span(), again.span()));
}

void CheckGivenReply(const KeyPlan& plan, const GivenReply& given, DenseState state) {
  const bool is_right = CheckGiven(plan, given).ok();
  const bool is_taken = EstimateFrom(plan, given, &state).ok();
  fuzz::Require(is_right || !is_taken);
  if (is_taken) RequireShape(plan, state.parts);
}

// Returns the snapshot of a key with weights and moments, changed where the input says so.
std::vector<std::byte> MadeSnapshot(const KeyPlan& plan, fuzz::FuzzInput* input) {
  DenseState state = MakeState(plan);
  state.last_step = 7;
  if (plan.rule != nullptr) {
    state.parts.weights.Resize(plan.entry.elements);
    std::fill_n(state.parts.weights.Mutable(), plan.entry.elements, 0.5f);
    state.parts.weights_step = 7;
    if (plan.codecs.reply == ReplyKind::kDelta) state.parts.replica.assign(plan.entry.elements, 1);
    state.parts.moments.assign(plan.entry.elements * NumMoments(plan, state.parts), 0.25f);
    for (SegmentState& segment : state.parts.segments) segment = {7, true};
  }
  const Buffer encoded = EncodeSnapshot(plan, state);
  std::vector<std::byte> bytes(encoded.span().begin(), encoded.span().end());
  for (int changes = input->Get<uint8_t>() % 8; changes > 0; --changes) {
    bytes[input->Get<uint8_t>() % bytes.size()] = std::byte{input->Get<uint8_t>()};
  }
  if (input->Get<uint8_t>() % 8 == 0) bytes.resize(bytes.size() + input->Get<uint8_t>() % 9);
  return bytes;
}

void Run(fuzz::FuzzInput input) {
  const KeyPlan& plan = *Plans()[input.Get<uint8_t>() % Plans().size()];
  const bool has_snapshot = input.Get<uint8_t>() % 2 == 0;
  DenseState state = MakeState(plan);
  if (HasState(plan)) {
    const std::vector<std::byte> snapshot = MadeSnapshot(plan, &input);
    CheckSnapshot(plan, snapshot);
    if (has_snapshot && !ApplySnapshot(plan, nullptr, snapshot, &state).ok()) return;
  }
  GivenReply given{.step = input.Get<uint8_t>(), .flags = input.Get<uint8_t>()};
  given.payload_step = input.Get<uint8_t>();
  const SegmentedCodec& codec = plan.codecs.Pull(given.payload_step);
  given.codec = static_cast<uint8_t>(codec.codec().id());
  if (input.Get<uint8_t>() % 8 == 0) given.codec = input.Get<uint8_t>();
  const std::vector<std::byte> replica = input.Bytes(
      input.Get<uint8_t>() % 8 == 0 ? input.Get<uint8_t>() : plan.entry.elements * sizeof(float));
  given.replica = replica;
  std::vector<std::byte> payload = input.Bytes(codec.MaxEncodedBytes() + 8);
  given.payload = payload;
  CheckGivenReply(plan, given, state);
  // The copy is in the form in which a frame carries it.
  const Buffer encoded = EncodeGivenReply(given);
  const auto decoded = DecodeGivenReply(encoded.span());
  if (decoded.ok()) CheckGivenReply(plan, *decoded, std::move(state));
}

}  // namespace
}  // namespace bdn

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::vector<uint8_t> bytes(data, data + size);
  const bdn::ByteSpan span = std::as_bytes(std::span(bytes));
  for (const auto& plan : bdn::Plans()) {
    if (bdn::HasState(*plan)) bdn::CheckSnapshot(*plan, span);
    const auto given = bdn::DecodeGivenReply(span);
    if (given.ok()) bdn::CheckGivenReply(*plan, *given, bdn::MakeState(*plan));
  }
  bdn::Run({data, size});
  return 0;
}
