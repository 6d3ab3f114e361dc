#ifndef BANDONEON_CLI_RATE_HELLO_H_
#define BANDONEON_CLI_RATE_HELLO_H_

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

// How the two ends of `bandoneon doctor --listen` and `--peer` begin, which either side bounds by itself:
//   listener: kHello, a nonce                peer: a nonce, its proof
//   listener: 'y' or 'n', its proof          listener: notes, until the peer's turn
// A note is a byte that says which, and a number of 16 bits, the low byte first.

namespace bdn::cli {

constexpr std::string_view kHello = "bandoneon doctor 2\n";
constexpr size_t kNonceBytes = 32;
constexpr size_t kProofBytes = 32;
constexpr size_t kNoteBytes = 3;

enum class Note : char {
  kWait = 'w',   // so many are before this peer, one at least
  kGo = 'g',     // it is measured now
  kFull = 'f',   // so many wait already: closed
  kEnded = 'e',  // the listener ends: closed
};
std::string NoteBytes(Note note, size_t number = 0);
// Of kNoteBytes. InvalidArgument where they are no note.
struct ReadNote {
  Note note;
  size_t number;
};
absl::StatusOr<ReadNote> ParseNote(std::string_view bytes);

// Random bytes of the system's.
absl::StatusOr<std::string> Nonce();
// What shows that `who`, "listener" or "peer", has the token, for both nonces.
std::string RateProof(std::string_view who, const std::string& token, std::string_view listeners,
                      std::string_view peers);

}  // namespace bdn::cli

#endif  // BANDONEON_CLI_RATE_HELLO_H_
