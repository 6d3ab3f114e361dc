#ifndef BANDONEON_CLI_RATE_HELLO_H_
#define BANDONEON_CLI_RATE_HELLO_H_

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

// The beginning of a connection between `bandoneon doctor --listen` and `--peer`. Either side
// bounds by itself what it reads:
//   listener: kHello, a nonce                peer: a nonce, its proof
//   listener: 'y' or 'n', its proof          listener: notes, until the peer's turn
// A note is a byte that names it and a number of 16 bits, the low byte first.

namespace bdn::cli {

constexpr std::string_view kHello = "bandoneon doctor 2\n";
constexpr size_t kNonceBytes = 32;
constexpr size_t kProofBytes = 32;
constexpr size_t kNoteBytes = 3;

// The notes of a listener to a peer.
enum class Note : char {
  kWait = 'w',   // so many peers are before this one, at least one
  kGo = 'g',     // the peer is measured now
  kFull = 'f',   // so many wait already; the connection is closed
  kEnded = 'e',  // the listener ends; the connection is closed
};
// Returns a note's kNoteBytes.
std::string NoteBytes(Note note, size_t number = 0);
// A note that was read.
struct ReadNote {
  Note note;
  size_t number;
};
// Parses kNoteBytes. InvalidArgument where they are no note.
absl::StatusOr<ReadNote> ParseNote(std::string_view bytes);

// Returns kNonceBytes random bytes of the system. Unavailable: it has none.
absl::StatusOr<std::string> Nonce();
// Returns the proof that `who`, "listener" or "peer", has the token, for both nonces.
std::string RateProof(std::string_view who, const std::string& token, std::string_view listeners,
                      std::string_view peers);

}  // namespace bdn::cli

#endif  // BANDONEON_CLI_RATE_HELLO_H_
