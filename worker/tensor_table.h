#ifndef BANDONEON_WORKER_TENSOR_TABLE_H_
#define BANDONEON_WORKER_TENSOR_TABLE_H_

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/cluster/catalogue.h"
#include "worker/pipeline/key_exchange.h"

namespace bdn {

// One tensor's part of a key.
struct TensorPart {
  KeyExchange*
      exchange;     // there under the table's lock, or while something of the key is in flight
  Key key;          // its
  size_t segment;   // of the key
  uint64_t offset;  // of its first element, in the tensor
  uint64_t elements;
};

struct Tensor {
  TensorDeclaration declaration;
  std::vector<TensorPart> parts;
  Step pushed = 0;       // the last step that was started
  bool retired = false;  // here until what is in flight has ended
};

// Whether this worker still takes part in the job.
struct Participation {
  Rank rank = 0;
  absl::Status failed;  // the job's failure, once there is one
  absl::Status over;    // why nothing more is exchanged: the failure, or that all have left
  int leaving = 0;      // calls of Leave that did not give up
  bool left = false;

  // OK: something new may be asked of the others and the servers.
  absl::Status Check() const;
};

// The declared tensors and their keys, with the one lock that guards them, the queues of their
// exchanges, the open requests about what servers hold, and whether this worker takes part at all:
// what must not change between a check and what is done upon it. Its callers hold the lock across
// several calls. Addresses are stable. Tensors and keys are here until they are retired and nothing of
// theirs is in flight.
class TensorTable {
 public:
  TensorTable() = default;
  TensorTable(const TensorTable&) = delete;
  TensorTable& operator=(const TensorTable&) = delete;

  Mutex* mutex() const ABSL_LOCK_RETURNED(mu_) { return &mu_; }

  // Puts the declaration's specs into canonical form, so that workers that mean the same say the
  // same, and says now what a server would say of them.
  static absl::Status Canonicalize(TensorDeclaration* tensor);
  // Whether a canonical declaration is new. InvalidArgument: it was declared with other facts.
  absl::StatusOr<bool> IsNew(const TensorDeclaration& tensor) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Adds what a version of the catalogue added to those before; costs what that is. Internal when it
  // does not follow them, or contradicts itself: then part of it is here, and the worker must not go
  // on.
  absl::Status Add(const CatalogueDelta& delta) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Those of the tensors that are here. InvalidArgument: one shares a key with another that is neither retired
  // nor among them.
  absl::StatusOr<std::vector<uint32_t>> CheckRetire(std::span<const uint32_t> ids) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // They are found no more, and their names are free. Returns their keys, each of which goes by
  // RemoveIfUnused. REQUIRES: CheckRetire was OK of all of them.
  std::vector<KeyExchange*> Retire(std::span<const uint32_t> ids)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Takes the key out if it is retired and nothing of it is in flight, and its tensors with their last key. To
  // be destroyed without the lock. Null: it stays.
  std::unique_ptr<KeyExchange> RemoveIfUnused(KeyExchange* exchange)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Null: no tensor of this name was declared.
  const uint32_t* FindId(const std::string& name) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Null: there is none of this id. It may be retired.
  const Tensor* Find(uint32_t id) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // NotFound: no dense tensor of this id was declared, or it is retired.
  absl::StatusOr<Tensor*> FindDense(uint32_t id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Tells whether no push of the tensor, or of what shares a key with it, is in flight.
  static bool IsIdle(const Tensor& tensor);
  // REQUIRES: it is here.
  Tensor& at(uint32_t id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return *tensors_.at(id); }
  size_t size() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return tensors_.size(); }

  using Keys = std::map<Key, std::unique_ptr<KeyExchange>>;
  const Keys& keys() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return keys_; }
  // Null: there is none, or no more.
  KeyExchange* FindKey(Key key) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Participation& participation() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return participation_; }

 private:
  void RemoveReplaced(const std::string& name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status AddKey(DeclaredKey key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  mutable Mutex mu_;
  absl::flat_hash_map<std::string, uint32_t> ids_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<uint32_t, std::unique_ptr<Tensor>> tensors_ ABSL_GUARDED_BY(mu_);  // by id
  uint32_t next_id_ ABSL_GUARDED_BY(mu_) = 0;
  Keys keys_ ABSL_GUARDED_BY(mu_);
  Participation participation_ ABSL_GUARDED_BY(mu_);
};

}  // namespace bdn

#endif  // BANDONEON_WORKER_TENSOR_TABLE_H_
