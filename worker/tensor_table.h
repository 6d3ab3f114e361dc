#ifndef BANDONEON_WORKER_TENSOR_TABLE_H_
#define BANDONEON_WORKER_TENSOR_TABLE_H_

#include <functional>
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

// A tensor's part of one key.
struct TensorPart {
  // Valid under the table's lock, or while something of the key is in flight.
  KeyExchange* exchange;
  Key key;          // the id of `exchange`
  size_t segment;   // the index of the part among the key's segments
  uint64_t offset;  // of the part's first element, in the tensor
  uint64_t elements;
};

// A declared tensor. Guarded by the table's lock.
struct Tensor {
  TensorDeclaration declaration;
  std::vector<TensorPart> parts;
  Step pushed = 0;       // the last step that was started
  bool retired = false;  // it stays here until its exchanges in flight have ended
  // False in a worker that has joined a job that runs: the catalogue has it, and this worker's
  // program has not declared it, or is done with it.
  bool is_declared = true;
};

// The state of this worker's part in the job. Guarded by the table's lock.
struct Participation {
  Rank rank = 0;
  absl::Status failed;  // the job's failure, once there is one
  absl::Status over;  // why no exchange begins any more: the failure, or that all workers have left
  bool is_candidate = false;  // it was not taken into the job yet
  int leaving = 0;            // calls of Leave that have not given up
  bool left = false;

  // OK: new requests to other workers and servers may begin.
  absl::Status Check() const;
  // Checks likewise, and that the worker is in the job.
  absl::Status CheckIsIn() const;
};

// The table of the declared tensors and their keys, with the one lock that guards them, the queues
// of their exchanges, the open requests about state at the servers, and this worker's
// participation. One lock guards all of these because they must not change between a check and the
// action based on it; its callers hold it across several calls. Addresses are stable. Tensors and
// keys stay until they are retired and nothing of theirs is in flight.
class TensorTable {
 public:
  TensorTable() = default;
  TensorTable(const TensorTable&) = delete;
  TensorTable& operator=(const TensorTable&) = delete;

  // Sets what is called, under the lock, when a key is removed. To be called before the first key.
  void set_on_removed(std::function<void(Key)> on_removed) { on_removed_ = std::move(on_removed); }

  Mutex* mutex() const ABSL_LOCK_RETURNED(mu_) { return &mu_; }

  // Puts the declaration's specs into canonical form, so that workers that mean the same declare
  // the same. InvalidArgument says already here what a server would refuse.
  static absl::Status Canonicalize(TensorDeclaration* tensor);
  // Returns whether a canonical declaration is new to this worker. InvalidArgument: it has declared
  // the name with other facts.
  absl::StatusOr<bool> IsNew(const TensorDeclaration& tensor) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Adds the tensors and keys of one version of the catalogue; costs time in proportion to these
  // alone. Internal: the delta does not follow the versions before, or contradicts itself; then
  // part of it may have been added, and the worker must not go on.
  absl::Status Add(const CatalogueDelta& delta) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Returns those of the ids that name tensors of this table, and the tensors that share keys with
  // them and were not declared here. InvalidArgument: one shares a key with a tensor that was, and
  // is neither retired nor among them.
  absl::StatusOr<std::vector<uint32_t>> CheckRetire(std::span<const uint32_t> ids) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Retires tensors: they are found by name no more, and their names are free. Returns their keys;
  // the caller passes each to RemoveIfUnused. REQUIRES: CheckRetire returned OK for all of them.
  std::vector<KeyExchange*> Retire(std::span<const uint32_t> ids)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Removes the key if it is retired and nothing of it is in flight, and its tensors with their
  // last key. The result is to be destroyed without the lock. Null: the key stays.
  std::unique_ptr<KeyExchange> RemoveIfUnused(KeyExchange* exchange)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Returns the id of a name. Null: no tensor of this name is declared.
  const uint32_t* FindId(const std::string& name) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns a tensor, which may be retired. Null: there is none of this id.
  const Tensor* Find(uint32_t id) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns a tensor. NotFound: no dense tensor of this id was declared, or it is retired.
  absl::StatusOr<Tensor*> FindDense(uint32_t id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Returns whether no push of the tensor, or of a tensor that shares a key with it, is in flight.
  static bool IsIdle(const Tensor& tensor);
  // Returns a tensor. REQUIRES: there is one of this id.
  Tensor& at(uint32_t id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return *tensors_.at(id); }
  size_t size() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return tensors_.size(); }

  using Keys = std::map<Key, std::unique_ptr<KeyExchange>>;
  const Keys& keys() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return keys_; }
  // Returns a key's exchanges. Null: there is no such key, or it was removed.
  KeyExchange* FindKey(Key key) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Participation& participation() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return participation_; }

 private:
  std::function<void(Key)> on_removed_;

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
