#include "common/cluster/declaration_list.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "common/base/status.h"

namespace bdn {
namespace {

// Of one call: far below any limit on a message.
constexpr size_t kMaxPartBytes = size_t{256} << 10;

uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdu;
  x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53u;
  return x ^ (x >> 33);
}

// 128 bits, of which neither half follows from the other.
struct Hash {
  uint64_t halves[2] = {0, 0};
};

// A chain of numbers and texts; each text with its length, so that no two run into each other. Both
// halves go on at once, which takes a processor little longer than one.
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

Hash HashOfSpecs(const TensorDeclaration& tensor) {
  Chain chain;
  chain.Add(tensor.push_spec);
  chain.Add(tensor.pull_spec);
  chain.Add(tensor.rule);
  return chain.hash();
}

// Both zeros are equal.
uint32_t MomentumBits(const TensorDeclaration& tensor) {
  return std::bit_cast<uint32_t>(tensor.momentum == 0 ? 0.0f : tensor.momentum);
}

Hash HashOf(const TensorDeclaration& tensor, const Hash& specs) {
  Chain chain;
  chain.Add(specs);
  chain.Add(tensor.name);
  chain.Add(tensor.elements);
  chain.Add(tensor.warmup_steps);
  chain.Add(uint64_t{tensor.group} << 32 | MomentumBits(tensor));
  chain.Add(static_cast<uint64_t>(tensor.dtype) << 32 | static_cast<uint64_t>(tensor.kind) << 1 |
            (tensor.fuse ? 1 : 0));
  return chain.hash();
}

size_t BytesOf(const TensorDeclaration& tensor) {
  constexpr size_t kNumbers = 64;
  return kNumbers + tensor.name.size() + tensor.push_spec.size() + tensor.pull_spec.size() +
         tensor.rule.size();
}

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
  uint64_t sums[2] = {tensors.size(), tensors.size()};  // in any order
  // Most tensors have the specs of the one before.
  const TensorDeclaration* before = nullptr;
  Hash specs;
  for (const TensorDeclaration& tensor : tensors) {
    if (before == nullptr || tensor.push_spec != before->push_spec ||
        tensor.pull_spec != before->pull_spec || tensor.rule != before->rule) {
      specs = HashOfSpecs(tensor);
    }
    before = &tensor;
    const Hash hash = HashOf(tensor, specs);
    sums[0] += hash.halves[0];
    sums[1] += hash.halves[1];
  }
  return std::string(reinterpret_cast<const char*>(sums), sizeof(sums));
}

absl::StatusOr<DeclarationAnswer> SendDeclaration(
    std::span<const TensorDeclaration> tensors, bool begins_with_list,
    const std::function<absl::StatusOr<DeclarationAnswer>(DeclarationPart)>& call) {
  BDN_RETURN_IF_ERROR(CheckDeclarations(tensors));
  const DeclarationPart head{.digest = DigestOf(tensors),
                             .count = static_cast<uint32_t>(tensors.size())};
  DeclarationAnswer answer;
  if (begins_with_list) answer.wanted_from = 0;
  do {
    DeclarationPart part = head;
    if (answer.wanted_from.has_value()) FillPart(tensors, *answer.wanted_from, &part);
    const std::optional<uint32_t> before = answer.wanted_from;
    BDN_ASSIGN_OR_RETURN(answer, call(std::move(part)));
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
