#ifndef BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_MEMORY_H_
#define BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_MEMORY_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "common/base/bytes.h"
#include "common/base/mutex.h"

namespace bdn {

// Addresses at which a provider may still write, late, what a peer had begun: nothing else may lie there
// before its endpoint is closed. They have no pages. Thread-safe.
class RetiredAddresses {
 public:
  RetiredAddresses() = default;
  // Gives them back: whoever holds the last share must know that the endpoint is closed.
  ~RetiredAddresses();
  RetiredAddresses(const RetiredAddresses&) = delete;
  RetiredAddresses& operator=(const RetiredAddresses&) = delete;

  // Takes the pages away and keeps the addresses.
  void Retire(MutableByteSpan bytes);

 private:
  Mutex mu_;
  std::vector<MutableByteSpan> ranges_ ABSL_GUARDED_BY(mu_);
};

// Zeros of its own pages, all of them there, that are retired when it goes.
class FabricMemory {
 public:
  // ResourceExhausted: the system has no more.
  static absl::StatusOr<std::unique_ptr<FabricMemory>> Make(
      size_t bytes, std::shared_ptr<RetiredAddresses> retired);
  ~FabricMemory() { retired_->Retire(bytes_); }
  FabricMemory(const FabricMemory&) = delete;
  FabricMemory& operator=(const FabricMemory&) = delete;

  std::byte* data() const { return bytes_.data(); }
  MutableByteSpan span() const { return bytes_; }

 private:
  FabricMemory(MutableByteSpan bytes, std::shared_ptr<RetiredAddresses> retired)
      : bytes_(bytes), retired_(std::move(retired)) {}

  const MutableByteSpan bytes_;
  const std::shared_ptr<RetiredAddresses> retired_;
};

}  // namespace bdn

#endif  // BANDONEON_COMMON_TRANSPORT_FABRIC_FABRIC_MEMORY_H_
