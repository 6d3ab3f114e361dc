#include "worker/c_api/marks.h"

#include <cstring>
#include <vector>

#include "common/base/status.h"
#include "common/telemetry/recorder.h"
#include "common/telemetry/work_counts.h"
#include "worker/c_api/conversions.h"

namespace bdn {
namespace {

constexpr size_t kLongestText = 255;

static_assert(BDN_MARK_STEP == kFirstMark && BDN_MARK_BACKWARD == kLastMark);
static_assert(BDN_MARK_USER == static_cast<int>(TraceKind::kUser));

absl::Status Check(const bdn_mark& mark, size_t index) {
  BDN_RETURN_IF_ERROR(CheckStruct(&mark, "bdn_mark"));
  if (mark.kind < kFirstMark || mark.kind > kLastMark) {
    return InvalidArgument("mark %d: kind is %d, which is none of BDN_MARK_...", index, mark.kind);
  }
  const bool is_user = mark.kind == BDN_MARK_USER;
  if (is_user != (mark.text != nullptr)) {
    return InvalidArgument("mark %d: text is %s, of kind %d", index, is_user ? "null" : "not null",
                           mark.kind);
  }
  if (is_user && strnlen(mark.text, kLongestText + 1) > kLongestText) {
    return InvalidArgument("mark %d: text has more than %d bytes", index, kLongestText);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RecordMarks(Client* client, std::span<const bdn_mark> marks) {
  if (marks.data() == nullptr && !marks.empty()) return InvalidArgument("marks is null");
  for (size_t i = 0; i < marks.size(); ++i) BDN_RETURN_IF_ERROR(Check(marks[i], i));
  const ProgramRecords to = client->program_records();
  if (to.recorder == nullptr) return absl::OkStatus();
  std::vector<TraceRecord> records;
  for (const bdn_mark& mark : marks) {
    uint64_t key = 0;
    if (mark.text != nullptr) {
      key = to.recorder->NumberOf(mark.text);
    } else if (mark.tensor != BDN_NO_TENSOR) {
      key = client->RecordedKeyOf(mark.tensor);
    }
    const TraceRecord record = {.begin_ns = static_cast<int64_t>(mark.begin_ns),
                                .wall_ns = mark.wall_ns,
                                .key = key,
                                .step = mark.step,
                                .cpu_ticks = TraceField(mark.cpu_ns / kTraceTickNs),
                                .bytes = TraceField(mark.queued_ns / kTraceTickNs),
                                .kind = static_cast<uint8_t>(mark.kind)};
    to.recorder->Add(record);
    // Readiness, of which there are most, takes no time.
    if (mark.kind != BDN_MARK_READY) records.push_back(record);
  }
  if (to.clock != nullptr) to.clock->Add(records);
  return absl::OkStatus();
}

}  // namespace bdn
