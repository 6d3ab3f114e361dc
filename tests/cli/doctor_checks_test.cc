#include "cli/doctor_checks.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace bdn::cli {
namespace {

using Json = nlohmann::json;

// A machine with nothing to say of.
MachineFacts GoodMachine() {
  MachineFacts facts;
  facts.own_version = "0.1.0";
  facts.server_version = "bandoneon-server 0.1.0, wire version 2, kernels AVX2";
  facts.cpu_features = {"avx2", "fma"};
  facts.libraries = {{"libzmq", "4.3.4"}};
  facts.memlock_bytes = UINT64_MAX;
  facts.open_files = 1 << 20;
  facts.huge_pages = 0;
  facts.transparent_huge_pages = "madvise";
  facts.clock_synchronised = true;
  facts.shm_bytes = uint64_t{8} << 30;
  facts.shm_free_bytes = uint64_t{8} << 30;
  facts.processors = 8;
  facts.memory_bytes = uint64_t{16} << 30;
  facts.devices = "GPUs: none: no driver\n";
  facts.interfaces = {{"eth0", 1500}};
  return facts;
}

Finding FindIn(const Findings& findings, const std::string& subject) {
  for (const Finding& finding : findings) {
    if (finding.subject == subject) return finding;
  }
  ADD_FAILURE() << "nothing of " << subject << " in\n" << DescribeFindings(findings);
  return {};
}

TEST(CheckMachine, FindsNothingOnAGoodOne) {
  const Findings findings = CheckMachine(GoodMachine());
  for (const Finding& finding : findings) {
    EXPECT_EQ(finding.severity, Severity::kOk) << finding.subject << ": " << finding.seen;
    EXPECT_EQ(finding.remedy, "") << finding.subject;
  }
  EXPECT_EQ(ExitCodeOf(findings), 0);
  EXPECT_GE(findings.size(), 12u);
}

TEST(CheckMachine, SaysWhichFabricsRegisterDevicesMemory) {
  MachineFacts facts = GoodMachine();
  facts.fabrics = {{"efa rdmap0", "", true, true}, {"shm", "", false}, {"tcp", "gone", false}};
  EXPECT_NE(FindIn(CheckMachine(facts), "rdma").seen.find("efa rdmap0 (FI_HMEM), shm; not: tcp"),
            std::string::npos);
}

TEST(CheckMachine, NamesEachThingThatIsWrong) {
  const struct {
    const char* subject;
    Severity severity;
    const char* seen;
    void (*spoil)(MachineFacts*);
  } kCases[] = {
      {"programs", Severity::kError, "gone",
       [](auto* f) { f->server_version = "", f->server_failure = "gone"; }},
      {"programs", Severity::kError, "0.2.0", [](auto* f) { f->own_version = "0.2.0"; }},
      {"cpu", Severity::kWarning, "SSE4",
       [](auto* f) { f->server_version = "bandoneon-server 0.1.0, kernels SSE4"; }},
      {"processors", Severity::kNote, "2.50", [](auto* f) { f->cgroup_processors = 2.5; }},
      {"processors", Severity::kWarning, "0.50", [](auto* f) { f->cgroup_processors = 0.5; }},
      {"memory", Severity::kNote, "1.0 GiB", [](auto* f) { f->cgroup_memory_bytes = 1 << 30; }},
      {"/dev/shm", Severity::kWarning, "64.0 MiB",
       [](auto* f) { f->shm_bytes = f->shm_free_bytes = 64 << 20; }},
      {"/dev/shm", Severity::kWarning, "1.0 MiB free",
       [](auto* f) { f->shm_free_bytes = 1 << 20; }},
      {"/dev/shm", Severity::kWarning, "not there", [](auto* f) { f->shm_bytes.reset(); }},
      {"open files", Severity::kWarning, "1024", [](auto* f) { f->open_files = 1024; }},
      {"memlock", Severity::kNote, "8.0 MiB",
       [](auto* f) { f->memlock_bytes = 8 << 20, f->devices = "GPU: A"; }},
      {"clock", Severity::kNote, "synchronised", [](auto* f) { f->clock_synchronised = false; }},
      {"clock", Severity::kNote, "denied",
       [](auto* f) { f->clock_synchronised.reset(), f->clock_failure = "denied"; }},
      {"clock", Severity::kWarning, "0.500 s", [](auto* f) { f->clock_error_seconds = 0.5; }},
      {"network", Severity::kNote, "loopback", [](auto* f) { f->interfaces.clear(); }},
      {"network", Severity::kWarning, "tun0 1200",
       [](auto* f) {
         f->interfaces.push_back({"tun0", 1200});
       }},
      {"rdma", Severity::kNote, "verbs;ofi_rxm (memlock",
       [](auto* f) {
         f->rdma_devices = {"mlx5_0"};
         f->fabrics = {{"verbs;ofi_rxm", "memlock allows 1 byte", true}, {"shm", "", false}};
       }},
      {"rdma", Severity::kNote, "cannot be opened",
       [](auto* f) {
         f->rdma_devices = {"mlx5_0"};
         f->fabric_failure = "libfabric cannot be opened";
       }},
  };
  for (const auto& one : kCases) {
    MachineFacts facts = GoodMachine();
    one.spoil(&facts);
    const Findings findings = CheckMachine(facts);
    const Finding finding = FindIn(findings, one.subject);
    EXPECT_EQ(finding.severity, one.severity) << one.subject << ": " << finding.seen;
    EXPECT_NE(finding.seen.find(one.seen), std::string::npos) << finding.seen;
    if (one.severity > Severity::kNote) {
      EXPECT_NE(finding.remedy, "") << one.subject;
    }
    EXPECT_EQ(ExitCodeOf(findings), one.severity == Severity::kError     ? 2
                                    : one.severity == Severity::kWarning ? 1
                                                                         : 0);
  }
}

JournalFacts GoodJournal() {
  return {.directory = "/j/gpt-7",
          .looked_at = "/j/gpt-7",
          .is_directory = true,
          .owner = 1000,
          .own_user = 1000,
          .mode = 040700,
          .free_bytes = uint64_t{2} << 30};
}

TEST(CheckJournal, FindsNothingWhereTheSchedulerCanKeepIt) {
  JournalFacts facts = GoodJournal();
  EXPECT_EQ(FindIn(CheckJournal(facts), "journal").seen, "/j/gpt-7 is there; 2.0 GiB free");
  facts.mode = 042700;  // as it is made in a directory with setgid
  EXPECT_EQ(ExitCodeOf(CheckJournal(facts)), 0);
  // Only the right to write matters in the parent of one that is not there.
  facts.looked_at = "/j";
  facts.owner = 0;
  facts.mode = 041777;
  EXPECT_EQ(FindIn(CheckJournal(facts), "journal").seen, "/j/gpt-7 can be made; 2.0 GiB free");
  EXPECT_EQ(ExitCodeOf(CheckJournal(facts)), 0);
}

TEST(CheckJournal, NamesEachThingThatIsWrong) {
  const struct {
    Severity severity;
    const char* seen;
    void (*spoil)(JournalFacts*);
  } kCases[] = {
      {Severity::kError, "/j cannot be looked at: gone",
       [](auto* f) { f->looked_at = "/j", f->failure = "gone"; }},
      {Severity::kError, "is no directory", [](auto* f) { f->is_directory = false; }},
      {Severity::kError, "belongs to user 0, and this is user 1000", [](auto* f) { f->owner = 0; }},
      {Severity::kError, "user 1000 cannot write into /j/gpt-7: denied",
       [](auto* f) { f->why_not_writable = "denied"; }},
      {Severity::kError, "user 1000 cannot write into /j: denied",
       [](auto* f) { f->looked_at = "/j", f->why_not_writable = "denied"; }},
      {Severity::kError, "mode 0720: other users may write", [](auto* f) { f->mode = 040720; }},
      {Severity::kWarning, "mode 0755: other users may look in", [](auto* f) { f->mode = 040755; }},
      {Severity::kWarning, "in memory", [](auto* f) { f->is_in_memory = true; }},
      {Severity::kWarning, "512.0 MiB free", [](auto* f) { f->free_bytes = 512 << 20; }},
  };
  for (const auto& one : kCases) {
    JournalFacts facts = GoodJournal();
    one.spoil(&facts);
    const Findings findings = CheckJournal(facts);
    ASSERT_EQ(findings.size(), 1u) << one.seen << "\n" << DescribeFindings(findings);
    EXPECT_EQ(findings[0].subject, "journal");
    EXPECT_EQ(findings[0].severity, one.severity) << one.seen;
    EXPECT_NE(findings[0].seen.find(one.seen), std::string::npos) << findings[0].seen;
    EXPECT_NE(findings[0].remedy, "") << one.seen;
  }
}

JobFacts GoodJob() {
  JobFacts facts;
  facts.scheduler = "a:7000";
  facts.attempts = {{"10.0.0.1", {.reached = Reached::kYes, .milliseconds = 0.5}}};
  facts.asked = true;
  facts.status = Json({{"job_id", "gpt-7"},
                       {"state", "running"},
                       {"missing", ""},
                       {"failure", ""},
                       {"control_version", 9},
                       {"own_control_version", 9}})
                     .dump();
  facts.servers = {
      {.rank = 0, .address = "tcp://10.0.0.1:7100", .attempt = {.reached = Reached::kYes}}};
  return facts;
}

JobFacts WithStatus(const char* name, const Json& value) {
  JobFacts facts = GoodJob();
  Json status = Json::parse(facts.status);
  status[name] = value;
  facts.status = status.dump();
  return facts;
}

TEST(CheckJob, FindsNothingInAGoodOne) {
  const Findings findings = CheckJob(GoodJob());
  EXPECT_EQ(ExitCodeOf(findings), 0) << DescribeFindings(findings);
  EXPECT_EQ(findings.size(), 4u);
}

TEST(CheckJob, TellsApartWhyNobodyIsReached) {
  const std::pair<Reached, const char*> kWays[] = {{Reached::kRefused, "nothing listens"},
                                                   {Reached::kNoAnswer, "firewall"},
                                                   {Reached::kUnreachable, "no way"}};
  for (const auto& [reached, remedy] : kWays) {
    JobFacts facts;
    facts.scheduler = "a:7000";
    facts.attempts = {{"10.0.0.1", {.reached = reached, .why = "so it says"}}};
    const Findings findings = CheckJob(facts);
    ASSERT_EQ(findings.size(), 1u);
    EXPECT_NE(findings[0].remedy.find(remedy), std::string::npos) << findings[0].remedy;
    EXPECT_EQ(ExitCodeOf(findings), 2);
  }
}

TEST(CheckJob, TellsApartWhatIsAnswered) {
  const std::pair<int, const char*> kCodes[] = {
      {3, "settings"}, {4, "handshake"}, {7, "trust"}, {14, "handshake"}, {12, "answer"}};
  for (const auto& [code, subject] : kCodes) {
    JobFacts facts = GoodJob();
    facts.ask_code = code;
    facts.ask_failure = "so it says";
    const Finding finding = FindIn(CheckJob(facts), subject);
    EXPECT_EQ(finding.severity, Severity::kError);
    EXPECT_NE(finding.seen.find("so it says"), std::string::npos);
  }
}

TEST(CheckJob, SaysWhatTheSchedulerKnows) {
  EXPECT_EQ(FindIn(CheckJob(WithStatus("control_version", 8)), "version").severity,
            Severity::kError);
  EXPECT_EQ(FindIn(CheckJob(WithStatus("missing", "worker rank 3")), "job").severity,
            Severity::kWarning);
  EXPECT_EQ(FindIn(CheckJob(WithStatus("failure", "worker 1 left")), "job").severity,
            Severity::kError);
  EXPECT_EQ(FindIn(CheckJob(WithStatus("missing", 7)), "answer").severity, Severity::kError);
}

TEST(CheckJob, NamesTheServerThatIsNotReached) {
  JobFacts facts = GoodJob();
  facts.servers.push_back({.rank = 1, .address = "tcp://b:1", .failure = "b: no such name"});
  facts.servers.push_back(
      {.rank = 2, .address = "tcp://c:1", .attempt = {.reached = Reached::kRefused}});
  facts.servers.push_back({.rank = 3, .address = "ipc:///run/x"});
  const Findings findings = CheckJob(facts);
  EXPECT_EQ(FindIn(findings, "server 0").severity, Severity::kOk);
  EXPECT_EQ(FindIn(findings, "server 1").severity, Severity::kError);
  EXPECT_EQ(FindIn(findings, "server 2").severity, Severity::kError);
  EXPECT_EQ(FindIn(findings, "server 3").severity, Severity::kNote);
}

TEST(Findings, AreJsonWhateverIsInThem) {
  const Json json = Json::parse(FindingsJson({{Severity::kWarning, "x", "odd \xff \"\n", "do"}}));
  EXPECT_EQ(json[0]["level"], "warning");
  EXPECT_EQ(json[0]["remedy"], "do");
}

TEST(ParseHostAndPort, TakesWhatIsAnAddress) {
  const auto v6 = ParseHostAndPort("tcp://[::1]:7000");
  ASSERT_TRUE(v6.ok());
  EXPECT_EQ(v6->host, "::1");
  EXPECT_EQ(v6->port, "7000");
  EXPECT_TRUE(ParseHostAndPort("a:0", true).ok());
  for (const char* none : {"", "a", "a:", ":1", "a:0", "a:65536", "a:-1", "a:x", "a:1:"}) {
    EXPECT_FALSE(ParseHostAndPort(none).ok()) << none;
  }
}

}  // namespace
}  // namespace bdn::cli
