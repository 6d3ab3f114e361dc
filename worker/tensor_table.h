#ifndef BANDONEON_WORKER_TENSOR_TABLE_H_
#define BANDONEON_WORKER_TENSOR_TABLE_H_

#include <deque>
#include <map>
#include <memory>
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
  KeyExchange* exchange;
  size_t segment;   // of the key
  uint64_t offset;  // of its first element, in the tensor
  uint64_t elements;
};

struct Tensor {
  TensorDeclaration declaration;
  std::vector<TensorPart> parts;
  Step pushed = 0;  // the last step that was started
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
// several calls. Tensors and keys are never removed; their addresses are stable.
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

  // Null: no tensor of this name was declared.
  const uint32_t* FindId(const std::string& name) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // NotFound: no dense tensor of this id was declared.
  absl::StatusOr<Tensor*> FindDense(uint32_t id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // As FindDense, of a tensor none of whose keys has an exchange. FailedPrecondition: some have.
  absl::StatusOr<Tensor*> FindIdle(uint32_t id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // REQUIRES: it was declared.
  Tensor& at(uint32_t id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return tensors_[id]; }
  size_t size() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return tensors_.size(); }

  using Keys = std::map<Key, std::unique_ptr<KeyExchange>>;
  const Keys& keys() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return keys_; }

  Participation& participation() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return participation_; }

 private:
  absl::Status AddKey(DeclaredKey key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  mutable Mutex mu_;
  absl::flat_hash_map<std::string, uint32_t> ids_ ABSL_GUARDED_BY(mu_);
  std::deque<Tensor> tensors_ ABSL_GUARDED_BY(mu_);  // by id
  Keys keys_ ABSL_GUARDED_BY(mu_);
  Participation participation_ ABSL_GUARDED_BY(mu_);
};

}  // namespace bdn

#endif  // BANDONEON_WORKER_TENSOR_TABLE_H_
