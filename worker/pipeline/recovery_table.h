#ifndef BANDONEON_WORKER_PIPELINE_RECOVERY_TABLE_H_
#define BANDONEON_WORKER_PIPELINE_RECOVERY_TABLE_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/wire/message.h"
#include "worker/pipeline/replica.h"
#include "worker/pipeline/request_table.h"

namespace bdn {

// The counters of a recovery table.
struct RecoveryStats {
  uint64_t recoveries = 0;       // keys that went to another server and are whole again
  uint64_t pushes_repeated = 0;  // answered pushes that were sent again for that
  uint64_t snapshots = 0;        // snapshots that were fetched
  uint64_t log_bytes = 0;        // payloads of pushes, inits and replies that are kept now
  uint64_t snapshot_bytes = 0;   // bytes of snapshots that are kept now
};

// A request table whose keys survive their servers. It keeps, of each key, the answered pushes that
// no snapshot covers, and fetches snapshots of the server's state now and then. When the
// membership gives a key to another server, it holds back the key's own request, reports how far
// this worker is, and sends again what the new server asks for; then the request goes on. Its
// caller notices nothing but the time. A state machine: no thread, clock or socket; not
// thread-safe.
//
// A push is encoded once, and its frame is kept, so that the new server gets the same bytes as the
// one before.
class RecoveryTable {
 public:
  using Request = RequestTable::Request;
  using Actions = RequestTable::Actions;

  // The facts of a key. Keys that are not added do not survive their server.
  struct KeyFacts {
    Key key;
    NodeId home = 0;        // the server that the catalogue places it on
    Epoch declared_in = 0;  // the epoch of the membership that placed it
    uint32_t catalogue_version = 0;
    bool is_dense = true;
    uint64_t elements = 0;
    RankGroup ranks;     // the workers that exchange it
    std::string tensor;  // for errors
    // A snapshot is fetched each so many steps; 0: rounds leave no state at the server.
    uint32_t snapshot_every = 0;
    // The last reply is kept, from which the key is estimated if a worker is lost with its server.
    bool keeps_reply = false;
    std::shared_ptr<const Replica> replica;  // null: replies build on none
    std::shared_ptr<const Replica> copy;     // of a group's whole weights; null: none is kept
  };

  explicit RecoveryTable(const RequestTable::Options& options)
      : options_(options), table_(options) {}

  void AddKey(KeyFacts facts);
  // Notes that this worker is done with the key, which stays known without its pushes.
  void Retire(Key key);

  // Lets the log of a key begin after this step, for a worker that joins later: it has no push of
  // those before.
  void BeginAt(Key key, const KeyPosition& position);

  // As of RequestTable. At most one request a key is open, apart from this table's own.
  Actions SetMembership(std::shared_ptr<const Membership> membership, absl::Time now);
  absl::StatusOr<Actions> Submit(Request request, absl::Time now);
  bool Withdraw(Key key, Step step);
  Actions OnFrame(NodeId server, const Frame& frame, absl::Time now);
  bool OnSent(Key key, uint64_t request, absl::Time now);
  Actions OnTick(absl::Time now);
  absl::Time NextTick() const;
  Actions Fail(const absl::Status& status);
  std::vector<NodeId> Silent() const { return table_.Silent(); }
  std::vector<NodeWait> Unheard(absl::Time now) const { return table_.Unheard(now); }
  const absl::Status& failed() const { return table_.failed(); }
  std::string WaitingFor(Key key) const;
  bool IsOpen(Key key) const;
  bool IsAccepted(Key key) const { return !IsOwn(key) && table_.IsAccepted(key); }
  const RequestStats& stats() const { return table_.stats(); }
  RecoveryStats recovery_stats() const;

 private:
  // An answered push.
  struct Done {
    Frame push;
    uint8_t reply_flags = 0;
    uint32_t reply_crc = 0;  // 0: not known
    Epoch epoch = 0;         // of the round
  };
  // An answered init of the key's state.
  struct Init {
    Frame frame;
    Step after = 0;  // the last step of this worker before it
  };
  struct Snapshot {
    Step step = 0;
    Epoch epoch = 0;  // in which it was taken
    Buffer bytes;
  };
  enum class Stage : uint8_t {
    kIdle,     // the key is whole, and at most its caller's request is open
    kSaving,   // a snapshot is being fetched
    kReport,   // the new server is told how far this worker is
    kSet,      // the server is sent the snapshot, or the broadcast's value
    kRedo,     // pushes and inits are sent again
    kOpen,     // the caller's push of the last step is open, which belongs to those
    kConfirm,  // the server is asked whether the key is whole
    kAwait,    // the last reply is to be given, once it is decoded
    kGive,     // the last reply is being given
  };
  struct Log {
    KeyFacts facts;
    Epoch whole_since = 0;  // as SlotOwner::since of the server by which the key is whole
    Stage stage = Stage::kIdle;
    bool is_retired = false;    // the caller is done with it
    bool is_forgotten = false;  // as KeyReport::is_retired
    bool is_broken = false;     // as KeyReport
    Step done = 0;              // as KeyReport
    Step complete_from = 0;     // as KeyReport, but for rounds of lost workers
    Step uncompressed_from = 0;
    std::deque<Done> pushes;     // rising by step, all above complete_from
    size_t push_bytes = 0;       // of their payloads
    std::vector<Init> inits;     // rising by request
    std::deque<Snapshot> saved;  // rising by step: at most two
    // Of a broadcast whose value some worker may lack: its init.
    std::optional<Frame> value;
    std::optional<Request> current;  // the caller's request that has no answer
    bool is_parked = false;          // it is held back
    // The step of the caller's push that has no answer, also while the caller is about to ask again
    // whether it was counted; 0: none.
    Step open_push = 0;
    Step own_step = 0;  // the step of this table's own request, and its type
    FrameType own_type = FrameType::kReport;
    // The inits of the last report, and the number of the one among them that had no answer; 0:
    // none. What a server asks for is of these, whatever the caller has done since.
    std::vector<Init> reported;
    uint32_t reported_open = 0;
    std::optional<Frame> reported_value;  // of a broadcast's root: the init that had no answer
    uint32_t own_request = 0;
    // Of keys that keep their reply: the headers' fields of the last one, and the last that had a
    // payload, with its payload.
    Step replied = 0;
    uint8_t replied_flags = 0;
    std::optional<Frame> reply;
    absl::Time give_until;   // until then its being decoded is awaited
    std::deque<Frame> redo;  // to be sent again, in this order
    Step target = 0;
  };

  // A key that this worker has forgotten, and that others may not have.
  struct Retired {
    KeyFacts facts;
    Epoch whole_since = 0;
  };

  static bool IsOwn(const Log& log);
  // Returns whether the open request of the key is this table's.
  bool IsOwn(Key key) const;
  Log* Find(Key key) const;
  void Forget(Log* log);
  bool IsMoved(const KeyFacts& facts, Epoch whole_since) const;
  // Takes this table's own answers out of `actions`, does what follows from them and from the
  // answers of the caller's requests, and adds the actions of that.
  Actions Handle(Actions actions, absl::Time now);
  void OnCallersAnswer(Log* log, const Request& request, const RequestTable::Outcome& outcome,
                       absl::Time now, Actions* out);
  void OnOwnAnswer(Log* log, const RequestTable::Outcome& outcome, absl::Time now, Actions* out);
  void OnOrder(Log* log, const Frame& frame, absl::Time now, Actions* out);
  void OnPushed(Log* log, const Frame& push, const Frame& reply);
  void Trim(Log* log, Step saved);
  bool IsHolder(const Log& log) const;
  bool IsSnapshotDue(const Log& log) const;
  void Save(Log* log, absl::Time now, Actions* out);
  void TakeSnapshot(Log* log, const Frame& value);
  // Takes the key's requests out of the table, before its recovery begins, or begins anew.
  void HoldBack(Log* log);
  static bool HasOpenInit(const Log& log);
  void Report(Log* log, Stage stage, absl::Time now, Actions* out);
  void KeepReply(Log* log, const Frame& reply);
  // Sends the last reply to the server, or that it is not here.
  void Give(Log* log, absl::Time now, Actions* out);
  void SendNextOfRedo(Log* log, absl::Time now, Actions* out);
  // Sends the caller's request if it was held back.
  void SendParked(Log* log, absl::Time now, Actions* out);
  // Lets a key that is whole go on: sends what was held back, or fetches a snapshot that is due.
  void Release(Log* log, absl::Time now, Actions* out);
  void SubmitOwn(Log* log, Frame frame, absl::Time now, Actions* out);
  // Sends the caller's request.
  void SendCurrent(Log* log, absl::Time now, Actions* out);
  void Diverged(Log* log, const std::string& how, Actions* out);
  // Fills in the step of the newest snapshot that a push may tell.
  void StampSaved(const Log& log, FrameHeader* push) const;

  const RequestTable::Options options_;
  RequestTable table_;
  std::shared_ptr<const Membership> membership_ = std::make_shared<const Membership>();
  absl::btree_map<Key, std::unique_ptr<Log>> logs_;
  absl::flat_hash_map<Key, Retired> retired_;
  bool has_flushed_ = false;  // requests that were held back have ended, as the table has failed
  std::vector<Key> due_;      // keys whose recovery begins at the next tick
  std::vector<Key> giving_;   // keys whose last reply is to be given once it is decoded
  absl::Time next_give_ = absl::InfiniteFuture();  // when those are looked at
  // Far from the numbers of callers, so that an answer to one is not taken for one to the other.
  uint32_t last_request_ = uint32_t{1} << 31;
  RecoveryStats stats_;
};

}  // namespace bdn

#endif  // BANDONEON_WORKER_PIPELINE_RECOVERY_TABLE_H_
