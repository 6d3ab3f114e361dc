#ifndef BANDONEON_WORKER_C_API_CONVERSIONS_H_
#define BANDONEON_WORKER_C_API_CONVERSIONS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/status.h"
#include "compressors/codec_schedule.h"
#include "worker/c_api/bandoneon.h"
#include "worker/client.h"
#include "worker/device/device_exchanges.h"

// Conversions between the arguments of the C interface and the worker's own types, with checks.

namespace bdn {

// Checks a struct of a caller. InvalidArgument: it is null, or of another version of the header.
// `name` is for the error.
template <typename Struct>
absl::Status CheckStruct(const Struct* given, const char* name) {
  if (given == nullptr) return InvalidArgument("%s is null", name);
  if (given->struct_size != sizeof(Struct)) {
    return InvalidArgument(
        "%s.struct_size is %d, and this library's is %d: set it to sizeof, and "
        "compile with the header of this library",
        name, given->struct_size, sizeof(Struct));
  }
  return absl::OkStatus();
}

// Returns the settings as flags, "--name=value". `options` may be null.
absl::StatusOr<std::vector<std::string>> Flags(const bdn_options* options);
// Returns a timeout; NaN and negative numbers become 0.
absl::Duration Timeout(double seconds);

// Return `call`, about the part of this name, at this worker's link or at the servers.
// InvalidArgument lists the names.
absl::StatusOr<StateCall> OfLink(StateCall call, const char* part);
absl::StatusOr<StateCall> OfServers(StateCall call, const char* part);
// Returns the call that sets the update rule of these tensors. InvalidArgument: an argument is
// null.
absl::StatusOr<StateCall> SetRule(std::span<const uint32_t> tensors, const char* rule);
// Returns a group of ranks; of all workers where `ranks` is null.
absl::StatusOr<RankGroup> ToGroup(const int32_t* ranks, size_t count);
absl::StatusOr<TensorDeclaration> ToDeclaration(const bdn_declaration& given);
absl::StatusOr<DeviceExchanges::Push> ToPush(const bdn_push* push);
absl::StatusOr<TensorDeclaration> ToTable(const bdn_table& given);
absl::StatusOr<std::vector<TableRows>> ToRows(const bdn_rows* rows, size_t count);
absl::StatusOr<RowsPush> ToRowsPush(const bdn_rows_step* step);
absl::StatusOr<RecordsScan> ToRecordsScan(bdn_row_scan* scan);
absl::StatusOr<RecordsSet> ToRecordsSet(const bdn_row_records* records);

// Returns a codec's BDN_CODEC_... traits, or-ed.
uint32_t TraitsOf(const CodecSchedule& schedule);
// Writes at most `capacity` bytes, the final NUL included. Returns the bytes that the whole text
// takes with its NUL.
size_t CopyText(const std::string& text, char* out, size_t capacity);

}  // namespace bdn

#endif  // BANDONEON_WORKER_C_API_CONVERSIONS_H_
