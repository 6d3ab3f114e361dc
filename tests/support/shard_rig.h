#ifndef BANDONEON_TESTS_SUPPORT_SHARD_RIG_H_
#define BANDONEON_TESTS_SUPPORT_SHARD_RIG_H_

#include <memory>
#include <optional>
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
inline constexpr size_t kRowsWidth = 2;
// The rows of one table that a worker pushes, and those that it wants.
struct PushedRows {
  std::vector<uint64_t> ids;
  std::vector<float> values;  // kRowsWidth an id
  std::vector<uint64_t> wanted;
};
// Returns the plan of a key of so many tables, named t0, t1 and so on, in one bucket.
std::shared_ptr<const KeyPlan> MakeRowsPlan(Key key, size_t tables, const std::string& rule,
                                            const std::string& table);
// Returns a payload with the rows of each table, uncompressed; of a table that has none, no part.
Buffer RowsPayload(const std::vector<std::optional<PushedRows>>& tables);
// Returns a push of them with the learning rate 1.
Frame MakeRowsPush(Key key, Step step, Rank rank,
                   const std::vector<std::optional<PushedRows>>& tables);
// A header-only frame.
Frame MakeBare(FrameType type, Key key, Step step, Rank rank, size_t elements, uint8_t flags = 0);
// The values of a reply, decoded with the options' pull codec.
std::vector<float> ValuesOf(const Frame& reply, const KeyOptions& options = {});
absl::Status ErrorOf(const Frame& frame);
std::vector<Rank> RanksOf(const Frame& frame);

}  // namespace bdn::testing

#endif  // BANDONEON_TESTS_SUPPORT_SHARD_RIG_H_
