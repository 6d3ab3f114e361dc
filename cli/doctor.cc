#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "cli/commands.h"
#include "cli/doctor_checks.h"
#include "cli/machine_facts.h"
#include "cli/peer_queue.h"
#include "cli/rate_probe.h"
#include "cli/tcp_probe.h"
#include "common/certs/small_file.h"

namespace bdn::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr Flag kFlags[] = {
    {"scheduler", 0, "HOST:PORT", "look at the job of this scheduler, too [$BANDONEON_SCHEDULER]"},
    {"rates", 0, nullptr, "time connections from here to each server of the job"},
    {"journal", 0, "DIR", "look at the directory of a scheduler's journal [$BANDONEON_JOURNAL]"},
    {"listen", 0, "HOST:PORT", "be the other end of a --peer; port 0 takes a free one"},
    {"peers", 0, "COUNT", "of --listen: with how many it measures, one after the other [1]"},
    {"peer", 0, "HOST:PORT", "measure latency and rate with a doctor --listen there; repeatable"},
    {"timeout", 0, "TIME", "how long to wait for an answer [5s], of --listen for a peer [10m]"},
    {"json", 0, nullptr, "print what was found as JSON"},
};

constexpr std::string_view kRepeated[] = {"peer"};

constexpr char kUsageText[] =
    "usage: bandoneon doctor [options]\n\n"
    "Looks for what keeps jobs from starting, or makes them slow: on this machine, and with "
    "--scheduler on the\n"
    "way to a job: its name, port, certificates and token, version, who is missing, each server's "
    "address.\n"
    "With --journal, as the scheduler's user on its host, it looks whether that can keep its "
    "journal there.\n"
    "With --listen on one host and --peer on others it measures the network between them.\n\n"
    "Each finding is ok, a note, a warning or an error, with what to do. Returns 0 where nothing "
    "is worse than\n"
    "a note, 1 for warnings, 2 for errors.\n";

constexpr char kExamples[] =
    "  bandoneon doctor\n"
    "  bandoneon doctor --scheduler 10.0.0.1:7000 --token-file job/token --insecure --rates\n"
    "  bandoneon doctor --journal /var/lib/bandoneon/gpt-7\n"
    "  bandoneon doctor --listen 10.0.0.1:7300 --token-file job/token    # on one host\n"
    "  bandoneon doctor --peer 10.0.0.1:7300 --token-file job/token      # on the other\n"
    "  bandoneon doctor --json | python3 -m json.tool\n";

// Odd, so that the median is one of them.
constexpr int kRoundTrips = 21;

std::string Setting(const CommandFlags& flags, const std::string& flag, const char* variable) {
  const char* exported = getenv(variable);
  return flags.Text(flag, exported == nullptr ? "" : exported);
}

// Connects to each server that workers can reach over the network.
std::vector<JobFacts::Server> VisitServers(const std::string& status, bool with_rates,
                                           std::chrono::milliseconds timeout) {
  std::vector<JobFacts::Server> servers;
  try {
    const Json job = Json::parse(status);
    for (const Json& node : job.at("nodes")) {
      if (node.at("role") != "server" || node.at("left").get<bool>()) continue;
      JobFacts::Server& server = servers.emplace_back();
      server.rank = node.at("rank").get<int>();
      server.address = node.at("address").get<std::string>();
      if (server.address.rfind("tcp://", 0) != 0) continue;
      const auto place = ParseHostAndPort(server.address);
      const auto addresses =
          place.ok() ? Resolve(*place) : absl::StatusOr<std::vector<SocketAddress>>(place.status());
      if (!addresses.ok()) {
        server.failure = std::string(addresses.status().message());
        continue;
      }
      for (int i = 0; i < (with_rates ? kRoundTrips : 1); ++i) {
        const TcpAttempt attempt = ConnectTcp(addresses->front(), timeout);
        if (attempt.fd >= 0) close(attempt.fd);
        if (i == 0) server.attempt = attempt;
        if (attempt.reached != Reached::kYes) break;
        if (with_rates) server.round_trips_ms.push_back(attempt.milliseconds);
      }
    }
  } catch (const Json::exception&) {
    // CheckJob says that the answer is not understood; the servers before that stay.
  }
  return servers;
}

JobFacts GatherJobFacts(const CommandFlags& flags, const HostAndPort& place,
                        std::chrono::milliseconds timeout) {
  JobFacts facts;
  facts.scheduler = place.host + ":" + place.port;
  facts.with_certificates = !Setting(flags, "tls-cert", "BANDONEON_TLS_CERT").empty();
  const auto addresses = Resolve(place);
  if (!addresses.ok()) {
    facts.name_failure = std::string(addresses.status().message());
    return facts;
  }
  for (const SocketAddress& address : *addresses) {
    const TcpAttempt attempt = ConnectTcp(address, timeout);
    if (attempt.fd >= 0) close(attempt.fd);
    facts.attempts.emplace_back(address.ToString(), attempt);
    facts.asked = attempt.reached == Reached::kYes;
    if (facts.asked) break;
  }
  if (!facts.asked) return facts;
  const auto answer =
      AskScheduler(SchedulerSettings(flags), std::chrono::duration<double>(timeout).count());
  if (!answer.ok()) {
    facts.ask_code = answer.status().raw_code();
    facts.ask_failure = std::string(answer.status().message());
    return facts;
  }
  facts.status = *answer;
  facts.servers = VisitServers(facts.status, flags.Has("rates"), timeout);
  return facts;
}

absl::StatusOr<std::string> TokenOf(const CommandFlags& flags) {
  const std::string token = Setting(flags, "token", "BANDONEON_TOKEN");
  const std::string path = Setting(flags, "token-file", "BANDONEON_TOKEN_FILE");
  if (path.empty() || flags.Has("token")) return token;
  auto text = ReadSmallFile(path);
  if (!text.ok()) return text.status();
  while (!text->empty() && (text->back() == '\n' || text->back() == '\r')) text->pop_back();
  if (text->empty()) return absl::InvalidArgumentError(path + " is empty");
  return text;
}

int Fail(const absl::Status& status) {
  fprintf(stderr, "bandoneon doctor: %s\n", std::string(status.message()).c_str());
  return 2;
}

void PrintRates(const Rates& rates, bool as_json, bool with_latency) {
  Json json = {{"address", rates.address},
               {"sent_gbit_per_s", rates.sent_gbit},
               {"received_gbit_per_s", rates.received_gbit}};
  std::string text = absl::StrFormat("%s: sends %.2f Gbit/s, receives %.2f Gbit/s", rates.address,
                                     rates.sent_gbit, rates.received_gbit);
  if (with_latency) {
    json["latency_median_us"] = rates.median_us;
    json["latency_p99_us"] = rates.p99_us;
    text += absl::StrFormat("; a round trip of 64 bytes takes %.1f us (median), %.1f us (p99)",
                            rates.median_us, rates.p99_us);
  }
  printf("%s\n", as_json ? json.dump().c_str() : text.c_str());
}

// Serves peers. Returns 0 once so many were served.
int Listen(const CommandFlags& flags, const HostAndPort& place, const std::string& token,
           std::chrono::milliseconds timeout, int64_t peers) {
  const auto addresses = Resolve(place);
  if (!addresses.ok()) return Fail(addresses.status());
  const std::string numbers = addresses->front().ToString();
  // Without a token any host could take up this one's link.
  if (token.empty() && numbers.rfind("127.", 0) != 0 && numbers != "::1") {
    return Fail(absl::InvalidArgumentError(absl::StrFormat(
        "%s is reached by other hosts, and there is no token: give both ends --token-file",
        numbers)));
  }
  int port = 0;
  const auto listener = ListenTcp(place, &port);
  if (!listener.ok()) return Fail(listener.status());
  fprintf(stderr, "bandoneon doctor: listens at %s:%d\n", place.host.c_str(), port);
  const auto deadline = Clock::now() + timeout;
  std::optional<PeerQueue> queue;
  queue.emplace(*listener, token, [](const absl::Status& why) { Fail(why); });
  while (peers > 0) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    const auto rates = ServeRates(&*queue, std::max(left, std::chrono::milliseconds(0)));
    if (rates.ok()) {
      PrintRates(*rates, flags.Has("json"), false);
      fflush(stdout);
      --peers;
    } else {
      Fail(rates.status());
      if (rates.status().code() == absl::StatusCode::kDeadlineExceeded) break;
    }
  }
  // Before the socket is closed: the queue accepts once more, and tells the peers that still wait.
  queue.reset();
  close(*listener);
  return peers == 0 ? 0 : 2;
}

// Measures with each place. Returns 2 where one could not be measured; the others are.
int Measure(const CommandFlags& flags, const std::vector<HostAndPort>& places,
            const std::string& token, std::chrono::milliseconds timeout) {
  int code = 0;
  for (const HostAndPort& place : places) {
    const auto say_place = [&place](size_t before) {
      fprintf(stderr, "bandoneon doctor: %s:%s measures one at a time: %zu before this one\n",
              place.host.c_str(), place.port.c_str(), before);
    };
    const auto rates = MeasureRates(place, token, timeout, std::chrono::seconds(1), say_place);
    if (rates.ok()) {
      PrintRates(*rates, flags.Has("json"), true);
      fflush(stdout);
    } else {
      code = Fail(rates.status());
    }
  }
  return code;
}

int WithPeer(const CommandFlags& flags) {
  const bool listens = flags.Has("listen");
  if (listens && flags.Has("peer")) {
    return UsageError("doctor",
                      absl::InvalidArgumentError("--listen on one host, --peer on another"));
  }
  std::vector<HostAndPort> places;
  for (const std::string& text : flags.All(listens ? "listen" : "peer")) {
    auto place = ParseHostAndPort(text, listens);
    if (!place.ok()) return UsageError("doctor", place.status());
    places.push_back(*std::move(place));
  }
  if (!listens && flags.Has("peers")) {
    return UsageError("doctor", absl::InvalidArgumentError("--peers is of --listen"));
  }
  const auto peers = flags.Int("peers", 1, 1, 4096);
  if (!peers.ok()) return UsageError("doctor", peers.status());
  const auto timeout = flags.Duration(
      "timeout", listens ? std::chrono::minutes(10) : std::chrono::milliseconds(5000));
  if (!timeout.ok()) return UsageError("doctor", timeout.status());
  const auto token = TokenOf(flags);
  if (!token.ok()) return UsageError("doctor", token.status());
  return listens ? Listen(flags, places.front(), *token, *timeout, *peers)
                 : Measure(flags, places, *token, *timeout);
}

}  // namespace

int DoctorCommand(Arguments args) {
  const std::vector<Flag> known = WithCredentials(kFlags);
  if (PrintedHelp(args, kUsageText, known, kExamples)) return 0;
  const auto flags = CommandFlags::Parse(known, args, kRepeated);
  if (!flags.ok()) return UsageError("doctor", flags.status());
  if (!flags->command().empty()) {
    return UsageError("doctor", absl::InvalidArgumentError("it runs no command"));
  }
  if (flags->Has("listen") || flags->Has("peer") || flags->Has("peers")) return WithPeer(*flags);
  const auto timeout = flags->Duration("timeout", std::chrono::seconds(5));
  if (!timeout.ok()) return UsageError("doctor", timeout.status());
  const std::string scheduler = Setting(*flags, "scheduler", "BANDONEON_SCHEDULER");
  if (scheduler.empty() && flags->Has("rates")) {
    return UsageError("doctor",
                      absl::InvalidArgumentError("--rates of which job? say --scheduler"));
  }
  const std::string journal = Setting(*flags, "journal", "BANDONEON_JOURNAL");
  if (journal.empty() && flags->Has("journal")) {
    return UsageError("doctor", absl::InvalidArgumentError("--journal needs a directory"));
  }
  Findings findings = CheckMachine(GatherMachineFacts());
  if (!journal.empty()) {
    const Findings of_journal = CheckJournal(GatherJournalFacts(journal));
    findings.insert(findings.end(), of_journal.begin(), of_journal.end());
  }
  if (!scheduler.empty()) {
    const auto place = ParseHostAndPort(scheduler);
    if (!place.ok()) return UsageError("doctor", place.status());
    const Findings of_job = CheckJob(GatherJobFacts(*flags, *place, *timeout));
    findings.insert(findings.end(), of_job.begin(), of_job.end());
  }
  printf("%s", flags->Has("json") ? (FindingsJson(findings) + "\n").c_str()
                                  : DescribeFindings(findings).c_str());
  return ExitCodeOf(findings);
}

}  // namespace bdn::cli
