#include "scheduler/job_journal.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/numbers.h"
#include "common/base/fault_point.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/cluster/control_messages.h"
#include "proto/control.pb.h"
#include "proto/journal.pb.h"

namespace bdn {
namespace {

namespace wire = bandoneon::control;
namespace journal = bandoneon::journal;

// The types of records. A type is never used again for something else.
enum RecordType : uint8_t {
  kBegun = 1,
  kDeclared = 2,
  kReached = 3,
  kLeft = 4,
  kInstalled = 5,
  kRetired = 6,
  kLost = 7,
  kCallEnded = 8,
  kStopped = 9,
  kResumed = 10,
  kBarrier = 11,
  kAnswers = 12,
  kOver = 13,  // the job has ended
  kPort = 14,  // in decimal digits; of the scheduler, not of a job
  kServer = 15,
  kCandidate = 16,
  kCandidateGone = 17,
  kTakenIn = 18,
};

// Bytes of the records of barriers after which the journal is made short.
constexpr uint64_t kMostBarrierBytes = uint64_t{8} << 20;

template <typename Message>
JournalRecord Make(RecordType type, const Message& message) {
  return {type, message.SerializeAsString()};
}

JournalRecord Encode(const JobBegun& event) {
  journal::BeginRecord message;
  message.set_control_version(kControlVersion);
  Write(event.config, message.mutable_config());
  message.set_max_job_bytes(event.limits.max_job_bytes);
  message.set_max_tensors(event.limits.max_tensors);
  message.set_max_name_bytes(event.limits.max_name_bytes);
  message.set_data_secret(event.data_secret);
  Write(*event.membership, message.mutable_membership());
  for (const auto* nodes : {&event.membership->workers, &event.membership->servers}) {
    for (const NodeInfo& node : *nodes) message.add_join_ids(event.join_ids.at(node.id));
  }
  return Make(kBegun, message);
}

JournalRecord Encode(const PartDeclared& event) {
  wire::DeclareRequest message;
  message.mutable_caller()->set_node(event.node);
  Write(event.part, &message);
  return Make(kDeclared, message);
}

JournalRecord Encode(const BarrierReached& event) {
  wire::BarrierRequest message;
  message.mutable_caller()->set_node(event.node);
  message.set_name(event.barrier);
  message.set_number(event.number);
  return Make(kReached, message);
}

JournalRecord Encode(const NodeLeft& event) {
  wire::LeaveRequest message;
  message.mutable_caller()->set_node(event.node);
  Write(event.reason, message.mutable_reason());
  return Make(kLeft, message);
}

JournalRecord Encode(const PlacementInstalled& event) {
  wire::AcknowledgeRequest message;
  message.mutable_caller()->set_node(event.node);
  Write(event.version, message.mutable_version());
  return Make(kInstalled, message);
}

JournalRecord Encode(const TensorsRetired& event) {
  journal::RetireRecord message;
  message.set_node(event.node);
  message.mutable_tensors()->Add(event.tensors.begin(), event.tensors.end());
  return Make(kRetired, message);
}

JournalRecord Encode(const NodeLost& event) {
  journal::LossRecord message;
  message.set_node(event.node);
  message.set_how(event.how);
  return Make(kLost, message);
}

JournalRecord Encode(const CallEnded& event) {
  journal::CallEndRecord message;
  message.set_node(event.node);
  message.set_kind(static_cast<uint32_t>(event.subject.kind));
  message.set_batch(event.subject.batch);
  message.set_barrier(event.subject.barrier);
  return Make(kCallEnded, message);
}

JournalRecord Encode(const JobStopped& event) {
  journal::StopRecord message;
  message.set_why(event.why);
  return Make(kStopped, message);
}

JournalRecord Encode(const JobResumed&) { return {kResumed, ""}; }

JournalRecord Encode(const BarrierState& event) {
  journal::BarrierRecord message;
  message.set_barrier(event.barrier);
  for (const auto& [node, numbers] : event.arrivals) {
    journal::BarrierRecord::Arrival* const arrival = message.add_arrivals();
    arrival->set_node(node);
    arrival->mutable_numbers()->Add(numbers.begin(), numbers.end());
  }
  return Make(kBarrier, message);
}

JournalRecord Encode(const ArrivalsAnswered& event) {
  journal::AnswersRecord message;
  message.set_node(event.node);
  for (const auto& [number, met] : event.answers) {
    journal::AnswersRecord::Answer* const answer = message.add_answers();
    answer->set_number(number);
    answer->mutable_vacant()->Add(met.vacant.begin(), met.vacant.end());
    answer->set_epoch(met.epoch);
    answer->mutable_newcomers()->Add(met.newcomers.begin(), met.newcomers.end());
  }
  return Make(kAnswers, message);
}

JournalRecord Encode(const ServerJoined& event) {
  journal::ServerRecord message;
  Write(event.server, message.mutable_server());
  message.set_join_id(event.join_id);
  message.set_lost(event.lost);
  message.set_how(event.how);
  return Make(kServer, message);
}

JournalRecord Encode(const CandidateJoined& event) {
  journal::CandidateRecord message;
  Write(event.worker, message.mutable_worker());
  message.set_join_id(event.join_id);
  return Make(kCandidate, message);
}

JournalRecord Encode(const CandidateGone& event) {
  journal::CandidateGoneRecord message;
  message.set_node(event.node);
  return Make(kCandidateGone, message);
}

JournalRecord Encode(const BoundaryEnded& event) {
  journal::BoundaryRecord message;
  message.set_boundary(event.boundary);
  for (const auto& [node, numbers] : event.taken_in) {
    journal::BoundaryRecord::Newcomer* const newcomer = message.add_newcomers();
    newcomer->set_node(node);
    newcomer->mutable_numbers()->Add(numbers.begin(), numbers.end());
  }
  return Make(kTakenIn, message);
}

template <typename Message>
absl::StatusOr<Message> Parse(const JournalRecord& record) {
  Message message;
  if (message.ParseFromString(record.payload)) return message;
  return InvalidArgument("a record of type %d cannot be read", record.type);
}

absl::StatusOr<JobEvent> DecodeBegun(const JournalRecord& record) {
  BDN_ASSIGN_OR_RETURN(const auto message, Parse<journal::BeginRecord>(record));
  if (message.control_version() != kControlVersion) {
    return InvalidArgument(
        "the job was begun by a scheduler that speaks control version %d, and this one speaks %d: "
        "start a scheduler of that version to end the job, or remove the directory",
        message.control_version(), kControlVersion);
  }
  JobBegun event;
  event.data_secret = message.data_secret();
  event.limits = {message.max_job_bytes(), message.max_tensors(), message.max_name_bytes()};
  BDN_ASSIGN_OR_RETURN(event.config, Read(message.config()));
  BDN_ASSIGN_OR_RETURN(Membership membership, Read(message.membership()));
  const size_t nodes = membership.workers.size() + membership.servers.size();
  const auto first = static_cast<size_t>(event.config.NumFirstWorkers());
  const auto all = static_cast<size_t>(event.config.num_workers);
  if (membership.workers.size() != first ||
      membership.servers.size() != static_cast<size_t>(event.config.num_servers) ||
      static_cast<size_t>(message.join_ids_size()) != nodes ||
      membership.vacant.size() != all - first ||
      (first < all && (membership.vacant.front() != static_cast<Rank>(first) ||
                       membership.vacant.back() != static_cast<Rank>(all) - 1)) ||
      !membership.moved.empty()) {
    return InvalidArgument("a job of %d workers and %d servers begins with %d and %d", first,
                           event.config.num_servers, membership.workers.size(),
                           membership.servers.size());
  }
  int next = 0;
  for (const auto* list : {&membership.workers, &membership.servers}) {
    for (size_t rank = 0; rank < list->size(); ++rank) {
      const NodeInfo& node = (*list)[rank];
      const Role role = list == &membership.workers ? Role::kWorker : Role::kServer;
      if (node.role != role || node.rank != static_cast<Rank>(rank)) {
        return InvalidArgument("node %d of the membership is not at its place", node.id);
      }
      event.join_ids[node.id] = message.join_ids(next++);
    }
  }
  if (event.join_ids.size() != nodes) return InvalidArgument("two nodes have the same number");
  event.membership = std::make_shared<const Membership>(std::move(membership));
  return event;
}

absl::StatusOr<JobEvent> DecodeCallEnded(const JournalRecord& record) {
  BDN_ASSIGN_OR_RETURN(const auto message, Parse<journal::CallEndRecord>(record));
  using Kind = WaitSubject::Kind;
  for (const Kind kind : {Kind::kDeclare, Kind::kBarrier, Kind::kLeave}) {
    if (message.kind() != static_cast<uint32_t>(kind)) continue;
    return CallEnded{message.node(), {kind, message.batch(), message.barrier()}};
  }
  return InvalidArgument("a call of kind %d has ended", message.kind());
}

absl::StatusOr<JobEvent> DecodeLeft(const JournalRecord& record) {
  BDN_ASSIGN_OR_RETURN(const auto message, Parse<wire::LeaveRequest>(record));
  return NodeLeft{message.caller().node(),
                  message.reason().code() == 0 ? absl::OkStatus() : ReadFailure(message.reason())};
}

absl::StatusOr<JobEvent> DecodeAnswers(const JournalRecord& record) {
  BDN_ASSIGN_OR_RETURN(const auto message, Parse<journal::AnswersRecord>(record));
  ArrivalsAnswered event{.node = message.node()};
  for (const auto& answer : message.answers()) {
    BDN_ASSIGN_OR_RETURN(
        event.answers[answer.number()],
        ReadMet({answer.vacant().data(), static_cast<size_t>(answer.vacant().size())},
                answer.epoch(),
                {answer.newcomers().data(), static_cast<size_t>(answer.newcomers().size())}));
  }
  return event;
}

absl::StatusOr<JobEvent> DecodeServer(const JournalRecord& record) {
  BDN_ASSIGN_OR_RETURN(const auto message, Parse<journal::ServerRecord>(record));
  ServerJoined event{.join_id = message.join_id(), .lost = message.lost(), .how = message.how()};
  BDN_ASSIGN_OR_RETURN(event.server, Read(message.server()));
  return event;
}

absl::StatusOr<JobEvent> DecodeCandidate(const JournalRecord& record) {
  BDN_ASSIGN_OR_RETURN(const auto message, Parse<journal::CandidateRecord>(record));
  CandidateJoined event{.join_id = message.join_id()};
  BDN_ASSIGN_OR_RETURN(event.worker, Read(message.worker()));
  return event;
}

absl::StatusOr<JobEvent> DecodeBoundary(const JournalRecord& record) {
  BDN_ASSIGN_OR_RETURN(const auto message, Parse<journal::BoundaryRecord>(record));
  BoundaryEnded event{.boundary = message.boundary()};
  for (const auto& each : message.newcomers()) {
    event.taken_in[each.node()] = {each.numbers().begin(), each.numbers().end()};
  }
  return event;
}

bool IsOfBarriers(const JobEvent& event) {
  if (const auto* ended = std::get_if<CallEnded>(&event)) {
    return ended->subject.kind == WaitSubject::Kind::kBarrier;
  }
  return std::holds_alternative<BarrierReached>(event) ||
         std::holds_alternative<BarrierState>(event) ||
         (std::holds_alternative<BoundaryEnded>(event) &&
          std::get<BoundaryEnded>(event).taken_in.empty()) ||
         std::holds_alternative<ArrivalsAnswered>(event);
}

// Returns InvalidArgument, which names the first setting that differs.
absl::Status CheckSameSettings(const JobBegun& begun, const JobOptions& options) {
  const JobConfig& was = begun.config;
  const JobConfig& is = options.config;
  const std::pair<const char*, bool> same[] = {
      {"workers", was.NumFirstWorkers() == is.NumFirstWorkers()},
      {"max-workers", was.num_workers == is.num_workers},
      {"servers", was.num_servers == is.num_servers},
      {"seed", was.run_seed == is.run_seed},
      {"min-workers", was.min_workers == is.min_workers},
      {"stuck-timeout", was.stuck_timeout == is.stuck_timeout},
      {"link-timeout", was.link_timeout == is.link_timeout},
      {"scheduler-timeout", was.scheduler_timeout == is.scheduler_timeout},
      {"replay-steps", was.replay_steps == is.replay_steps},
      {"partition-bytes", was.partition_bytes == is.partition_bytes},
      {"fusion-bytes", was.fusion_bytes == is.fusion_bytes},
      {"min-compress-bytes", was.min_compress_bytes == is.min_compress_bytes},
      {"row-buckets", was.row_buckets == is.row_buckets},
      {"heartbeat-interval", was.heartbeat_interval == is.heartbeat_interval},
      {"lease-timeout", was.lease_timeout == is.lease_timeout},
      // These decide what is declared, so the same events must meet the same limits.
      {"max-job-bytes", begun.limits.max_job_bytes == options.limits.max_job_bytes},
      {"max-tensors", begun.limits.max_tensors == options.limits.max_tensors},
      {"max-name-bytes", begun.limits.max_name_bytes == options.limits.max_name_bytes},
  };
  for (const auto& [name, is_same] : same) {
    if (is_same) continue;
    return InvalidArgument(
        "job '%s', which it keeps, was begun with another %s: start the scheduler with the "
        "settings that it had, or remove the directory to begin the job anew",
        was.job_id, name);
  }
  return absl::OkStatus();
}

}  // namespace

JournalRecord ToRecord(const JobEvent& event) {
  return std::visit([](const auto& one) { return Encode(one); }, event);
}

absl::StatusOr<JobEvent> FromRecord(const JournalRecord& record) {
  switch (record.type) {
    case kBegun:
      return DecodeBegun(record);
    case kDeclared: {
      BDN_ASSIGN_OR_RETURN(const auto message, Parse<wire::DeclareRequest>(record));
      PartDeclared event{.node = message.caller().node()};
      BDN_ASSIGN_OR_RETURN(event.part, Read(message));
      return event;
    }
    case kReached: {
      BDN_ASSIGN_OR_RETURN(const auto message, Parse<wire::BarrierRequest>(record));
      return BarrierReached{message.caller().node(), message.name(), message.number()};
    }
    case kLeft:
      return DecodeLeft(record);
    case kInstalled: {
      BDN_ASSIGN_OR_RETURN(const auto message, Parse<wire::AcknowledgeRequest>(record));
      return PlacementInstalled{message.caller().node(), Read(message.version())};
    }
    case kRetired: {
      BDN_ASSIGN_OR_RETURN(const auto message, Parse<journal::RetireRecord>(record));
      return TensorsRetired{message.node(), {message.tensors().begin(), message.tensors().end()}};
    }
    case kLost: {
      BDN_ASSIGN_OR_RETURN(const auto message, Parse<journal::LossRecord>(record));
      return NodeLost{message.node(), message.how()};
    }
    case kCallEnded:
      return DecodeCallEnded(record);
    case kStopped: {
      BDN_ASSIGN_OR_RETURN(const auto message, Parse<journal::StopRecord>(record));
      return JobStopped{message.why()};
    }
    case kResumed:
      return JobResumed();
    case kBarrier: {
      BDN_ASSIGN_OR_RETURN(const auto message, Parse<journal::BarrierRecord>(record));
      BarrierState event{.barrier = message.barrier()};
      for (const auto& each : message.arrivals()) {
        event.arrivals[each.node()] = {each.numbers().begin(), each.numbers().end()};
      }
      return event;
    }
    case kAnswers:
      return DecodeAnswers(record);
    case kServer:
      return DecodeServer(record);
    case kCandidate:
      return DecodeCandidate(record);
    case kCandidateGone: {
      BDN_ASSIGN_OR_RETURN(const auto message, Parse<journal::CandidateGoneRecord>(record));
      return CandidateGone{message.node()};
    }
    case kTakenIn:
      return DecodeBoundary(record);
    default:
      return InvalidArgument("a record has the type %d, which this version does not know",
                             record.type);
  }
}

absl::StatusOr<std::unique_ptr<JobJournal>> JobJournal::Open(const std::string& directory,
                                                             const std::string& job_id,
                                                             const JobOptions& options,
                                                             JournalFile::Fault fault) {
  BDN_ASSIGN_OR_RETURN(JournalFile::Opened opened,
                       JournalFile::Open(directory, job_id, std::move(fault)));
  std::unique_ptr<JobJournal> made(new JobJournal(std::move(opened.journal), directory));
  if (absl::Status read = made->ReadEvents(opened.records, options); !read.ok()) {
    return Annotate(read, absl::StrFormat("the journal in %s", directory));
  }
  if (made->former_.empty()) return made;
  opened.records.push_back(ToRecord(JobResumed()));
  made->lasting_.push_back(opened.records.back());
  BDN_RETURN_IF_ERROR(made->file_->Begin(opened.records));
  return made;
}

absl::Status JobJournal::ReadEvents(const std::vector<JournalRecord>& records,
                                    const JobOptions& options) {
  const bool is_over = !records.empty() && records.back().type == kOver;
  for (const JournalRecord& record : records) {
    if (record.type == kPort) {
      if (!absl::SimpleAtoi(record.payload, &port_) || port_ < 1 || port_ > 65535) {
        return InvalidArgument("the port '%s' is none", record.payload);
      }
      lasting_.push_back(record);
      continue;
    }
    if (is_over) continue;
    BDN_ASSIGN_OR_RETURN(JobEvent event, FromRecord(record));
    if (std::holds_alternative<JobBegun>(event) != former_.empty()) {
      return InvalidArgument("it does not begin with the beginning of a job, or has two");
    }
    if (IsOfBarriers(event)) {
      barrier_bytes_ += record.payload.size();
    } else {
      lasting_.push_back(record);
    }
    former_.push_back(std::move(event));
  }
  if (former_.empty()) return absl::OkStatus();
  return CheckSameSettings(std::get<JobBegun>(former_.front()), options);
}

absl::StatusOr<JobHost::Logged> JobJournal::BeginJob(JobOptions* options) {
  JobHost::Logged logged{.log = this, .events = std::exchange(former_, {})};
  if (logged.events.empty()) {
    std::erase_if(lasting_, [](const JournalRecord& record) { return record.type != kPort; });
    barrier_bytes_ = 0;
    BDN_RETURN_IF_ERROR(Begin(lasting_));
    return logged;
  }
  const auto& begun = std::get<JobBegun>(logged.events.front());
  options->config = begun.config;
  options->data_secret = begun.data_secret;
  return logged;
}

absl::Status JobJournal::SetPort(int port) {
  if (port == port_) return absl::OkStatus();
  port_ = port;
  JournalRecord record{kPort, absl::StrFormat("%d", port)};
  lasting_.push_back(record);
  return AppendRecord(std::move(record));
}

absl::Status JobJournal::EndJob() { return AppendRecord({kOver, ""}); }

absl::Status JobJournal::Begin(std::vector<JournalRecord> records) {
  absl::Status status = file_->Begin(records);
  if (status.ok()) {
    to_begin_.reset();
  } else {
    to_begin_ = std::move(records);
  }
  return status;
}

absl::Status JobJournal::Append(const JobEvent& event) {
  JournalRecord record = ToRecord(event);
  BDN_RETURN_IF_ERROR(AppendRecord(record));
  FaultPoint("journal.written");
  if (IsOfBarriers(event)) {
    barrier_bytes_ += record.payload.size();
  } else {
    lasting_.push_back(std::move(record));
  }
  return absl::OkStatus();
}

absl::Status JobJournal::AppendRecord(JournalRecord record) {
  absl::Status status;
  if (to_begin_.has_value()) {
    status = Begin(*std::exchange(to_begin_, std::nullopt));
  }
  if (status.ok()) status = file_->Append(record.type, std::move(record.payload));
  Report(status);
  return status;
}

void JobJournal::Report(const absl::Status& status) {
  if (status.ok() && is_failing_) LogInfo("the journal in %s is written again", directory_);
  if (!status.ok() && !is_failing_) {
    LogError(
        "the journal in %s cannot be written: %s. Until it can be, nothing about the job "
        "changes; training goes on",
        directory_, status.message());
  }
  is_failing_ = !status.ok();
}

bool JobJournal::IsLong() const { return barrier_bytes_ > kMostBarrierBytes; }

void JobJournal::Shorten(const std::vector<JobEvent>& barriers) {
  barrier_bytes_ = 0;
  std::vector<JournalRecord> records = lasting_;
  for (const JobEvent& event : barriers) records.push_back(ToRecord(event));
  // After an error the next append begins the generation.
  (void)Begin(std::move(records));
}

}  // namespace bdn
