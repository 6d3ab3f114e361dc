#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "cli/commands.h"
#include "cli/stage_table.h"
#include "common/base/byte_text.h"
#include "trace/text_table.h"
#include "worker/c_api/bandoneon.h"

namespace bdn::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr Flag kFlags[] = {
    {"scheduler", 0, "HOST:PORT", "where the scheduler listens [$BANDONEON_SCHEDULER]"},
    {"timeout", 0, "TIME", "how long to wait for its answer [5s]"},
    {"stages", 0, nullptr,
     "show what passed through the stages of each node, and how long it took"},
    {"heat", 0, nullptr, "show who takes longer than the others for what, in the latest steps"},
    {"json", 0, nullptr, "print the scheduler's answer as it is"},
};

constexpr char kUsageText[] =
    "usage: bandoneon status [options]\n\n"
    "Asks a scheduler about its job: who is in it, how far each node is, when it was last heard, "
    "what servers hold.\n";

constexpr char kExamples[] =
    "  bandoneon status --scheduler 127.0.0.1:7000\n"
    "  bandoneon status --scheduler 127.0.0.1:7000 --stages\n"
    "  bandoneon status --scheduler 127.0.0.1:7000 --heat\n"
    "  bandoneon status --scheduler 127.0.0.1:7000 --json | python3 -m json.tool\n"
    "  bandoneon status --scheduler 10.0.0.1:7000 --tls-ca certs/anna/ca.pem \\\n"
    "    --tls-cert certs/anna/cert.pem --tls-key certs/anna/key.pem\n";

std::string Number(const Json& value) { return absl::StrFormat("%d", value.get<int64_t>()); }

// A node that was started without a rank has one when all have joined.
std::string RankOf(const Json& node) {
  return node.at("rank").get<int64_t>() < 0 ? "?" : Number(node.at("rank"));
}

// Returns "here", "left", "lost" of a node without which the job goes on, or "waiting to be taken
// in".
std::string WhereIs(const Json& node) {
  if (node.at("candidate").get<bool>()) return "waiting to be taken in";
  if (node.at("lost").get<bool>()) return "lost";
  if (node.at("left").get<bool>()) return "left";
  const auto rebuilding = node.at("keys_rebuilding").get<uint64_t>();
  return rebuilding == 0 ? "here" : absl::StrFormat("here (%d keys not whole)", rebuilding);
}

// Returns the address at which workers reach a server and, where it differs, the one at which it
// listens.
std::string AddressOf(const Json& node) {
  const auto advertised = node.at("address").get<std::string>();
  const auto listened = node.at("listen_address").get<std::string>();
  if (listened.empty() || listened == advertised) return advertised;
  return advertised + " (listens at " + listened + ")";
}

// Returns "server 0 holds weights 4.0 MB, moments 8.0 MB"; empty where it holds nothing.
std::string HeldBy(const Json& node) {
  std::string text;
  if (!node.contains("held")) return text;
  for (const auto& [purpose, bytes] : node.at("held").items()) {
    if (purpose == "total" || bytes.get<uint64_t>() == 0) continue;
    text += absl::StrFormat("%s %s %s", text.empty() ? "" : ",", purpose,
                            ByteText(bytes.get<double>()));
  }
  if (text.empty()) return text;
  return absl::StrFormat("server %s holds%s\n", RankOf(node), text);
}

// Returns "server 0 has 12 rows of tables: ..."; empty where it never had any.
std::string RowsOf(const Json& node) {
  if (!node.contains("rows")) return {};
  const Json& rows = node.at("rows");
  return absl::StrFormat(
      "server %s has %s rows of tables: %s came, %s were removed, and %s gradients were of rows "
      "not admitted yet\n",
      RankOf(node), Number(rows.at("held")), Number(rows.at("added")), Number(rows.at("removed")),
      Number(rows.at("not_admitted")));
}

// Returns "worker 3 has 8 connections to 2 servers"; empty where it has one to each.
std::string ConnectionsOf(const Json& node, uint64_t servers) {
  const auto connections = node.at("connections").get<uint64_t>();
  if (connections <= servers || WhereIs(node) != "here") return {};
  return absl::StrFormat("%s %s has %d connections to %d server%s\n",
                         node.at("role").get<std::string>(), RankOf(node), connections, servers,
                         servers == 1 ? "" : "s");
}

std::string Describe(const Json& job) {
  const auto text_of = [&](const char* name) { return job.at(name).get<std::string>(); };
  std::string text = absl::StrFormat("job %s: %s, epoch %s, %s tensors in %s keys\n",
                                     text_of("job_id"), text_of("state"), Number(job.at("epoch")),
                                     Number(job.at("tensors")), Number(job.at("keys")));
  if (!text_of("missing").empty()) text += "waits for " + text_of("missing") + "\n";
  if (!text_of("failure").empty()) text += "failed: " + text_of("failure") + "\n";
  std::vector<std::vector<std::string>> rows = {{"ROLE", "RANK", "NODE", "HOST", "STATE", "STEP",
                                                 "SENT", "RECEIVED", "KEYS", "HELD", "LAST HEARD",
                                                 "ADDRESS"}};
  for (const Json& node : job.at("nodes")) {
    rows.push_back(
        {node.at("role").get<std::string>(), RankOf(node), Number(node.at("node")),
         node.at("host").get<std::string>(), WhereIs(node), Number(node.at("step")),
         ByteText(node.at("bytes_sent").get<double>()),
         ByteText(node.at("bytes_received").get<double>()), Number(node.at("keys")),
         node.contains("held") ? ByteText(node.at("held").at("total").get<double>()) : "-",
         absl::StrFormat("%.1f s ago", node.at("seconds_since_heard").get<double>()),
         AddressOf(node)});
  }
  text += TextTable(rows);
  const auto servers = std::ranges::count_if(job.at("nodes"), [](const Json& node) {
    return node.at("role") == "server" && WhereIs(node).starts_with("here");
  });
  for (const Json& node : job.at("nodes")) {
    text += HeldBy(node) + RowsOf(node) + ConnectionsOf(node, static_cast<uint64_t>(servers));
  }
  for (const Json& suspect : job.at("suspects")) {
    text += "slow: " + suspect.at("sentence").get<std::string>() + "\n";
  }
  return text;
}

// Returns "52.1 ms +3%": the time of a kind in a step, and how much of a step that is more than
// what the others take.
std::string HeatText(const Json& kinds, const char* kind) {
  if (!kinds.contains(kind)) return "-";
  const Json& cell = kinds.at(kind);
  return absl::StrFormat("%.1f ms %+.0f%%", cell.at("seconds").get<double>() * 1e3,
                         cell.at("share").get<double>() * 100);
}

// Returns the table of nodes by host, and kinds.
std::string DescribeHeat(const Json& job) {
  constexpr std::pair<const char*, const char*> kKinds[] = {
      {"compute", "COMPUTE"}, {"input", "INPUT"}, {"gc", "GC"},
      {"host", "RUN QUEUE"},  {"link", "LINK"},   {"server", "SERVER"}};
  std::map<int64_t, std::string> names;
  for (const Json& node : job.at("nodes")) {
    names[node.at("node").get<int64_t>()] = node.at("role").get<std::string>() + " " + RankOf(node);
  }
  std::vector<std::vector<std::string>> rows;
  for (const Json& heat : job.at("heat")) {
    std::vector<std::string> row = {heat.at("host").get<std::string>(),
                                    names[heat.at("node").get<int64_t>()]};
    for (const auto& [kind, title] : kKinds) row.push_back(HeatText(heat.at("kinds"), kind));
    rows.push_back(std::move(row));
  }
  if (rows.empty()) return "too few steps have ended to compare nodes\n";
  std::stable_sort(rows.begin(), rows.end(),
                   [](const auto& a, const auto& b) { return a[0] < b[0]; });
  std::vector<std::string> titles = {"HOST", "NODE"};
  for (const auto& [kind, title] : kKinds) titles.emplace_back(title);
  rows.insert(rows.begin(), std::move(titles));
  return TextTable(rows);
}

// Returns the table of phases since each node joined.
absl::StatusOr<std::string> DescribeStages(const Json& job) {
  std::vector<std::pair<std::string, StageRows>> nodes;
  for (const Json& node : job.at("nodes")) {
    const auto rows = ParseStages(node.at("stages").dump());
    if (!rows.ok()) return rows.status();
    nodes.emplace_back(node.at("role").get<std::string>() + " " + RankOf(node), *rows);
  }
  const std::string table = StageTable(nodes);
  return table.empty() ? "no key has passed through a stage yet, or setting stage-times is off\n"
                       : table;
}

}  // namespace

std::vector<std::string> SchedulerSettings(const CommandFlags& flags) {
  std::vector<std::string> settings;
  for (const char* name : {"scheduler", "token", "token-file", "tls-ca", "tls-cert", "tls-key"}) {
    if (flags.Has(name)) settings.push_back(std::string(name) + "=" + flags.Text(name));
  }
  if (flags.Has("insecure")) settings.emplace_back("insecure=true");
  return settings;
}

std::string TokenHint(const CommandFlags& flags, const absl::Status& refusal) {
  if (refusal.code() != absl::StatusCode::kPermissionDenied) return "";
  const auto given = [&](const char* flag, const char* variable) {
    return flags.Has(flag) || getenv(variable) != nullptr;
  };
  if (given("token", "BANDONEON_TOKEN") || given("token-file", "BANDONEON_TOKEN_FILE")) {
    return "; is that the token file of this job? Each job of bandoneon run has its own";
  }
  return "; say --token-file PATH, with the file of the job's token: bandoneon run names its own "
         "when it starts";
}

absl::StatusOr<std::string> AskScheduler(const std::vector<std::string>& settings,
                                         double timeout_seconds) {
  std::vector<const char*> texts;
  for (const std::string& setting : settings) texts.push_back(setting.c_str());
  const bdn_options options = {sizeof(bdn_options), texts.data(), texts.size()};
  std::string text(size_t{1} << 16, '\0');
  while (true) {
    size_t needed = 0;
    if (const int code =
            bdn_status_json(&options, timeout_seconds, text.data(), text.size(), &needed)) {
      return LastError(code);
    }
    if (needed <= text.size()) {
      text.resize(needed == 0 ? 0 : needed - 1);  // without the NUL
      return text;
    }
    text.assign(needed + 4096, '\0');  // more than needed: it may grow until we ask again
  }
}

int StatusCommand(Arguments args) {
  const std::vector<Flag> known = WithCredentials(kFlags);
  if (PrintedHelp(args, kUsageText, known, kExamples)) return 0;
  const auto flags = CommandFlags::Parse(known, args);
  if (!flags.ok()) return UsageError("status", flags.status());
  const auto timeout = flags->Duration("timeout", std::chrono::seconds(5));
  if (!timeout.ok()) return UsageError("status", timeout.status());
  if (!flags->Has("scheduler") && getenv("BANDONEON_SCHEDULER") == nullptr) {
    return UsageError("status", absl::InvalidArgumentError("which scheduler? say --scheduler"));
  }
  const auto answer =
      AskScheduler(SchedulerSettings(*flags), std::chrono::duration<double>(*timeout).count());
  if (!answer.ok()) {
    fprintf(stderr, "bandoneon status: %s%s\n", std::string(answer.status().message()).c_str(),
            TokenHint(*flags, answer.status()).c_str());
    return 1;
  }
  if (flags->Has("json")) {
    printf("%s\n", answer->c_str());
    return 0;
  }
  try {
    const Json job = Json::parse(*answer);
    std::string text = Describe(job);
    if (flags->Has("stages")) {
      const auto stages = DescribeStages(job);
      if (!stages.ok()) {
        fprintf(stderr, "bandoneon status: %s\n", std::string(stages.status().message()).c_str());
        return 1;
      }
      text += "\n" + *stages;
    }
    if (flags->Has("heat")) text.append("\n").append(DescribeHeat(job));
    printf("%s", text.c_str());
  } catch (const Json::exception& error) {
    fprintf(stderr, "bandoneon status: the scheduler's answer is not understood: %s\n",
            error.what());
    return 1;
  }
  return 0;
}

}  // namespace bdn::cli
