#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <vector>

#include "cli/commands.h"
#include "cli/local_job.h"

namespace bdn::cli {
namespace {

constexpr Flag kFlags[] = {
    {"codec", 0, "SPEC", "a codec to measure, without ef(...); repeatable [one of each kind]"},
    {"elements", 0, "COUNT", "float32 values a partition [65536, 1048576 and 16777216]"},
    {"threads", 0, "COUNT", "threads, each on a partition of its own; rates are of all [1]"},
    {"json", 0, nullptr, "print one line of JSON a codec and size"},
};

constexpr char kUsageText[] =
    "usage: bandoneon bench codecs [options]\n"
    "\n"
    "Measures codecs alone: encode, encode with error feedback, decode-add of one payload and\n"
    "decode of four into one sum, in GB/s of float32, beside a memcpy of the same bytes in the "
    "same run.\n"
    "docs/journal/codec_speed.md explains each figure. Without options it takes about a minute.\n";

constexpr char kExamples[] =
    "  bandoneon bench codecs\n"
    "  bandoneon bench codecs --codec 'topk(ratio=0.01)' --codec 'int4(group=128)'\n"
    "  bandoneon bench codecs --codec onebit --elements 1048576 --threads 2 --json\n";

// The same limits as in the program that measures.
constexpr int64_t kMostElements = int64_t{1} << 28;
constexpr int64_t kMostThreads = 256;

constexpr int kNotFound = 127;

}  // namespace

int BenchCodecsCommand(Arguments args) {
  if (PrintedHelp(args, kUsageText, kFlags, kExamples)) return 0;
  constexpr std::string_view kRepeated[] = {"codec"};
  const auto flags = CommandFlags::Parse(kFlags, args, kRepeated);
  if (!flags.ok()) return UsageError("bench codecs", flags.status());
  const auto elements = flags->Int("elements", 1, 1, kMostElements);
  const auto threads = flags->Int("threads", 1, 1, kMostThreads);
  for (const auto* number : {&elements, &threads}) {
    if (!number->ok()) return UsageError("bench codecs", number->status());
  }
  // This command does not link the codecs: a program beside this one does the work, and checks the
  // specs.
  const std::string program = ProgramBeside("bandoneon-bench-codecs");
  std::vector<std::string> words = {program};
  for (const std::string& spec : flags->All("codec")) words.push_back("--codec=" + spec);
  for (const char* name : {"elements", "threads"}) {
    if (flags->Has(name)) words.push_back(std::string("--") + name + "=" + flags->Text(name));
  }
  if (flags->Has("json")) words.emplace_back("--json");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  execv(program.c_str(), argv.data());
  fprintf(stderr, "bandoneon bench codecs: cannot run %s: %s\n", program.c_str(), strerror(errno));
  return kNotFound;
}

}  // namespace bdn::cli
