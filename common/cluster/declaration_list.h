#ifndef BANDONEON_COMMON_CLUSTER_DECLARATION_LIST_H_
#define BANDONEON_COMMON_CLUSTER_DECLARATION_LIST_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/cluster/catalogue.h"

namespace bdn {

// A worker's list of tensors as it is sent to the scheduler: a digest, and the list itself only
// where it is wanted, in parts. So the scheduler reads and keeps one list, however many workers
// there are.

inline constexpr size_t kMaxDigestBytes = 32;

// Returns a digest that is the same for the same tensors in any order. Two different lists have
// different digests, except by an accident that need not be expected (128 bits).
std::string DigestOf(std::span<const TensorDeclaration> tensors);

// Returns the facts of `mine` in which it differs from `other`, as "elements=10, push=none"; empty
// where they agree.
std::string DescribeDifference(const TensorDeclaration& mine, const TensorDeclaration& other);
// Returns InvalidArgument where two lists are not of the same tensors, in any order, with the same
// facts. It names the tensor and both workers that declared them ("worker 0").
absl::Status CompareDeclarations(std::span<const TensorDeclaration> a, const std::string& name_of_a,
                                 std::span<const TensorDeclaration> b,
                                 const std::string& name_of_b);

// Adds advice to the failure of a declaration. Where that is about `tensor`, the advice says that
// the workers of `done` are done with the object that exchanged it and those of `others` are not,
// and what to do.
absl::Status WithAdviceToClose(const absl::Status& failure, const std::string& tensor,
                               const std::string& done, const std::string& others);

// The part of a declaration that one call sends.
struct DeclarationPart {
  uint64_t number = 0;  // tells it from the worker's next declaration; 0: it is not told apart
  RankGroup ranks;      // the workers that make this declaration: those of all its tensors
  std::string digest;   // of the whole list
  uint32_t count = 0;   // tensors of the whole list
  uint32_t first = 0;   // position of tensors[0] in the list
  std::vector<TensorDeclaration> tensors;  // may be empty
};

// The answer to one part of a declaration.
struct DeclarationAnswer {
  // The position from which on the list is wanted: nothing is declared yet. Without it the
  // declaration is done.
  std::optional<uint32_t> wanted_from;
  PlacementVersion version;  // once done: the first placement that includes all of the tensors
};

// Sends `tensors`, all of the same ranks, by as many calls as it takes, and returns the answer to
// the last. `rank` is the caller's: the list of the lowest rank is wanted anyway. Returns
// InvalidArgument as CheckDeclarations, before any call; Internal where an answer wants a position
// that the list lacks or that an earlier call began with; or the error of a call.
absl::StatusOr<DeclarationAnswer> SendDeclaration(
    std::span<const TensorDeclaration> tensors, Rank rank,
    const std::function<absl::StatusOr<DeclarationAnswer>(DeclarationPart)>& call);

}  // namespace bdn

#endif  // BANDONEON_COMMON_CLUSTER_DECLARATION_LIST_H_
