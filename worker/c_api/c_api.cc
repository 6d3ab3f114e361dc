#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/base/crc32c.h"
#include "common/base/float_guard.h"
#include "common/base/log.h"
#include "common/base/log_context.h"
#include "common/base/status.h"
#include "common/cluster/credentials.h"
#include "common/cluster/settings.h"
#include "compressors/codec_spec.h"
#include "worker/c_api/bandoneon.h"
#include "worker/c_api/connect.h"
#include "worker/c_api/conversions.h"
#include "worker/c_api/lent_blocks.h"
#include "worker/c_api/marks.h"
#include "worker/c_api/open_calls.h"
#include "worker/error_fields.h"
#include "worker/local/local_cluster.h"

// The C interface: it calls the worker, counts the calls in progress, and keeps the last error of
// each thread. No exception leaves it.

struct bdn_cluster {
  std::shared_ptr<bdn::LocalCluster> cluster;
  pid_t owner = getpid();
};
struct bdn_worker {
  // It outlives the worker. Null outside of a local cluster.
  std::shared_ptr<bdn::LocalCluster> cluster;
  bdn::ClientContext context;
  // They use the client, which is destroyed first: see DeviceExchanges::Stop.
  std::unique_ptr<bdn::DeviceExchanges> exchanges;
  std::unique_ptr<bdn::Client> client;
  mutable bdn::OpenCalls calls;
  pid_t owner = getpid();
};

static_assert(BDN_DATA_LOSS == static_cast<int>(absl::StatusCode::kDataLoss));
static_assert(BDN_EVICTED == bdn::kEvictedNumber);
static_assert(BDN_BOOL == static_cast<int>(bdn::DType::kBool));

namespace bdn {
namespace {

thread_local absl::Status last_error;
thread_local std::string last_error_text;

int Return(absl::Status status) {
  if (status.ok()) return BDN_OK;
  last_error = std::move(status);
  return NumberOf(last_error);
}

// Runs `body`, which returns a Status, with the default floating-point state: a program may have
// set another rounding mode, which would change bits.
template <typename Body>
int Call(Body body) {
  const FloatGuard guard;
  try {
    return Return(body());
  } catch (const std::bad_alloc&) {
    return Return(ResourceExhausted("out of memory"));
  } catch (const std::exception& e) {
    return Return(Internal("unexpected exception: %s", e.what()));
  }
}

// Completes a new handle.
absl::Status Open(const Config& config, absl::StatusOr<std::unique_ptr<Client>> client,
                  std::unique_ptr<bdn_worker> handle, bdn_worker** out) {
  BDN_RETURN_IF_ERROR(client.status());
  handle->client = *std::move(client);
  BDN_ASSIGN_OR_RETURN(handle->exchanges,
                       MakeDeviceExchanges(config, handle->client.get(), &handle->context));
  *out = handle.release();
  return absl::OkStatus();
}

absl::Status Inherited(const char* what) {
  return FailedPrecondition(
      "this process was forked from the one that made the %s; use it there only", what);
}

// Does what Call does, on a worker; a null or inherited handle is refused. A forked process has
// none of the worker's threads, so each call would wait for ever.
template <typename Body>
int CallOn(const bdn_worker* handle, Body body) {
  if (handle == nullptr) return Return(InvalidArgument("the worker is null"));
  if (handle->owner != getpid()) return Return(Inherited("worker"));
  if (!handle->calls.Enter()) return Return(Cancelled("the worker is being freed"));
  const int code = Call([&] { return body(*handle->client); });
  handle->calls.Exit();
  return code;
}

int WaitAll(bdn_worker* worker, std::span<const TicketId> tickets,
            std::span<const DeviceStream> streams, double timeout_seconds, bdn_result* results,
            size_t* ended) {
  // Before any check, so that the caller may read it after every error.
  if (ended != nullptr) *ended = 0;
  return CallOn(worker, [&](Client&) -> absl::Status {
    if (!tickets.empty() && tickets.data() == nullptr) return InvalidArgument("tickets is null");
    // Before the wait: a wrong struct_size must not cost the results of tickets that are given up.
    for (size_t i = 0; results != nullptr && i < tickets.size(); ++i) {
      BDN_RETURN_IF_ERROR(CheckStruct(results + i, "bdn_result"));
    }
    std::vector<PushResult> done;
    const absl::Status status =
        worker->exchanges->WaitAll(tickets, streams, Timeout(timeout_seconds), &done);
    for (size_t i = 0; results != nullptr && i < done.size(); ++i) {
      results[i].step = done[i].step;
      results[i].flags =
          (done[i].absent ? BDN_RESULT_ABSENT : 0) | (done[i].nonfinite ? BDN_RESULT_NONFINITE : 0);
      results[i].guessed = done[i].guessed;
    }
    if (ended != nullptr) *ended = done.size();
    return status;
  });
}

// The variables of the caller into which a call about state puts numbers that it has read.
struct StateNumbers {
  uint64_t* step = nullptr;
  uint64_t* updates = nullptr;
  float* previous_learning_rate = nullptr;
};

// Does what CallOn does, for a call about state. First checks that the client has all pushes of its
// tensors: a push that has not left its device would change the state afterwards.
int Perform(bdn_worker* worker, absl::StatusOr<StateCall> call, double timeout_seconds,
            StateNumbers numbers = {}) {
  return CallOn(worker, [&](Client& client) -> absl::Status {
    BDN_RETURN_IF_ERROR(call.status());
    for (const uint32_t tensor : call->subjects()) {
      BDN_RETURN_IF_ERROR(worker->exchanges->CheckStarted(tensor));
    }
    const bool of_step = call->what == StateCall::What::kGetStep;
    const bool of_counters = call->what == StateCall::What::kGetCounters;
    if (of_step && numbers.step == nullptr) return InvalidArgument("step is null");
    if (of_counters && (numbers.updates == nullptr || numbers.previous_learning_rate == nullptr)) {
      return InvalidArgument("updates or previous_learning_rate is null");
    }
    BDN_RETURN_IF_ERROR(client.Perform(&*call, Timeout(timeout_seconds)));
    if (of_step) *numbers.step = call->step;
    if (of_counters) {
      *numbers.updates = call->counters.updates;
      *numbers.previous_learning_rate = call->counters.previous_learning_rate;
    }
    return absl::OkStatus();
  });
}

constexpr double kForeverSeconds = 1e9;  // as long as a Timeout can be

struct LastWords {
  bdn_worker* worker;
  std::string cause;
};

std::string ExitReason(int status, const std::string& cause) {
  if (cause.empty()) return absl::StrFormat("its program ended with exit status %d", status);
  return absl::StrFormat("%s (exit status %d)", cause, status);
}

// Runs at the end of the process. Only an exit handler is told the exit status, so everything that
// depends on the status is done here.
void EndAtExit(int status, void* argument) {
  const std::unique_ptr<LastWords> last(static_cast<LastWords*>(argument));
  if (last->worker->owner != getpid()) return;
  const auto end = [&] {
    // If another worker's failure has caused the exit, the job has that reason already.
    if (status != 0) {
      bdn_abort_job(last->worker, ExitReason(status, last->cause).c_str());
    } else if (bdn_leave(last->worker, kForeverSeconds) != BDN_OK) {
      LogError("leaving the job: %s", bdn_last_error());
    }
    bdn_free(last->worker);
  };
  try {
    // On a thread of its own: this thread's thread_local variables are destroyed by now, and gRPC
    // has some.
    std::thread(end).join();
  } catch (const std::exception& e) {
    LogError("the job is not left in order, for want of a thread: %s", e.what());
  }
}

}  // namespace
}  // namespace bdn

extern "C" {

using bdn::Call;
using bdn::CallOn;
using bdn::StateCall;
using What = bdn::StateCall::What;
using Where = bdn::StateCall::Where;

int bdn_abi_version(void) { return BDN_ABI_VERSION; }
const char* bdn_version(void) { return BDN_VERSION; }

const char* bdn_last_error(void) {
  bdn::last_error_text = std::string(bdn::last_error.message());
  return bdn::last_error_text.c_str();
}

const char* bdn_last_error_field(const char* field) {
  bdn::last_error_text = field == nullptr ? "" : bdn::GetErrorField(bdn::last_error, field);
  return bdn::last_error_text.c_str();
}

const char* bdn_settings_help(void) {
  static const std::string help = bdn::Config::Help(bdn::WorkerSettings());
  return help.c_str();
}

int bdn_create(const bdn_options* options, bdn_worker** out) {
  return Call([&]() -> absl::Status {
    if (out == nullptr) return bdn::InvalidArgument("out is null");
    BDN_ASSIGN_OR_RETURN(const auto flags, bdn::Flags(options));
    BDN_ASSIGN_OR_RETURN(const bdn::Config config, bdn::LoadWorkerConfig(flags));
    auto handle = std::make_unique<bdn_worker>();
    auto client = bdn::ConnectWorker(config, &handle->context);
    return bdn::Open(config, std::move(client), std::move(handle), out);
  });
}

int bdn_create_local(bdn_cluster* cluster, const bdn_options* options, bdn_worker** out) {
  return Call([&]() -> absl::Status {
    if (cluster == nullptr || out == nullptr) return bdn::InvalidArgument("cluster or out is null");
    if (cluster->owner != getpid()) return bdn::Inherited("cluster");
    auto handle = std::make_unique<bdn_worker>();
    // The cluster may be freed while this call waits for the others.
    handle->cluster = cluster->cluster;
    BDN_ASSIGN_OR_RETURN(const auto flags, bdn::Flags(options));
    BDN_ASSIGN_OR_RETURN(const bdn::Config config, bdn::LoadWorkerConfig(flags));
    auto client = bdn::ConnectLocalWorker(config, &handle->context, handle->cluster.get());
    return bdn::Open(config, std::move(client), std::move(handle), out);
  });
}

void bdn_free(bdn_worker* worker) {
  if (worker == nullptr || worker->owner != getpid()) return;
  (void)Call([&] {
    // The order matters: no new call may begin, then the waits of the calls in progress end, and
    // only when all of them have returned is anything destroyed. The devices must be done before
    // the client goes, because their callbacks push to it.
    worker->calls.Close();
    worker->exchanges->Close();
    worker->client->Close();
    worker->calls.AwaitNone();
    worker->exchanges->Stop();
    delete worker;
    return absl::OkStatus();
  });
}

int bdn_leave(bdn_worker* worker, double timeout_seconds) {
  return CallOn(worker, [&](bdn::Client& w) -> absl::Status {
    const bdn::Clock& clock = worker->context.clock;
    const absl::Duration timeout = bdn::Timeout(timeout_seconds);
    const absl::Time deadline = clock.Now() + timeout;
    // Pushes that have not left their device come first: the client does not know of them yet.
    BDN_RETURN_IF_ERROR(worker->exchanges->AwaitStarted(timeout));
    return w.Leave(std::max(absl::ZeroDuration(), deadline - clock.Now()));
  });
}

int bdn_depart(bdn_worker* worker, const char* reason) {
  return CallOn(worker, [&](bdn::Client& w) { return w.Depart(reason == nullptr ? "" : reason); });
}

int bdn_abort_job(bdn_worker* worker, const char* reason) {
  return CallOn(worker, [&](bdn::Client& w) { return w.Abort(reason == nullptr ? "" : reason); });
}

int bdn_leave_at_exit(bdn_worker* worker, const char* cause) {
  return CallOn(worker, [&](bdn::Client&) -> absl::Status {
    auto last = std::make_unique<bdn::LastWords>();
    last->worker = worker;
    last->cause = cause == nullptr ? "" : cause;
    if (on_exit(bdn::EndAtExit, last.get()) != 0) {
      return bdn::ResourceExhausted("the process takes no more handlers of its exit");
    }
    (void)last.release();
    return absl::OkStatus();
  });
}

int bdn_rank(const bdn_worker* worker) { return worker == nullptr ? -1 : worker->client->rank(); }
int bdn_joined_size(const bdn_worker* worker) {
  return worker == nullptr ? 0 : worker->client->joined_size();
}
int bdn_size(const bdn_worker* worker) {
  return worker == nullptr ? 0 : worker->client->presence().size;
}
int bdn_first_rank(const bdn_worker* worker) {
  return worker == nullptr ? -1 : worker->client->presence().first_rank;
}

int bdn_size_among(const bdn_worker* worker, const int32_t* ranks, size_t num_ranks,
                   int32_t* first) {
  bdn::Presence among = {.size = 0, .first_rank = -1};
  (void)Call([&]() -> absl::Status {
    if (worker == nullptr || ranks == nullptr) {
      return bdn::InvalidArgument("worker or ranks is null");
    }
    BDN_ASSIGN_OR_RETURN(const bdn::RankGroup group, bdn::ToGroup(ranks, num_ranks));
    among = worker->client->PresenceAmong(group);
    return absl::OkStatus();
  });
  if (first != nullptr) *first = among.first_rank;
  return among.size;
}

int bdn_is_candidate(const bdn_worker* worker) {
  return worker != nullptr && worker->client->is_candidate() ? 1 : 0;
}
int bdn_candidates(const bdn_worker* worker) {
  return worker == nullptr ? 0 : worker->client->standing().num_candidates;
}

int bdn_local_cluster_create(const bdn_options* options, bdn_cluster** out) {
  return Call([&]() -> absl::Status {
    if (out == nullptr) return bdn::InvalidArgument("out is null");
    BDN_ASSIGN_OR_RETURN(const auto flags, bdn::Flags(options));
    BDN_ASSIGN_OR_RETURN(auto cluster, bdn::LocalCluster::Create(flags));
    *out = new bdn_cluster{std::move(cluster)};
    return absl::OkStatus();
  });
}

void bdn_local_cluster_free(bdn_cluster* cluster) {
  if (cluster == nullptr || cluster->owner != getpid()) return;
  delete cluster;
}

int bdn_declare(bdn_worker* worker, const bdn_declaration* tensors, size_t count, uint32_t* ids,
                double timeout_seconds) {
  return CallOn(worker, [&](bdn::Client& w) -> absl::Status {
    if (count > 0 && (tensors == nullptr || ids == nullptr)) {
      return bdn::InvalidArgument("tensors or ids is null");
    }
    std::vector<bdn::TensorDeclaration> declarations;
    for (size_t i = 0; i < count; ++i) {
      BDN_ASSIGN_OR_RETURN(auto declaration, bdn::ToDeclaration(tensors[i]));
      declarations.push_back(std::move(declaration));
    }
    BDN_ASSIGN_OR_RETURN(const auto found,
                         w.Declare(std::move(declarations), bdn::Timeout(timeout_seconds)));
    std::copy(found.begin(), found.end(), ids);
    return absl::OkStatus();
  });
}

int bdn_declare_tables(bdn_worker* worker, const bdn_table* tables, size_t count, uint32_t* ids,
                       double timeout_seconds) {
  return CallOn(worker, [&](bdn::Client& w) -> absl::Status {
    BDN_RETURN_IF_ERROR(w.tables().status());
    if (count > 0 && (tables == nullptr || ids == nullptr)) {
      return bdn::InvalidArgument("tables or ids is null");
    }
    std::vector<bdn::TensorDeclaration> declarations;
    for (size_t i = 0; i < count; ++i) {
      BDN_ASSIGN_OR_RETURN(auto declaration, bdn::ToTable(tables[i]));
      declarations.push_back(std::move(declaration));
    }
    BDN_ASSIGN_OR_RETURN(const auto found,
                         w.Declare(std::move(declarations), bdn::Timeout(timeout_seconds)));
    std::copy(found.begin(), found.end(), ids);
    return absl::OkStatus();
  });
}

int bdn_push_rows(bdn_worker* worker, const bdn_rows_step* step, const bdn_rows* rows, size_t count,
                  bdn_ticket* ticket) {
  return CallOn(worker, [&](bdn::Client& w) -> absl::Status {
    if (ticket == nullptr) return bdn::InvalidArgument("ticket is null");
    BDN_ASSIGN_OR_RETURN(bdn::RowsPush push, bdn::ToRowsPush(step));
    BDN_ASSIGN_OR_RETURN(push.tables, bdn::ToRows(rows, count));
    BDN_ASSIGN_OR_RETURN(bdn::Tables* const tables, w.tables());
    BDN_ASSIGN_OR_RETURN(*ticket, tables->Push(push));
    return absl::OkStatus();
  });
}

int bdn_summed_rows(bdn_worker* worker, uint32_t table, uint64_t room, uint64_t* ids, float* rows,
                    uint64_t* count) {
  return CallOn(worker, [&](bdn::Client& w) -> absl::Status {
    if (count == nullptr || (room > 0 && (ids == nullptr || rows == nullptr))) {
      return bdn::InvalidArgument("ids, rows or count is null");
    }
    BDN_ASSIGN_OR_RETURN(bdn::Tables* const tables, w.tables());
    BDN_ASSIGN_OR_RETURN(const bdn::SummedRows summed, tables->Summed(table));
    *count = summed.ids.size();
    if (room < *count) return absl::OkStatus();
    std::copy(summed.ids.begin(), summed.ids.end(), ids);
    std::copy(summed.rows.begin(), summed.rows.end(), rows);
    return absl::OkStatus();
  });
}

int bdn_fetch_rows(bdn_worker* worker, const bdn_rows* rows, size_t count, bdn_ticket* ticket) {
  return CallOn(worker, [&](bdn::Client& w) -> absl::Status {
    if (ticket == nullptr) return bdn::InvalidArgument("ticket is null");
    BDN_ASSIGN_OR_RETURN(const std::vector<bdn::TableRows> wanted, bdn::ToRows(rows, count));
    BDN_ASSIGN_OR_RETURN(bdn::Tables* const tables, w.tables());
    BDN_ASSIGN_OR_RETURN(*ticket, tables->Fetch(wanted));
    return absl::OkStatus();
  });
}

int bdn_set_rows(bdn_worker* worker, const bdn_rows* rows, bdn_ticket* ticket) {
  return CallOn(worker, [&](bdn::Client& w) -> absl::Status {
    if (ticket == nullptr) return bdn::InvalidArgument("ticket is null");
    BDN_ASSIGN_OR_RETURN(const std::vector<bdn::TableRows> set, bdn::ToRows(rows, 1));
    if (!set[0].wanted.empty()) return bdn::InvalidArgument("rows that are set are not wanted");
    BDN_ASSIGN_OR_RETURN(bdn::Tables* const tables, w.tables());
    BDN_ASSIGN_OR_RETURN(*ticket, tables->Set(set[0]));
    return absl::OkStatus();
  });
}

int bdn_get_table_layout(bdn_worker* worker, uint32_t table, bdn_table_layout* layout) {
  return CallOn(worker, [&](bdn::Client& w) -> absl::Status {
    BDN_RETURN_IF_ERROR(bdn::CheckStruct(layout, "bdn_table_layout"));
    BDN_ASSIGN_OR_RETURN(bdn::Tables* const tables, w.tables());
    BDN_ASSIGN_OR_RETURN(const bdn::TableLayout found, tables->LayoutOf(table));
    layout->width = found.width;
    layout->moments = found.moment_floats;
    layout->buckets = found.buckets;
    layout->is_limited = found.is_limited ? 1 : 0;
    return absl::OkStatus();
  });
}

int bdn_scan_rows(bdn_worker* worker, bdn_row_scan* scan, bdn_ticket* ticket) {
  return CallOn(worker, [&](bdn::Client& w) -> absl::Status {
    if (ticket == nullptr) return bdn::InvalidArgument("ticket is null");
    BDN_ASSIGN_OR_RETURN(const bdn::RecordsScan piece, bdn::ToRecordsScan(scan));
    BDN_ASSIGN_OR_RETURN(bdn::Tables* const tables, w.tables());
    BDN_ASSIGN_OR_RETURN(*ticket, tables->Scan(piece));
    return absl::OkStatus();
  });
}

int bdn_set_row_records(bdn_worker* worker, const bdn_row_records* records, bdn_ticket* ticket) {
  return CallOn(worker, [&](bdn::Client& w) -> absl::Status {
    if (ticket == nullptr) return bdn::InvalidArgument("ticket is null");
    BDN_ASSIGN_OR_RETURN(const bdn::RecordsSet set, bdn::ToRecordsSet(records));
    BDN_ASSIGN_OR_RETURN(bdn::Tables* const tables, w.tables());
    BDN_ASSIGN_OR_RETURN(*ticket, tables->SetRecords(set));
    return absl::OkStatus();
  });
}

int bdn_servers_of(bdn_worker* worker, uint32_t tensor, int32_t* ranks, size_t capacity,
                   size_t* count) {
  return CallOn(worker, [&](bdn::Client& w) -> absl::Status {
    if (count == nullptr) return bdn::InvalidArgument("count is null");
    if (capacity > 0 && ranks == nullptr) return bdn::InvalidArgument("ranks is null");
    BDN_ASSIGN_OR_RETURN(const std::vector<bdn::Rank> servers, w.ServersOf(tensor));
    *count = servers.size();
    std::copy_n(servers.begin(), std::min(capacity, servers.size()), ranks);
    return absl::OkStatus();
  });
}

int bdn_retire(bdn_worker* worker, const uint32_t* ids, size_t count) {
  return CallOn(worker, [&](bdn::Client& w) -> absl::Status {
    if (count > 0 && ids == nullptr) return bdn::InvalidArgument("ids is null");
    return w.Retire({ids, count});
  });
}

int bdn_push_pull(bdn_worker* worker, const bdn_push* push, bdn_ticket* ticket) {
  return bdn_push_pull_all(worker, push, 1, ticket, nullptr);
}

int bdn_push_pull_all(bdn_worker* worker, const bdn_push* pushes, size_t count, bdn_ticket* tickets,
                      size_t* started) {
  if (started != nullptr) *started = 0;
  return CallOn(worker, [&](bdn::Client&) -> absl::Status {
    if (count > 0 && tickets == nullptr) return bdn::InvalidArgument("tickets is null");
    absl::Status refused;
    std::vector<bdn::DeviceExchanges::Push> checked;
    for (size_t i = 0; i < count && refused.ok(); ++i) {
      auto push = bdn::ToPush(pushes == nullptr ? nullptr : pushes + i);
      refused = push.status();
      if (refused.ok()) checked.push_back(*std::move(push));
    }
    std::vector<bdn::TicketId> opened;
    const absl::Status status = worker->exchanges->PushPullAll(std::span(checked), &opened);
    std::copy(opened.begin(), opened.end(), tickets);
    if (started != nullptr) *started = opened.size();
    // Pushes before the wrong one are started, as with single calls.
    return status.ok() ? refused : status;
  });
}

int bdn_wait(bdn_worker* worker, bdn_ticket ticket, double timeout_seconds, bdn_result* result) {
  return bdn_wait_all(worker, &ticket, 1, timeout_seconds, result, nullptr);
}

int bdn_wait_all(bdn_worker* worker, const bdn_ticket* tickets, size_t count,
                 double timeout_seconds, bdn_result* results, size_t* ended) {
  return bdn::WaitAll(worker, {tickets, count}, {}, timeout_seconds, results, ended);
}

int bdn_wait_stream(bdn_worker* worker, bdn_ticket ticket, void* stream, double timeout_seconds,
                    bdn_result* result) {
  return bdn_wait_stream_all(worker, &ticket, &stream, 1, timeout_seconds, result, nullptr);
}

int bdn_wait_stream_all(bdn_worker* worker, const bdn_ticket* tickets, void* const* streams,
                        size_t count, double timeout_seconds, bdn_result* results, size_t* ended) {
  if (count > 0 && streams == nullptr) {
    if (ended != nullptr) *ended = 0;
    return bdn::Return(bdn::InvalidArgument("streams is null"));
  }
  std::vector<bdn::DeviceStream> of_tickets(count);
  for (size_t i = 0; i < count; ++i) of_tickets[i].handle = streams[i];
  return bdn::WaitAll(worker, {tickets, count}, of_tickets, timeout_seconds, results, ended);
}

int bdn_alloc(bdn_worker* worker, uint64_t bytes, void** out) {
  return CallOn(worker, [&](bdn::Client& w) -> absl::Status {
    if (out == nullptr || bytes == 0) return bdn::InvalidArgument("out is null or bytes is 0");
    BDN_ASSIGN_OR_RETURN(*out, bdn::LentMemory().Allocate(w.memory(), bytes));
    return absl::OkStatus();
  });
}

void bdn_free_memory(void* memory) {
  if (memory != nullptr) bdn::LentMemory().Free(memory);
}

int bdn_broadcast(bdn_worker* worker, const char* name, void* data, uint64_t bytes, int root,
                  double timeout_seconds) {
  return CallOn(worker, [&](bdn::Client& w) -> absl::Status {
    if (name == nullptr || (data == nullptr && bytes > 0)) {
      return bdn::InvalidArgument("name or data is null");
    }
    return w.Broadcast(name, {static_cast<std::byte*>(data), bytes}, root,
                       bdn::Timeout(timeout_seconds));
  });
}

size_t bdn_name_among(const char* name, const int32_t* ranks, size_t num_ranks, char* out,
                      size_t capacity) {
  std::string text;
  const int code = Call([&]() -> absl::Status {
    if (name == nullptr) return bdn::InvalidArgument("name is null");
    if (ranks == nullptr) return bdn::InvalidArgument("ranks is null");
    BDN_ASSIGN_OR_RETURN(const bdn::RankGroup group, bdn::ToGroup(ranks, num_ranks));
    text = bdn::NameAmong(name, group);
    return absl::OkStatus();
  });
  return code == BDN_OK ? bdn::CopyText(text, out, capacity) : 0;
}

int bdn_broadcast_parts(bdn_worker* worker, const char* name, const bdn_bytes* parts, size_t count,
                        int root, int holds, double timeout_seconds) {
  return CallOn(worker, [&](bdn::Client& w) -> absl::Status {
    if (name == nullptr || (parts == nullptr && count > 0)) {
      return bdn::InvalidArgument("name or parts is null");
    }
    if (holds < BDN_HOLDS_UNKNOWN || holds > BDN_HOLDS_VALUE) {
      return bdn::InvalidArgument("broadcast '%s': holds is %d, not one of BDN_HOLDS_...", name,
                                  holds);
    }
    std::vector<bdn::MutableByteSpan> data;
    data.reserve(count);
    for (size_t i = 0; i < count; ++i) {
      const bool needs_data = holds != BDN_HOLDS_VALUE || root == w.rank();
      if (needs_data && parts[i].data == nullptr && parts[i].bytes > 0) {
        return bdn::InvalidArgument("broadcast '%s': part %d has no data", name, i);
      }
      data.emplace_back(static_cast<std::byte*>(parts[i].data), parts[i].bytes);
    }
    return w.BroadcastParts(
        {.name = name, .data = data, .root = root, .holding = static_cast<bdn::Holding>(holds)},
        bdn::Timeout(timeout_seconds));
  });
}

uint32_t bdn_crc32c(const void* data, uint64_t bytes) {
  if (data == nullptr) return bdn::Crc32c({});
  return bdn::Crc32c({static_cast<const std::byte*>(data), bytes});
}

int bdn_barrier(bdn_worker* worker, const char* name, double timeout_seconds) {
  return CallOn(worker, [&](bdn::Client& w) {
    return w.Barrier(name == nullptr ? "" : name, bdn::Timeout(timeout_seconds));
  });
}

int bdn_meet(bdn_worker* worker, const char* name, double timeout_seconds, int32_t* ranks,
             size_t capacity, size_t* count) {
  return CallOn(worker, [&](bdn::Client& w) -> absl::Status {
    if (count == nullptr || (ranks == nullptr && capacity > 0)) {
      return bdn::InvalidArgument("ranks or count is null");
    }
    BDN_ASSIGN_OR_RETURN(const std::vector<bdn::Rank> present,
                         w.Meet(name == nullptr ? "" : name, bdn::Timeout(timeout_seconds)));
    *count = present.size();
    std::copy_n(present.begin(), std::min(capacity, present.size()), ranks);
    return absl::OkStatus();
  });
}

int bdn_boundary(bdn_worker* worker, double timeout_seconds, int32_t* newcomers, size_t capacity,
                 size_t* count) {
  return CallOn(worker, [&](bdn::Client& w) -> absl::Status {
    if (count == nullptr || (newcomers == nullptr && capacity > 0)) {
      return bdn::InvalidArgument("newcomers or count is null");
    }
    BDN_ASSIGN_OR_RETURN(const std::vector<bdn::Rank> ranks,
                         w.Boundary(bdn::Timeout(timeout_seconds)));
    *count = ranks.size();
    std::copy_n(ranks.begin(), std::min(capacity, ranks.size()), newcomers);
    return absl::OkStatus();
  });
}

int bdn_host_ranks(const bdn_worker* worker, int rank, int* first, int* count) {
  return CallOn(worker, [&](const bdn::Client& w) -> absl::Status {
    if (first == nullptr || count == nullptr) {
      return bdn::InvalidArgument("first or count is null");
    }
    int begin = 0;
    for (const int of_host : w.processes()) {
      if (rank >= begin && rank < begin + of_host) {
        *first = begin;
        *count = of_host;
        return absl::OkStatus();
      }
      begin += of_host;
    }
    return bdn::InvalidArgument("rank %d: the job has ranks 0 to %d", rank, begin - 1);
  });
}

int bdn_report(bdn_worker* worker, const char* name, uint64_t step, double value) {
  return CallOn(worker, [&](bdn::Client& w) {
    return w.ReportValue({name == nullptr ? "" : name, step, value});
  });
}

int bdn_records(const bdn_worker* worker) {
  // The number of a forked child would be its parent's.
  if (worker == nullptr || worker->owner != getpid()) return 0;
  return worker->client->program_records().recorder != nullptr ? 1 : 0;
}

int bdn_marks(bdn_worker* worker, const bdn_mark* marks, size_t count) {
  return bdn::CallOn(worker, [&](bdn::Client& w) { return bdn::RecordMarks(&w, {marks, count}); });
}

int bdn_write_recording(bdn_worker* worker, const char* directory, char* path, size_t capacity) {
  return bdn::CallOn(worker, [&](bdn::Client& w) -> absl::Status {
    if (directory == nullptr) return bdn::InvalidArgument("directory is null");
    bdn::Recorder* const recorder = w.program_records().recorder;
    if (recorder == nullptr) {
      return bdn::FailedPrecondition(
          "this worker records nothing: settings recorder-bytes and trace are off");
    }
    BDN_ASSIGN_OR_RETURN(const std::string written, recorder->WriteTo(directory));
    bdn::CopyText(written, path, capacity);
    return absl::OkStatus();
  });
}

int bdn_get_state(bdn_worker* worker, uint32_t tensor, const char* what, float* out,
                  uint64_t elements) {
  return bdn::Perform(
      worker, bdn::OfLink({.what = What::kGet, .tensor = tensor, .out = {out, elements}}, what), 0);
}

int bdn_set_state(bdn_worker* worker, uint32_t tensor, const char* what, const float* in,
                  uint64_t elements) {
  return bdn::Perform(
      worker, bdn::OfLink({.what = What::kSet, .tensor = tensor, .in = {in, elements}}, what), 0);
}

int bdn_get_step(bdn_worker* worker, uint32_t tensor, uint64_t* step) {
  return bdn::Perform(worker, StateCall{.what = What::kGetStep, .tensor = tensor}, 0,
                      {.step = step});
}

int bdn_set_step(bdn_worker* worker, uint32_t tensor, uint64_t step) {
  return bdn::Perform(worker, StateCall{.what = What::kSetStep, .tensor = tensor, .step = step}, 0);
}

const char* bdn_rules_help(void) {
  static const std::string help = bdn::DescribeRules();
  return help.c_str();
}

int bdn_check_rule(const char* rule, char* canonical, size_t capacity) {
  return Call([&]() -> absl::Status {
    if (rule == nullptr) return bdn::InvalidArgument("rule is null");
    BDN_ASSIGN_OR_RETURN(const bdn::RuleSpec spec, bdn::RuleSpec::Parse(rule));
    bdn::CopyText(spec.text(), canonical, capacity);
    return absl::OkStatus();
  });
}

int bdn_fetch_weights(bdn_worker* worker, uint32_t tensor, float* out, uint64_t elements,
                      double timeout_seconds) {
  return bdn::Perform(worker,
                      StateCall{.what = What::kFetchWeights,
                                .where = Where::kServer,
                                .tensor = tensor,
                                .out = {out, elements}},
                      timeout_seconds);
}

int bdn_sync_weights(bdn_worker* worker, uint32_t tensor, float* weights, uint64_t elements,
                     double timeout_seconds) {
  return bdn::Perform(worker,
                      StateCall{.what = What::kSyncWeights,
                                .where = Where::kServer,
                                .tensor = tensor,
                                .out = {weights, elements}},
                      timeout_seconds);
}

int bdn_get_server_state(bdn_worker* worker, uint32_t tensor, const char* what, float* out,
                         uint64_t elements, double timeout_seconds) {
  return bdn::Perform(
      worker, bdn::OfServers({.what = What::kGet, .tensor = tensor, .out = {out, elements}}, what),
      timeout_seconds);
}

int bdn_set_server_state(bdn_worker* worker, uint32_t tensor, const char* what, const float* in,
                         uint64_t elements, uint64_t step, double timeout_seconds) {
  return bdn::Perform(
      worker,
      bdn::OfServers({.what = What::kSet, .tensor = tensor, .step = step, .in = {in, elements}},
                     what),
      timeout_seconds);
}

int bdn_get_server_counters(bdn_worker* worker, uint32_t tensor, uint64_t* updates,
                            float* previous_learning_rate, double timeout_seconds) {
  return bdn::Perform(
      worker, StateCall{.what = What::kGetCounters, .where = Where::kServer, .tensor = tensor},
      timeout_seconds, {.updates = updates, .previous_learning_rate = previous_learning_rate});
}

int bdn_set_server_counters(bdn_worker* worker, uint32_t tensor, uint64_t updates,
                            float previous_learning_rate, uint64_t step, double timeout_seconds) {
  return bdn::Perform(worker,
                      StateCall{.what = What::kSetCounters,
                                .where = Where::kServer,
                                .tensor = tensor,
                                .step = step,
                                .counters = {updates, previous_learning_rate}},
                      timeout_seconds);
}

int bdn_set_server_rule(bdn_worker* worker, const uint32_t* tensors, size_t count, const char* rule,
                        double timeout_seconds) {
  return bdn::Perform(worker, bdn::SetRule({tensors, count}, rule), timeout_seconds);
}

size_t bdn_stats_json(bdn_worker* worker, char* out, size_t capacity) {
  std::string text;
  const int code = CallOn(worker, [&](bdn::Client&) {
    text = worker->context.telemetry.Json();
    return absl::OkStatus();
  });
  return code == BDN_OK ? bdn::CopyText(text, out, capacity) : 0;
}

size_t bdn_json_log_line(const char* level, const char* message, double unix_seconds, char* out,
                         size_t capacity) {
  // The caller then formats the line itself.
  if (bdn::CurrentLogFormat() != bdn::LogFormat::kJson) return 0;
  bdn::LogLevel parsed = bdn::LogLevel::kInfo;
  if (level == nullptr || !bdn::ParseLogLevel(level, &parsed).ok()) parsed = bdn::LogLevel::kInfo;
  const absl::Time time = absl::UnixEpoch() + absl::Seconds(unix_seconds);
  std::string line;
  (void)Call([&] {
    line = bdn::JsonLogLine(time, parsed, "bandoneon", message == nullptr ? "" : message);
    return absl::OkStatus();
  });
  return bdn::CopyText(line, out, capacity);
}

int bdn_status_json(const bdn_options* options, double timeout_seconds, char* out, size_t capacity,
                    size_t* needed) {
  return Call([&]() -> absl::Status {
    BDN_ASSIGN_OR_RETURN(const std::vector<std::string> flags, bdn::Flags(options));
    BDN_ASSIGN_OR_RETURN(const std::string text,
                         bdn::AskStatus(flags, bdn::Timeout(timeout_seconds)));
    const size_t size = bdn::CopyText(text, out, capacity);
    if (needed != nullptr) *needed = size;
    return absl::OkStatus();
  });
}

int bdn_dump_traces(const bdn_options* options, const char* nodes, double last_seconds,
                    double patience_seconds,
                    void (*take)(void* context, const bdn_dumped_node* node), void* context) {
  return Call([&]() -> absl::Status {
    if (take == nullptr) return bdn::InvalidArgument("take is null");
    BDN_ASSIGN_OR_RETURN(const std::vector<std::string> flags, bdn::Flags(options));
    bdn::DumpRequest request{.patience = bdn::Timeout(patience_seconds)};
    if (last_seconds > 0) request.last = bdn::Timeout(last_seconds);
    BDN_ASSIGN_OR_RETURN(request.nodes, bdn::ParseDumpNodes(nodes == nullptr ? "" : nodes));
    return bdn::AskForTraces(flags, request, [&](const bdn::DumpedNode& of) {
      const std::string failure(of.end.message());
      const bdn_dumped_node node = {of.job.c_str(),
                                    bdn::RoleName(of.node.role),
                                    of.node.host.c_str(),
                                    of.node.rank,
                                    of.node.id,
                                    bdn::NumberOf(of.end),
                                    static_cast<uint32_t>(of.asked),
                                    static_cast<uint32_t>(of.left_out),
                                    0,
                                    failure.c_str(),
                                    of.recording.data(),
                                    of.recording.size()};
      take(context, &node);
    });
  });
}

int bdn_describe_devices(const bdn_options* options, char* out, size_t capacity, size_t* needed) {
  return Call([&]() -> absl::Status {
    BDN_ASSIGN_OR_RETURN(const std::vector<std::string> flags, bdn::Flags(options));
    BDN_ASSIGN_OR_RETURN(const bdn::Config config, bdn::LoadWorkerConfig(flags));
    const size_t size = bdn::CopyText(bdn::DescribeDevices(config), out, capacity);
    if (needed != nullptr) *needed = size;
    return absl::OkStatus();
  });
}

const char* bdn_codecs_help(void) {
  static const std::string help = bdn::DescribeCodecs();
  return help.c_str();
}

int bdn_codec_traits(const char* spec, uint32_t* traits) {
  return Call([&]() -> absl::Status {
    if (spec == nullptr || traits == nullptr) {
      return bdn::InvalidArgument("spec or traits is null");
    }
    BDN_ASSIGN_OR_RETURN(const bdn::CodecSchedule schedule, bdn::ParseCodecSchedule(spec));
    *traits = bdn::TraitsOf(schedule);
    return absl::OkStatus();
  });
}

int bdn_check_codec(const char* spec, char* canonical, size_t capacity) {
  return Call([&]() -> absl::Status {
    if (spec == nullptr) return bdn::InvalidArgument("spec is null");
    BDN_ASSIGN_OR_RETURN(const bdn::CodecSchedule schedule, bdn::ParseCodecSchedule(spec));
    bdn::CopyText(schedule.spec(), canonical, capacity);
    return absl::OkStatus();
  });
}

}  // extern "C"
