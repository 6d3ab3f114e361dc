// Any payload of a record of a journal is an event of a job, or is refused; an event that was taken
// is written as a record that says the same. A job that takes up any such events goes on, and so
// does one that takes up its own barriers after that.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/log.h"
#include "scheduler/job.h"
#include "scheduler/job_journal.h"
#include "tests/fuzz/fuzz_input.h"

namespace bdn {
namespace {

constexpr uint8_t kTypes = 20;  // a little more than there are

JobBegun Begun() {
  JobBegun begun;
  begun.config.num_workers = 2;
  begun.config.num_servers = 2;
  begun.config.min_workers = 1;
  begun.config.replay_steps = 32;
  auto membership = std::make_shared<Membership>();
  membership->epoch = 1;
  for (Rank rank = 0; rank < 2; ++rank) {
    const auto id = static_cast<NodeId>(rank + 1);
    membership->workers.push_back({.id = id, .role = Role::kWorker, .rank = rank, .host = "h:1"});
    membership->servers.push_back({.id = id + 2,
                                   .role = Role::kServer,
                                   .rank = rank,
                                   .endpoints = {EndpointOf("tcp://10.0.0.1:7000")},
                                   .host = "h:2"});
    begun.join_ids[id] = id;
    begun.join_ids[id + 2] = id + 2;
  }
  membership->MakeIndex();
  begun.membership = std::move(membership);
  return begun;
}

// A part of a declaration of the tensors a, b or c, or of two of them.
PartDeclared MadeDeclaration(NodeId node, uint64_t number, fuzz::FuzzInput* input) {
  std::vector<TensorDeclaration> tensors;
  const uint8_t bits = input->Get<uint8_t>();
  for (int i = 0; i < 3; ++i) {
    TensorDeclaration tensor;
    tensor.name = std::string(1, static_cast<char>('a' + i));
    tensor.elements = bits >> 6 == 3 ? 7 : 10;
    if ((bits >> i & 1) != 0) tensors.push_back(tensor);
  }
  PartDeclared event{node, {.number = number, .digest = DigestOf(tensors)}};
  event.part.count = static_cast<uint32_t>(tensors.size());
  // All of them, the digest alone, or a part.
  const size_t first = (bits >> 3 & 3) == 3 && !tensors.empty() ? 1 : 0;
  event.part.first = static_cast<uint32_t>(first);
  if ((bits >> 3 & 3) != 1) {
    event.part.tensors.assign(tensors.begin() + static_cast<ptrdiff_t>(first), tensors.end());
  }
  if ((bits >> 3 & 3) == 2 && !event.part.tensors.empty()) event.part.tensors.resize(1);
  return event;
}

// The events that inputs hardly ever have by themselves.
JobEvent MadeEvent(fuzz::FuzzInput* input) {
  const auto node = static_cast<NodeId>(input->Get<uint8_t>() % 8);
  const std::string name(1, static_cast<char>('a' + input->Get<uint8_t>() % 3));
  const uint64_t number = input->Get<uint8_t>() % 4;
  switch (input->Get<uint8_t>() % 14) {
    case 0:
      return BarrierReached{node, name, number};
    case 1:
      return NodeLeft{node, number == 0 ? absl::UnavailableError("left") : absl::OkStatus()};
    case 2:
      return NodeLost{node, "is lost"};
    case 3:
      return CallEnded{node,
                       {number % 2 == 0 ? WaitSubject::Kind::kBarrier : WaitSubject::Kind::kLeave,
                        0, number % 2 == 0 ? name : ""}};
    case 4:
      return JobResumed();
    case 5:
      return BarrierState{name, {{node, {number}}}};
    case 6:
      return ArrivalsAnswered{node, {{number, {}}}};
    case 7: {
      ServerJoined joined{.join_id = 100 + number, .lost = node, .how = "is lost"};
      joined.server = {.id = static_cast<NodeId>(5 + input->Get<uint8_t>() % 4),
                       .role = Role::kServer,
                       .rank = static_cast<Rank>(input->Get<uint8_t>() % 3),
                       .endpoints = {EndpointOf("tcp://10.0.0.2:7000")},
                       .host = "h:3"};
      if (number % 2 == 0) joined.lost = 0;
      return joined;
    }
    case 8: {
      NodeInfo worker{.id = static_cast<NodeId>(5 + input->Get<uint8_t>() % 4),
                      .role = Role::kWorker,
                      .rank = static_cast<Rank>(number % 2),
                      .host = "h:4"};
      return CandidateJoined{worker, 200 + number};
    }
    case 9:
      return BoundaryEnded{kBoundary, {{static_cast<NodeId>(5 + number), {}}}};
    case 10:
    case 11:
      return MadeDeclaration(node, number, input);
    case 12:
      return TensorsRetired{node, {static_cast<uint32_t>(number)}};
    default:
      return PlacementInstalled{node, {1, static_cast<uint32_t>(number)}};
  }
}

void CheckRecord(const JobEvent& event) {
  const JournalRecord record = ToRecord(event);
  const auto read = FromRecord(record);
  fuzz::Require(read.ok() && read->index() == event.index());
  const JournalRecord again = ToRecord(*read);
  fuzz::Require(again.type == record.type && again.payload == record.payload);
}

class NoLog final : public JobLog {
 public:
  absl::Status Append(const JobEvent& event) override {
    CheckRecord(event);
    return absl::OkStatus();
  }
  State state() const override { return {}; }
  bool IsLong() const override { return false; }
  void Shorten(const std::vector<JobEvent>&) override {}
};

void Run(fuzz::FuzzInput input) {
  JobBegun begun = Begun();
  std::vector<JobEvent> events = {begun};
  while (!input.empty() && events.size() < 64) {
    if (input.Get<uint8_t>() % 2 == 0) {
      events.push_back(MadeEvent(&input));
      CheckRecord(events.back());
      continue;
    }
    const auto type = static_cast<uint8_t>(input.Get<uint8_t>() % kTypes);
    const std::vector<std::byte> bytes = input.Bytes(input.Get<uint8_t>());
    auto event =
        FromRecord({type, std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size())});
    if (!event.ok()) continue;
    CheckRecord(*event);
    // A journal with two beginnings is refused.
    if (!std::holds_alternative<JobBegun>(*event)) events.push_back(*std::move(event));
  }
  NoLog log;
  JobOptions options{.config = begun.config};
  const absl::Time now = absl::UnixEpoch();
  class Job job(options, now, &log);
  job.Resume(events, now);
  (void)job.Waits();
  for (NodeId node = 0; node < 10; ++node) {
    (void)job.ViewOf(node);
    (void)job.LoadOf(node);
    DeclarationPart part = MadeDeclaration(node, node, &input).part;
    job.Declare(node, std::move(part), now + absl::Minutes(1), now);
  }
  // Shortened, the barriers are the same.
  const std::vector<JobEvent> barriers = job.BarrierEvents();
  for (const JobEvent& barrier : barriers) CheckRecord(barrier);
  job.Advance(now + absl::Hours(1));
  (void)job.TakeCompletions();
}

}  // namespace
}  // namespace bdn

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  bdn::InitLog(bdn::LogLevel::kOff, "fuzz");
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  bdn::Run({data, size});
  return 0;
}
