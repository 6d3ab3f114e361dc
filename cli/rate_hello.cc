#include "cli/rate_hello.h"

#include <sys/random.h>
#include <sys/types.h>

#include "common/certs/token_proof.h"

namespace bdn::cli {

std::string NoteBytes(Note note, size_t number) {
  return {static_cast<char>(note), static_cast<char>(number & 0xff),
          static_cast<char>(number >> 8 & 0xff)};
}

absl::StatusOr<ReadNote> ParseNote(std::string_view bytes) {
  if (bytes.size() == kNoteBytes) {
    const size_t number =
        static_cast<unsigned char>(bytes[1]) | size_t{static_cast<unsigned char>(bytes[2])} << 8;
    for (const Note note : {Note::kWait, Note::kGo, Note::kFull, Note::kEnded}) {
      if (bytes[0] == static_cast<char>(note)) return ReadNote{note, number};
    }
  }
  return absl::InvalidArgumentError("the other end sent something else");
}

absl::StatusOr<std::string> Nonce() {
  std::string nonce(kNonceBytes, '\0');
  if (getrandom(nonce.data(), nonce.size(), 0) != static_cast<ssize_t>(nonce.size())) {
    return absl::UnavailableError("the system has no random bytes");
  }
  return nonce;
}

std::string RateProof(std::string_view who, const std::string& token, std::string_view listeners,
                      std::string_view peers) {
  // With both nonces no proof can be used again, and with `who` none can be sent back to its maker.
  return TokenProof(token, std::string(who).append(listeners).append(peers));
}

}  // namespace bdn::cli
