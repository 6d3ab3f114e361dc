// Any pieces of a catalogue are a version of it, or are refused; a version that was taken is cut
// into pieces that say the same again, however small they are.

#include <string>
#include <vector>

#include "common/cluster/catalogue_pieces.h"
#include "proto/control.pb.h"
#include "tests/fuzz/fuzz_input.h"

namespace bdn {
namespace {

using Piece = bandoneon::control::CataloguePiece;

absl::StatusOr<SharedDelta> ReadTexts(uint32_t version, const std::vector<std::string>& texts) {
  return ReadDelta(version, [&](uint32_t piece, Piece* message) {
    if (piece < texts.size() && message->ParseFromString(texts[piece])) return absl::OkStatus();
    return absl::InvalidArgumentError("there is no such piece");
  });
}

void Run(fuzz::FuzzInput input) {
  // Of these nothing gets past the first check unless they are right: some are put right.
  const auto kind = input.Get<uint8_t>();
  std::vector<std::string> texts;
  while (!input.empty() && texts.size() < 8) {
    const std::vector<std::byte> bytes = input.Bytes(input.Get<uint16_t>());
    texts.emplace_back(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  for (uint32_t i = 0; kind % 4 != 0 && i < texts.size(); ++i) {
    Piece message;
    if (!message.ParseFromString(texts[i])) return;
    message.set_piece(i);
    message.set_pieces(static_cast<uint32_t>(texts.size()));
    message.mutable_version()->set_epoch(1);
    message.mutable_version()->set_catalogue_version(1);
    if (kind % 4 != 1) message.set_first_tensor(0);
    texts[i] = message.SerializeAsString();
  }
  const auto delta = ReadTexts(1, texts);
  if (!delta.ok()) return;
  fuzz::Require(CheckDelta(**delta).ok());
  for (const size_t piece_bytes : {size_t{1}, size_t{100}, kPieceBytes}) {
    const auto again = ReadTexts(1, PiecesOf(**delta, piece_bytes));
    fuzz::Require(again.ok() && **again == **delta);
  }
}

}  // namespace
}  // namespace bdn

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  bdn::Run({data, size});
  return 0;
}
