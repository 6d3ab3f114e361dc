#include "server/key_history.h"

#include <string>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/crc32c.h"

namespace bdn {

void WriteRound(HistoryFile* history, const Places& places, const RankGroup& group,
                const Frame& reply) {
  if (history == nullptr) return;
  std::string ranks;
  for (size_t i = 0; i < places.size(); ++i) {
    absl::StrAppendFormat(&ranks, "%s%d", i == 0 ? "" : ",", places.RankOf(PlaceAt(i)));
  }
  const std::string among =
      group.is_all() ? "" : absl::StrFormat(",\"among\":[%s]", absl::StrJoin(group.ranks(), ","));
  const FrameHeader& header = reply.header;
  history->Write(
      "round",
      absl::StrFormat(
          ",\"key\":\"%s\",\"step\":%d,\"epoch\":%d,\"ranks\":[%s]%s,\"crc\":%d,\"flags\":%d",
          header.key.ToString(), header.step, header.epoch, ranks, among,
          Crc32c(reply.payload.span()), header.flags));
}

void WriteFailed(HistoryFile* history, Key key, Step step, std::string_view why) {
  if (history == nullptr) return;
  history->Write("failed", absl::StrFormat(",\"key\":\"%s\",\"step\":%d%s", key.ToString(), step,
                                           HistoryText("why", why)));
}

void WriteSet(HistoryFile* history, const FrameHeader& init, Rank rank) {
  if (history == nullptr) return;
  history->Write("set",
                 absl::StrFormat(",\"key\":\"%s\",\"step\":%d,\"part\":\"%s\",\"rank\":%d",
                                 init.key.ToString(), init.step, StatePartName(init.part), rank));
}

void WriteRebuild(HistoryFile* history, Key key, std::string_view what, Step start, Step target) {
  if (history == nullptr) return;
  history->Write("rebuild",
                 absl::StrFormat(",\"key\":\"%s\",\"what\":\"%s\",\"start\":%d,\"target\":%d",
                                 key.ToString(), what, start, target));
}

}  // namespace bdn
