#include "worker/c_api/conversions.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

namespace bdn {

absl::StatusOr<std::vector<std::string>> Flags(const bdn_options* options) {
  std::vector<std::string> flags;
  if (options == nullptr) return flags;
  BDN_RETURN_IF_ERROR(CheckStruct(options, "bdn_options"));
  for (size_t i = 0; i < options->num_settings; ++i) {
    if (options->settings[i] == nullptr) return InvalidArgument("settings[%d] is null", i);
    flags.push_back(std::string("--") + options->settings[i]);
  }
  return flags;
}

absl::Duration Timeout(double seconds) {
  if (std::isnan(seconds) || seconds < 0) return absl::ZeroDuration();
  return absl::Seconds(std::min(seconds, 1e9));
}

// Returns the traits of a schedule. The first four are promises, which a schedule keeps if all of
// its periods do; the others come from the last period, because all periods share one residual.
uint32_t TraitsOf(const CodecSchedule& schedule) {
  uint32_t traits =
      BDN_CODEC_LOSSLESS | BDN_CODEC_CARRIES_SUMS | BDN_CODEC_ADDS_ENCODED | BDN_CODEC_SHARES_DRAW;
  for (const CodecSchedule::Stage& stage : schedule.stages) {
    const Codec& codec = *stage.link.codec;
    const bool has_memory = stage.link.error_feedback || stage.link.delta;
    if (!codec.lossless()) traits &= ~BDN_CODEC_LOSSLESS;
    if (!codec.carries_sums() || has_memory) traits &= ~BDN_CODEC_CARRIES_SUMS;
    if (!codec.linear()) traits &= ~BDN_CODEC_ADDS_ENCODED;
    if (!codec.shares_draw()) traits &= ~BDN_CODEC_SHARES_DRAW;
  }
  const LinkCodec& last = schedule.last();
  if (last.error_feedback) traits |= BDN_CODEC_ERROR_FEEDBACK;
  if (last.learning_rate_correction) traits |= BDN_CODEC_LEARNING_RATE_CORRECTION;
  if (last.delta) traits |= BDN_CODEC_DELTA;
  if (schedule.stages.size() > 1) traits |= BDN_CODEC_SCHEDULE;
  return traits;
}

absl::StatusOr<StateCall> OfLink(StateCall call, const char* part) {
  call.where = StateCall::Where::kThisLink;
  BDN_ASSIGN_OR_RETURN(call.link_part, LinkStateNamed(part == nullptr ? "" : part));
  return call;
}

absl::StatusOr<StateCall> OfServers(StateCall call, const char* part) {
  call.where = StateCall::Where::kServer;
  BDN_ASSIGN_OR_RETURN(call.server_part, ServerPartNamed(part == nullptr ? "" : part));
  return call;
}

absl::StatusOr<StateCall> SetRule(std::span<const uint32_t> tensors, const char* rule) {
  if (tensors.data() == nullptr || rule == nullptr) {
    return InvalidArgument("tensors or rule is null");
  }
  return StateCall{.what = StateCall::What::kSetRule,
                   .where = StateCall::Where::kServer,
                   .tensors = tensors,
                   .rule = rule};
}

size_t CopyText(const std::string& text, char* out, size_t capacity) {
  if (out != nullptr && capacity > 0) {
    const size_t used = std::min(text.size(), capacity - 1);
    std::memcpy(out, text.data(), used);
    out[used] = '\0';
  }
  return text.size() + 1;
}

absl::StatusOr<RankGroup> ToGroup(const int32_t* ranks, size_t count) {
  if (ranks == nullptr) {
    if (count > 0) return InvalidArgument("ranks is null, of %d ranks", count);
    return RankGroup();
  }
  return RankGroup::Of({ranks, ranks + count});
}

absl::StatusOr<TensorDeclaration> ToDeclaration(const bdn_declaration& given) {
  BDN_RETURN_IF_ERROR(CheckStruct(&given, "bdn_declaration"));
  if (given.name == nullptr) return InvalidArgument("a declaration's name is null");
  BDN_ASSIGN_OR_RETURN(const DType dtype, DTypeFromNumber(given.dtype));
  if (given.flags & ~static_cast<uint32_t>(BDN_FUSE)) {
    return InvalidArgument("tensor '%s': unknown flags %#x", given.name, given.flags);
  }
  BDN_ASSIGN_OR_RETURN(RankGroup ranks, ToGroup(given.ranks, given.num_ranks));
  return TensorDeclaration{.name = given.name,
                           .dtype = dtype,
                           .elements = given.elements,
                           .push_spec = given.push == nullptr ? "none" : given.push,
                           .pull_spec = given.pull == nullptr ? "none" : given.pull,
                           .rule = given.rule == nullptr ? "mean" : given.rule,
                           .warmup_steps = given.warmup_steps,
                           .momentum = given.momentum,
                           .fuse = (given.flags & BDN_FUSE) != 0,
                           .group = given.group,
                           .ranks = std::move(ranks)};
}

absl::StatusOr<TensorDeclaration> ToTable(const bdn_table& given) {
  BDN_RETURN_IF_ERROR(CheckStruct(&given, "bdn_table"));
  if (given.name == nullptr) return InvalidArgument("a table has no name");
  const auto text = [](const char* spec, const char* otherwise) {
    return std::string(spec == nullptr ? otherwise : spec);
  };
  TensorDeclaration table{.name = given.name,
                          .elements = given.width,
                          .kind = KeyKind::kRows,
                          .push_spec = text(given.push, "none"),
                          .pull_spec = text(given.pull, "none"),
                          .rule = text(given.rule, "sgd"),
                          .group = given.group};
  // Only a number of the spec's language may be put into it.
  if (!std::isfinite(given.init_value)) {
    return InvalidArgument("table '%s': init_value %g is not finite", given.name, given.init_value);
  }
  table.table = absl::StrFormat(
      "table(rows=%d,init=%s,value=%.17g,expect=%d,admit=%d,max_rows=%d,evict=%s,ttl=%d)",
      given.rows, text(given.init, "zeros"), given.init_value, given.expect_rows,
      std::max<uint64_t>(1, given.admit), given.max_rows, text(given.evict, "none"), given.ttl);
  return table;
}

absl::StatusOr<std::vector<TableRows>> ToRows(const bdn_rows* rows, size_t count) {
  if (count > 0 && rows == nullptr) return InvalidArgument("rows is null");
  std::vector<TableRows> all;
  for (size_t i = 0; i < count; ++i) {
    const bdn_rows& given = rows[i];
    BDN_RETURN_IF_ERROR(CheckStruct(&given, "bdn_rows"));
    if ((given.num_ids > 0 && given.ids == nullptr) ||
        (given.num_wanted > 0 && given.wanted == nullptr)) {
      return InvalidArgument("ids or wanted of a table is null");
    }
    if (given.reserved != 0) return InvalidArgument("bdn_rows.reserved is not 0");
    all.push_back({.table = given.table,
                   .ids = {given.ids, given.num_ids},
                   .gradients = given.gradients,
                   .wanted = {given.wanted, given.num_wanted},
                   .out = given.out});
  }
  return all;
}

absl::StatusOr<RowsPush> ToRowsPush(const bdn_rows_step* step) {
  BDN_RETURN_IF_ERROR(CheckStruct(step, "bdn_rows_step"));
  if (step->reserved != 0) return InvalidArgument("bdn_rows_step.reserved is not 0");
  return RowsPush{.tables = {},
                  .weight = step->weight,
                  .loss_scale = step->loss_scale,
                  .learning_rate = step->learning_rate,
                  .program_steps = step->program_steps,
                  .priority = step->priority};
}

// Checks what two structs about records have alike.
absl::Status CheckList(const char* what, uint32_t list, uint32_t reserved) {
  if (list >= kRowLists) return InvalidArgument("%s.list is %d, of %d", what, list, kRowLists);
  if (reserved != 0) return InvalidArgument("%s.reserved is not 0", what);
  return absl::OkStatus();
}

absl::StatusOr<RecordsScan> ToRecordsScan(bdn_row_scan* scan) {
  BDN_RETURN_IF_ERROR(CheckStruct(scan, "bdn_row_scan"));
  if (scan->ids == nullptr || scan->records == nullptr) {
    return InvalidArgument("ids or records of a scan is null");
  }
  BDN_RETURN_IF_ERROR(CheckList("bdn_row_scan", scan->list, scan->reserved));
  return RecordsScan{.table = scan->table,
                     .bucket = scan->bucket,
                     .cursor = scan->cursor,
                     .since = scan->since,
                     .room = scan->room,
                     .list = static_cast<RowList>(scan->list),
                     .ids = scan->ids,
                     .records = static_cast<std::byte*>(scan->records),
                     .next = &scan->cursor,
                     .count = &scan->count,
                     .updates = &scan->updates,
                     .complete_since = &scan->complete_since};
}

absl::StatusOr<RecordsSet> ToRecordsSet(const bdn_row_records* records) {
  BDN_RETURN_IF_ERROR(CheckStruct(records, "bdn_row_records"));
  if (records->num_ids > 0 && records->ids == nullptr) {
    return InvalidArgument("ids of records is null");
  }
  if (records->replaces > 1) {
    return InvalidArgument("bdn_row_records.replaces is %d", records->replaces);
  }
  BDN_RETURN_IF_ERROR(CheckList("bdn_row_records", records->list, records->reserved));
  return RecordsSet{.table = records->table,
                    .ids = {records->ids, records->num_ids},
                    .records = static_cast<const std::byte*>(records->records),
                    .updates = records->updates,
                    .replaces = records->replaces == 1,
                    .list = static_cast<RowList>(records->list)};
}

absl::StatusOr<DeviceExchanges::Push> ToPush(const bdn_push* push) {
  BDN_RETURN_IF_ERROR(CheckStruct(push, "bdn_push"));
  if (push->device < BDN_HOST) {
    return InvalidArgument("bdn_push: device %d is neither BDN_HOST nor BDN_CUDA(n)", push->device);
  }
  if (push->device == BDN_HOST && push->stream != nullptr) {
    return InvalidArgument("bdn_push: a stream, of data of the host");
  }
  if (push->flags & ~static_cast<uint32_t>(BDN_ABSENT)) {
    return InvalidArgument("bdn_push: unknown flags %#x", push->flags);
  }
  PushRequest request{.tensor = push->tensor,
                      .data = {.data = push->data},  // type and size as declared
                      .absent = (push->flags & BDN_ABSENT) != 0,
                      .priority = push->priority,
                      .weight = push->weight,
                      .loss_scale = push->loss_scale,
                      .learning_rate = push->learning_rate,
                      .program_steps = push->program_steps,
                      .left_out = push->left_out};
  if (push->done != nullptr) {
    request.done = [done = push->done, user_data = push->user_data](TicketId ticket,
                                                                    const auto& result) {
      done(user_data, ticket, NumberOf(result.status()));
    };
  }
  static_assert(BDN_CUDA(DevicePlace::kHost) == BDN_HOST);
  return DeviceExchanges::Push{std::move(request),
                               {push->device - BDN_CUDA(0), DeviceStream{push->stream}}};
}

}  // namespace bdn
