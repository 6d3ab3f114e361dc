#include "common/cluster/catalogue_pieces.h"

#include <google/protobuf/arena.h>

#include <algorithm>
#include <utility>

#include "common/base/status.h"
#include "common/cluster/control_messages.h"
#include "proto/control.pb.h"

namespace bdn {
namespace {

namespace wire = bandoneon::control;

// The most bytes that each takes on the wire.
constexpr size_t kTensorBytes = 32;  // besides its name
constexpr size_t kKeyBytes = 48;
constexpr size_t kSegmentBytes = 32;
constexpr size_t kTraitsBytes = 48;  // besides the specs

// A cutter that divides a delta into smaller ones, one for each piece. Used once.
class Cutter {
 public:
  Cutter(const CatalogueDelta& delta, size_t piece_bytes)
      : delta_(delta), piece_bytes_(piece_bytes) {
    Begin();
  }

  std::vector<CatalogueDelta> Cut() {
    for (const TensorDeclaration& tensor : delta_.tensors) {
      MakeRoom(kTensorBytes + tensor.name.size() + tensor.table.size() + TraitsBytes(tensor));
      pieces_.back().tensors.push_back(tensor);
    }
    for (size_t i = 0; i < delta_.keys.size(); ++i) Add(delta_.keys[i], delta_.owners[i]);
    for (const Key key : delta_.retired) {
      MakeRoom(sizeof(key));
      pieces_.back().retired.push_back(key);
    }
    return std::move(pieces_);
  }

 private:
  // Every piece names the version and the first tensor, so that the reader can check that all
  // belong together.
  void Begin() {
    pieces_.push_back({.version = delta_.version, .first_tensor = delta_.first_tensor});
    used_ = 0;
  }
  // Begins another piece where this one has no room; a piece always takes at least one entry.
  void MakeRoom(size_t bytes) {
    if (used_ > 0 && used_ + bytes > piece_bytes_) Begin();
    used_ += bytes;
  }

  void Add(const KeyEntry& key, NodeId owner) {
    // A key of very many segments goes on in the next pieces: each part repeats its number
    // (ReadKey).
    const size_t most = std::max<size_t>(1, piece_bytes_ / 2 / kSegmentBytes);
    KeyEntry part = key;
    for (size_t first = 0; first < key.segments.size(); first += most) {
      const auto begin = key.segments.begin() + static_cast<ptrdiff_t>(first);
      const size_t count = std::min(most, key.segments.size() - first);
      part.segments.assign(begin, begin + static_cast<ptrdiff_t>(count));
      MakeRoom(kKeyBytes + count * kSegmentBytes + TraitsBytes(key));
      pieces_.back().keys.push_back(part);
      pieces_.back().owners.push_back(owner);
    }
  }

  // Returns the bytes that the traits of `value` add to the piece, which holds each set of traits
  // once. Those of the entry before cost nothing again.
  template <typename Value>
  size_t TraitsBytes(const Value& value) {
    const std::string specs =
        value.push_spec.str() + '\n' + value.pull_spec.str() + '\n' + value.rule.str();
    if (specs == specs_ && used_ > 0) return 0;
    specs_ = specs;
    // All of a delta have the same ranks, of five bytes at most.
    const size_t ranks = value.ranks.is_all() ? 0 : value.ranks.ranks().size();
    return kTraitsBytes + specs.size() + 5 * ranks;
  }

  const CatalogueDelta& delta_;
  const size_t piece_bytes_;
  std::vector<CatalogueDelta> pieces_;
  size_t used_ = 0;    // of the last piece
  std::string specs_;  // specs of the entry added last
};

}  // namespace

std::vector<std::string> PiecesOf(const CatalogueDelta& delta, size_t piece_bytes) {
  const std::vector<CatalogueDelta> pieces = Cutter(delta, piece_bytes).Cut();
  std::vector<std::string> texts;
  for (size_t i = 0; i < pieces.size(); ++i) {
    wire::CataloguePiece message;
    Write(pieces[i], &message);
    message.set_piece(static_cast<uint32_t>(i));
    message.set_pieces(static_cast<uint32_t>(pieces.size()));
    texts.push_back(message.SerializeAsString());
  }
  return texts;
}

absl::StatusOr<SharedDelta> ReadDelta(
    uint32_t version,
    const std::function<absl::Status(uint32_t piece, wire::CataloguePiece*)>& fetch,
    uint32_t until) {
  auto whole = std::make_shared<CatalogueDelta>();
  uint32_t pieces = 1;
  for (uint32_t i = 0; i < pieces; ++i) {
    google::protobuf::Arena arena;  // tens of thousands of messages, which are freed together
    auto& message = *google::protobuf::Arena::CreateMessage<wire::CataloguePiece>(&arena);
    BDN_RETURN_IF_ERROR(fetch(i, &message));
    const PlacementVersion its_version = Read(message.version());
    if (i == 0) {
      pieces = message.pieces();
      whole->version = its_version;
      whole->first_tensor = message.first_tensor();
    }
    // Each piece comes by a call of its own: a piece of another version must not be mixed in.
    if (message.piece() != i || message.pieces() != pieces || its_version != whole->version ||
        its_version.catalogue < version || its_version.catalogue > std::max(version, until) ||
        message.first_tensor() != whole->first_tensor) {
      return InvalidArgument("piece %d of catalogue %d is not what came for it", i, version);
    }
    BDN_RETURN_IF_ERROR(ReadMore(message, whole.get()));
  }
  BDN_RETURN_IF_ERROR(CheckDelta(*whole));
  return SharedDelta(std::move(whole));
}

}  // namespace bdn
