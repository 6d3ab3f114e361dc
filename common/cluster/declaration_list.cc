#include "common/cluster/declaration_list.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string_view>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "common/base/status.h"

namespace bdn {
namespace {

// The most bytes of one call: far below any limit on a message.
constexpr size_t kMaxPartBytes = size_t{256} << 10;

// The finalizer of MurmurHash3: every input bit reaches every output bit.
uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdu;
  x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53u;
  return x ^ (x >> 33);
}

// A hash of 128 bits, of which neither half follows from the other.
struct Hash {
  uint64_t halves[2] = {0, 0};
};

// A chain of numbers and texts, hashed. Each text is preceded by its length, so that no two run
// into each other. Both halves advance at once, which takes a processor little longer than one.
class Chain {
 public:
  void Add(uint64_t value) {
    first_ = Mix(first_ + 0x9e3779b97f4a7c15u) ^ Mix(value + first_);
    second_ = Mix(second_ + 0xc2b2ae3d27d4eb4fu) ^ Mix(value + second_);
  }
  void Add(const Hash& hash) {
    first_ = Mix(first_ + 0x9e3779b97f4a7c15u) ^ Mix(hash.halves[0] + first_);
    second_ = Mix(second_ + 0xc2b2ae3d27d4eb4fu) ^ Mix(hash.halves[1] + second_);
  }
  void Add(const std::string& text) {
    Add(text.size());
    for (size_t i = 0; i < text.size(); i += sizeof(uint64_t)) {
      uint64_t word = 0;
      std::memcpy(&word, text.data() + i, std::min(sizeof(word), text.size() - i));
      Add(word);
    }
  }
  Hash hash() const { return {{Mix(first_), Mix(second_)}}; }

 private:
  uint64_t first_ = 1;
  uint64_t second_ = 2;
};

// Returns a hash of the facts that most tensors of a list share.
Hash HashOfSpecs(const TensorDeclaration& tensor) {
  Chain chain;
  chain.Add(tensor.push_spec);
  chain.Add(tensor.pull_spec);
  chain.Add(tensor.rule);
  // All workers are told from any list by the count.
  chain.Add(tensor.ranks.is_all() ? 0 : tensor.ranks.ranks().size());
  if (!tensor.ranks.is_all()) {
    for (const Rank rank : tensor.ranks.ranks()) chain.Add(static_cast<uint64_t>(rank));
  }
  return chain.hash();
}

// Returns the bits of the momentum; both zeros count as equal, as they compare.
uint32_t MomentumBits(const TensorDeclaration& tensor) {
  return std::bit_cast<uint32_t>(tensor.momentum == 0 ? 0.0f : tensor.momentum);
}

Hash HashOf(const TensorDeclaration& tensor, const Hash& specs) {
  Chain chain;
  chain.Add(specs);
  chain.Add(tensor.name);
  chain.Add(tensor.elements);
  chain.Add(tensor.table);
  chain.Add(tensor.warmup_steps);
  chain.Add(uint64_t{tensor.group} << 32 | MomentumBits(tensor));
  chain.Add(static_cast<uint64_t>(tensor.dtype) << 32 | static_cast<uint64_t>(tensor.kind) << 1 |
            (tensor.fuse ? 1 : 0));
  return chain.hash();
}

// Returns about how many bytes a tensor takes in a message.
size_t BytesOf(const TensorDeclaration& tensor) {
  constexpr size_t kNumbers = 64;
  return kNumbers + tensor.name.size() + tensor.push_spec.size() + tensor.pull_spec.size() +
         tensor.rule.size() + tensor.table.size() +
         (tensor.ranks.is_all() ? 0 : tensor.ranks.ranks().size());
}

// Fills a part with the tensors from `first` on: as many as fit, and at least one.
void FillPart(std::span<const TensorDeclaration> tensors, uint32_t first, DeclarationPart* part) {
  part->first = first;
  size_t bytes = 0;
  for (size_t i = first; i < tensors.size(); ++i) {
    bytes += BytesOf(tensors[i]);
    if (bytes > kMaxPartBytes && !part->tensors.empty()) return;
    part->tensors.push_back(tensors[i]);
  }
}

}  // namespace

std::string DigestOf(std::span<const TensorDeclaration> tensors) {
  uint64_t sums[2] = {tensors.size(), tensors.size()};  // sums, so that the order does not matter
  // Most tensors have the specs of the one before, whose hash is used again.
  const TensorDeclaration* before = nullptr;
  Hash specs;
  for (const TensorDeclaration& tensor : tensors) {
    if (before == nullptr || tensor.push_spec != before->push_spec ||
        tensor.pull_spec != before->pull_spec || tensor.rule != before->rule ||
        tensor.ranks != before->ranks) {
      specs = HashOfSpecs(tensor);
    }
    before = &tensor;
    const Hash hash = HashOf(tensor, specs);
    sums[0] += hash.halves[0];
    sums[1] += hash.halves[1];
  }
  return std::string(reinterpret_cast<const char*>(sums), sizeof(sums));
}

std::string DescribeDifference(const TensorDeclaration& mine, const TensorDeclaration& other) {
  std::string text;
  const auto say = [&](bool differs, const std::string& what) {
    if (!differs) return;
    text += (text.empty() ? "" : ", ") + what;
  };
  say(mine.dtype != other.dtype, absl::StrFormat("dtype=%s", DTypeName(mine.dtype)));
  say(mine.elements != other.elements, absl::StrFormat("elements=%d", mine.elements));
  say(mine.kind != other.kind, absl::StrFormat("kind=%s", KeyKindName(mine.kind)));
  say(mine.push_spec != other.push_spec, "push=" + mine.push_spec.str());
  say(mine.pull_spec != other.pull_spec, "pull=" + mine.pull_spec.str());
  say(mine.rule != other.rule, "rule=" + mine.rule.str());
  say(mine.warmup_steps != other.warmup_steps, absl::StrFormat("warmup=%d", mine.warmup_steps));
  say(mine.momentum != other.momentum, absl::StrFormat("momentum=%.9g", mine.momentum));
  say(!(mine.table == other.table), mine.table.str());
  say(mine.group != other.group, absl::StrFormat("group=%d", mine.group));
  say(mine.ranks != other.ranks, "of " + mine.ranks.ToString());
  say(mine.fuse != other.fuse, absl::StrFormat("fuse=%s", mine.fuse ? "true" : "false"));
  return text;
}

absl::Status CompareDeclarations(std::span<const TensorDeclaration> a, const std::string& name_of_a,
                                 std::span<const TensorDeclaration> b,
                                 const std::string& name_of_b) {
  const auto undeclared = [](const std::string& lacks, const std::string& has,
                             const std::string& tensor) {
    return InvalidArgument("tensor '%s': %s declared it, %s did not", tensor, has, lacks);
  };
  absl::flat_hash_map<std::string_view, const TensorDeclaration*> known;
  known.reserve(a.size());
  for (const TensorDeclaration& tensor : a) known.emplace(tensor.name, &tensor);
  for (const TensorDeclaration& tensor : b) {
    const auto found = known.find(tensor.name);
    if (found == known.end()) return undeclared(name_of_a, name_of_b, tensor.name);
    const TensorDeclaration& other = *found->second;
    if (!(other == tensor)) {
      return InvalidArgument("tensor '%s': %s says %s, %s says %s", tensor.name, name_of_a,
                             DescribeDifference(other, tensor), name_of_b,
                             DescribeDifference(tensor, other));
    }
    known.erase(found);
  }
  for (const TensorDeclaration& tensor : a) {
    if (known.contains(tensor.name)) return undeclared(name_of_b, name_of_a, tensor.name);
  }
  return absl::OkStatus();
}

absl::Status WithAdviceToClose(const absl::Status& failure, const std::string& tensor,
                               const std::string& done, const std::string& others) {
  // A failure about the tensor begins with its name.
  if (!absl::StartsWith(failure.message(), "tensor '" + tensor + "':")) return failure;
  return absl::Status(
      failure.code(),
      absl::StrFormat(
          "%s; what exchanged it before was closed, or collected by Python, in %s, and "
          "not in %s: call its close() in all workers before another one takes the name",
          failure.message(), done, others));
}

absl::StatusOr<DeclarationAnswer> SendDeclaration(
    std::span<const TensorDeclaration> tensors, Rank rank,
    const std::function<absl::StatusOr<DeclarationAnswer>(DeclarationPart)>& call) {
  BDN_RETURN_IF_ERROR(CheckDeclarations(tensors));
  const RankGroup ranks = tensors.empty() ? RankGroup() : tensors[0].ranks;
  const DeclarationPart head{
      .ranks = ranks, .digest = DigestOf(tensors), .count = static_cast<uint32_t>(tensors.size())};
  DeclarationAnswer answer;
  if (rank == (ranks.is_all() ? 0 : ranks.ranks().front())) answer.wanted_from = 0;
  do {
    DeclarationPart part = head;
    if (answer.wanted_from.has_value()) FillPart(tensors, *answer.wanted_from, &part);
    const std::optional<uint32_t> before = answer.wanted_from;
    BDN_ASSIGN_OR_RETURN(answer, call(std::move(part)));
    // The position must advance with every call, or a wrong scheduler would keep this loop going
    // for ever.
    if (answer.wanted_from.has_value() &&
        (*answer.wanted_from >= tensors.size() ||
         (before.has_value() && *answer.wanted_from <= *before))) {
      return Internal("the scheduler wants tensor %d of a list of %d", *answer.wanted_from,
                      tensors.size());
    }
  } while (answer.wanted_from.has_value());
  return answer;
}

}  // namespace bdn
