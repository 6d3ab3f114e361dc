#ifndef BANDONEON_SERVER_KEY_HISTORY_H_
#define BANDONEON_SERVER_KEY_HISTORY_H_

#include <string_view>

#include "common/telemetry/history_file.h"
#include "common/wire/frame.h"
#include "server/places.h"

namespace bdn {

// Write what has become of a key. They do nothing where `history` is null.

// A round was closed, with the pushes of all `places`, those of the key's group.
void WriteRound(HistoryFile* history, const Places& places, const RankGroup& group,
                const Frame& reply);
// Rounds up to this step are over without a result.
void WriteFailed(HistoryFile* history, Key key, Step step, std::string_view why);
// A worker has set a part of the state, as of this step.
void WriteSet(HistoryFile* history, const FrameHeader& init, Rank rank);
// A key of a lost server `begin`s to be rebuilt here, or is to be made again from `start` to
// `target` (`plan`), or has its snapshot of step `start` (`snapshot`), or is `whole`. Another word
// is another way, after which steps up to `target` may have other results than before.
void WriteRebuild(HistoryFile* history, Key key, std::string_view what, Step start, Step target);

}  // namespace bdn

#endif  // BANDONEON_SERVER_KEY_HISTORY_H_
