#include <cstdio>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/commands.h"
#include "common/certs/certificates.h"

namespace bdn::cli {
namespace {

constexpr Flag kInitFlags[] = {
    {"dir", 0, "PATH", "where the authority and all that it issues lie [certs]"},
    {"job", 0, "NAME", "whose authority it is: its certificates are of no use in another job"},
    {"days", 0, "COUNT", "how long it is valid [3650]"},
};
constexpr Flag kIssueFlags[] = {
    {"dir", 0, "PATH", "where the authority lies, as of certs init [certs]"},
    {"role", 0, "ROLE", "scheduler, server, worker or observer; repeatable"},
    {"name", 0, "NAME", "folder and subject of the certificate, e.g. the host's name [the role]"},
    {"days", 0, "COUNT", "how long it is valid, at most as its authority [365]"},
};
constexpr Flag kShowFlags[] = {
    {"file", 0, "PATH", "a certificate, e.g. certs/server/cert.pem"},
};

constexpr char kInitUsage[] =
    "usage: bandoneon certs init --job NAME [options]\n\n"
    "Makes a job's own certificate authority: PATH/ca.pem, which every node gets, and "
    "PATH/ca-key.pem,\n"
    "which stays where it is. Who has that key can take any part in the job.\n";
constexpr char kInitExamples[] =
    "  bandoneon certs init --job gpt-7\n"
    "  bandoneon certs init --job gpt-7 --dir gpt-7-certs --days 90\n";

constexpr char kIssueUsage[] =
    "usage: bandoneon certs issue --role ROLE [--role ROLE ...] [options]\n\n"
    "Makes PATH/NAME with ca.pem, cert.pem and key.pem: all that a process needs to take part as "
    "ROLE.\n"
    "Replaces what is there of that name, which running processes notice within seconds.\n";
constexpr char kIssueExamples[] =
    "  bandoneon certs issue --role scheduler\n"
    "  bandoneon certs issue --role server --role worker --name host1 --days 30\n"
    "  bandoneon certs issue --role observer --name anna      # for bandoneon status\n";

constexpr char kShowUsage[] =
    "usage: bandoneon certs show --file PATH\n\n"
    "Says what a certificate says.\n";
constexpr char kShowExamples[] = "  bandoneon certs show --file certs/server/cert.pem\n";

int Failed(const char* command, const absl::Status& status) {
  fprintf(stderr, "bandoneon %s: %s\n", command, std::string(status.message()).c_str());
  return 1;
}

absl::StatusOr<Validity> ReadValidity(const CommandFlags& flags, int64_t otherwise) {
  const auto days = flags.Int("days", otherwise, 1, 36500);
  if (!days.ok()) return days.status();
  return Validity{absl::Now(), *days * absl::Hours(24)};
}

std::string Day(absl::Time time) {
  return absl::FormatTime("%Y-%m-%d %H:%M UTC", time, absl::UTCTimeZone());
}

}  // namespace

int CertsInitCommand(Arguments args) {
  constexpr char kName[] = "certs init";
  if (PrintedHelp(args, kInitUsage, kInitFlags, kInitExamples)) return 0;
  const auto flags = CommandFlags::Parse(kInitFlags, args);
  if (!flags.ok()) return UsageError(kName, flags.status());
  const auto validity = ReadValidity(*flags, 3650);
  if (!validity.ok()) return UsageError(kName, validity.status());
  if (!flags->Has("job")) {
    return UsageError(kName, absl::InvalidArgumentError("whose authority? say --job"));
  }
  const std::string directory = flags->Text("dir", "certs");
  const absl::Status made = MakeAuthority(directory, flags->Text("job"), *validity);
  if (!made.ok()) return Failed(kName, made);
  const std::string dir = directory == "certs" ? "" : " --dir " + directory;
  printf(
      "made %s/ca.pem, and its key, which should leave this host as seldom as it can.\n"
      "Next, a certificate for every process, by what it is:\n"
      "  bandoneon certs issue%s --role scheduler\n"
      "  bandoneon certs issue%s --role server\n"
      "  bandoneon certs issue%s --role worker\n",
      directory.c_str(), dir.c_str(), dir.c_str(), dir.c_str());
  return 0;
}

int CertsIssueCommand(Arguments args) {
  constexpr char kName[] = "certs issue";
  if (PrintedHelp(args, kIssueUsage, kIssueFlags, kIssueExamples)) return 0;
  constexpr std::string_view kRepeated[] = {"role"};
  const auto flags = CommandFlags::Parse(kIssueFlags, args, kRepeated);
  if (!flags.ok()) return UsageError(kName, flags.status());
  const auto validity = ReadValidity(*flags, 365);
  if (!validity.ok()) return UsageError(kName, validity.status());
  const std::vector<std::string> roles = flags->All("role");
  if (roles.empty()) {
    return UsageError(kName, absl::InvalidArgumentError("for what? say --role"));
  }
  const std::string name = flags->Text("name", absl::StrJoin(roles, "-"));
  const auto files = IssueCertificate(flags->Text("dir", "certs"), name, roles, *validity);
  if (!files.ok()) return Failed(kName, files.status());
  printf(
      "made %s. Copy the folder to the process's host, readable by its user alone, and start it "
      "with\n"
      "  --tls-ca %s --tls-cert %s --tls-key %s\n"
      "or BANDONEON_TLS_CA, BANDONEON_TLS_CERT and BANDONEON_TLS_KEY.\n",
      files->certificate.c_str(), files->authority.c_str(), files->certificate.c_str(),
      files->key.c_str());
  return 0;
}

int CertsShowCommand(Arguments args) {
  constexpr char kName[] = "certs show";
  if (PrintedHelp(args, kShowUsage, kShowFlags, kShowExamples)) return 0;
  const auto flags = CommandFlags::Parse(kShowFlags, args);
  if (!flags.ok()) return UsageError(kName, flags.status());
  if (!flags->Has("file")) {
    return UsageError(kName, absl::InvalidArgumentError("which certificate? say --file"));
  }
  const auto facts = ReadCertificate(flags->Text("file"));
  if (!facts.ok()) return Failed(kName, facts.status());
  printf("subject      %s\n", facts->subject.c_str());
  printf("issuer       %s\n", facts->issuer.c_str());
  if (facts->is_authority) printf("is an authority\n");
  for (const CertifiedRole& role : facts->roles) {
    printf("may be       %s of job %s\n", role.role.c_str(), role.job.c_str());
  }
  printf("valid        %s to %s%s\n", Day(facts->valid_from).c_str(),
         Day(facts->valid_until).c_str(), absl::Now() > facts->valid_until ? ", expired" : "");
  printf("fingerprint  %s\n", facts->fingerprint.c_str());
  return 0;
}

}  // namespace bdn::cli
