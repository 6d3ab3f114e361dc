#ifndef BANDONEON_TESTS_SUPPORT_SHARD_RIG_H_
#define BANDONEON_TESTS_SUPPORT_SHARD_RIG_H_

#include <string>
#include <vector>

#include "common/wire/message.h"
#include "server/shard.h"

// A little language for tests of shards: build frames as workers do, and read what comes back.

namespace bdn::testing {

inline constexpr NodeId kServerNode = 100;
// Worker of rank r.
inline constexpr NodeId WorkerNode(Rank rank) { return static_cast<NodeId>(rank + 1); }

std::shared_ptr<const Membership> MakeMembership(int workers, Epoch epoch = 1);
// The membership of the workers of these ranks, which rise; the ranks between them are vacant.
std::shared_ptr<const Membership> MembershipOf(const std::vector<Rank>& ranks, Epoch epoch);
std::shared_ptr<const Places> MakePlaces(int workers);

// The options of a key under test.
struct KeyOptions {
  std::string push = "none";
  std::string pull = "none";
  DType dtype = DType::kFloat32;
  std::vector<size_t> segments = {4};
  uint64_t warmup = 0;
  KeyKind kind = KeyKind::kDense;
  std::string rule = "mean";
};
KeyEntry MakeEntry(Key key, const KeyOptions& options = {});
std::shared_ptr<const KeyPlan> MakePlan(Key key, const KeyOptions& options = {});

// The frames that a shard has sent.
struct Outbox {
  void Add(Sends sends);
  // Returns the last frame to `rank`; null when there was none.
  const Frame* LastTo(Rank rank) const;

  Sends sent;
};

// Returns a push of `values` by worker `rank`, encoded with `spec` (without error feedback), as one
// or several segments.
Frame MakePush(Key key, Step step, Rank rank, const std::vector<float>& values,
               const KeyOptions& options = {});
// A header-only frame.
Frame MakeBare(FrameType type, Key key, Step step, Rank rank, size_t elements, uint8_t flags = 0);
// The values of a reply, decoded with the options' pull codec.
std::vector<float> ValuesOf(const Frame& reply, const KeyOptions& options = {});
absl::Status ErrorOf(const Frame& frame);
std::vector<Rank> RanksOf(const Frame& frame);

}  // namespace bdn::testing

#endif  // BANDONEON_TESTS_SUPPORT_SHARD_RIG_H_
