#ifndef BANDONEON_WORKER_PIPELINE_GUESS_WATCH_H_
#define BANDONEON_WORKER_PIPELINE_GUESS_WATCH_H_

#include <algorithm>
#include <array>
#include <cstddef>

#include "common/base/ids.h"

namespace bdn {

// A watch of the replies of one key for elements that its codec could only guess (Codec::guesses).
// A key is to go uncompressed after kMostSteps steps with guesses. Where enough cells are there,
// two or three elements share all of theirs in one step of thousands; steps with at most kByChance
// guesses are forgotten after kWithin further steps, so that chance alone sends no key
// uncompressed. A value, kept by the owner of the key's state: not thread-safe.
class GuessWatch {
 public:
  static constexpr int kMostSteps = 3;
  static constexpr size_t kByChance = 8;
  static constexpr Step kWithin = 100;

  // Notes the reply of a step. REQUIRES: steps rise.
  void Note(Step step, size_t guessed) {
    if (guessed == 0 || wants_uncompressed_) return;
    if (guessed > kByChance) {
      ++num_many_;
    } else {
      std::rotate(few_.begin(), few_.begin() + 1, few_.end());
      few_.back() = step;
    }
    const auto recent = std::count_if(few_.begin(), few_.end(), [step](Step noted) {
      return noted != 0 && step - noted < kWithin;
    });
    wants_uncompressed_ = num_many_ + recent >= kMostSteps;
  }
  bool WantsUncompressed() const { return wants_uncompressed_; }
  // Notes that the key goes uncompressed: there is nothing more to ask for.
  void NoteUncompressed() { *this = {}; }

 private:
  int num_many_ = 0;                    // steps with more guesses than kByChance
  std::array<Step, kMostSteps> few_{};  // the last of the others, rising; 0: none
  bool wants_uncompressed_ = false;
};

}  // namespace bdn

#endif  // BANDONEON_WORKER_PIPELINE_GUESS_WATCH_H_
