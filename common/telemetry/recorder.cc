#include "common/telemetry/recorder.h"

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <ctime>
#include <nlohmann/json.hpp>

#include "absl/time/clock.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/base/thread.h"

namespace bdn {
namespace {

constexpr absl::Duration kSampleInterval = absl::Seconds(1);
constexpr absl::Duration kTroubleInterval = absl::Minutes(1);
// The numbers of texts begin here. No key has such a number, as jobs have fewer tensors.
constexpr uint64_t kFirstText = uint64_t{0xffff} << 48;
constexpr size_t kMostTexts = 4096;

// The number of forks between the first process and this one. A forked child must not write into a
// recording of its parent. Publishes no other memory.
std::atomic<int> forks = 0;

int WatchForks() {
  static const int watching =
      pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); });
  (void)watching;
  return forks.load(std::memory_order_relaxed);
}

// The block that this thread has in a recording. The recording lives on until the thread has given
// it back.
class Slot {
 public:
  Slot(std::shared_ptr<Recording> recording, uint16_t thread) : recording_(std::move(recording)) {
    writer.thread = thread;
  }
  ~Slot() { recording_->Release(writer); }
  Slot(const Slot&) = delete;
  Slot& operator=(const Slot&) = delete;

  const Recording* recording() const { return recording_.get(); }
  // Returns whether only this thread still has the recording.
  bool is_last() const { return recording_.use_count() == 1; }

  Recording::Writer writer;

 private:
  const std::shared_ptr<Recording> recording_;
};

// The blocks of this thread in recordings: that of the recording that it used last comes first.
thread_local std::vector<std::unique_ptr<Slot>> slots;

int64_t ReadClock(clockid_t id) {
  timespec time = {};
  clock_gettime(id, &time);
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

bool ReadNumber(std::string_view text, Step* number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
  return error == std::errc() && end == text.data() + text.size();
}

std::string TextOf(const RecorderFacts& facts, const RecorderOptions& options) {
  nlohmann::ordered_json settings = nlohmann::ordered_json::object();
  for (const auto& [name, value] : options.settings) settings[name] = value;
  const std::string boot = ReadProcLine("/proc/sys/kernel/random/boot_id");
  const nlohmann::ordered_json text = {
      {"job", facts.job},         {"role", facts.role},
      {"rank", facts.rank},       {"node", facts.node},
      {"host", facts.host},       {"pid", getpid()},
      {"boot_id", boot},          {"cores", std::thread::hardware_concurrency()},
      {"version", BDN_VERSION},   {"workers", facts.workers},
      {"servers", facts.servers}, {"settings", settings}};
  // Bytes that are no UTF-8 are replaced: a name must not cost the recording.
  return text.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace

absl::StatusOr<TraceSteps> ParseTraceSteps(std::string_view text) {
  constexpr std::string_view kEvery = "every ";
  TraceSteps steps;
  if (text.empty()) return steps;
  if (text.starts_with(kEvery)) {
    if (ReadNumber(text.substr(kEvery.size()), &steps.every) && steps.every > 0) return steps;
  } else if (const size_t dash = text.find('-'); dash != std::string_view::npos) {
    if (ReadNumber(text.substr(0, dash), &steps.first) &&
        ReadNumber(text.substr(dash + 1), &steps.last) && steps.first <= steps.last) {
      return steps;
    }
  }
  return InvalidArgument("setting trace-steps is '%s': expected steps as 100-120, or every 50",
                         text);
}

absl::StatusOr<RecorderOptions> ReadRecorderOptions(const Config& config) {
  RecorderOptions options;
  BDN_ASSIGN_OR_RETURN(options.bytes, config.Bytes("recorder-bytes"));
  if (options.bytes != 0 && options.bytes < (128 << 10)) {
    return InvalidArgument("setting recorder-bytes is %s: expected 128KiB or more, or 0 for off",
                           config.Text("recorder-bytes"));
  }
  options.directory = config.Text("trace");
  BDN_ASSIGN_OR_RETURN(options.max_file_bytes, config.Bytes("trace-bytes"));
  if (options.max_file_bytes < (32 << 20)) {
    return InvalidArgument("setting trace-bytes is %s: expected 32MiB or more",
                           config.Text("trace-bytes"));
  }
  BDN_ASSIGN_OR_RETURN(options.steps, ParseTraceSteps(config.Text("trace-steps")));
  options.trouble_directory = config.Text("recorder-dir");
  options.settings = config.Given();
  return options;
}

std::unique_ptr<Recorder> Recorder::Open(const RecorderOptions& options,
                                         const RecorderFacts& facts) {
  const std::string text = TextOf(facts, options);
  const std::string name = absl::StrFormat("%s-%d", facts.role, facts.rank);
  absl::StatusOr<std::unique_ptr<Recording>> recording = nullptr;
  if (!options.directory.empty()) {
    recording = Recording::InFile(options.directory, options.max_file_bytes, name, text);
    if (!recording.ok()) {
      LogWarning("setting trace: %s; records are kept in memory alone",
                 recording.status().message());
      recording = nullptr;
    }
  }
  if (*recording == nullptr && options.bytes > 0) {
    recording = Recording::InMemory(options.bytes, name, text);
    if (!recording.ok()) {
      LogWarning("nothing is recorded: %s", recording.status().message());
      return nullptr;
    }
  }
  if (*recording == nullptr) return nullptr;
  return std::unique_ptr<Recorder>(new Recorder(options, *std::move(recording)));
}

Recorder::Recorder(const RecorderOptions& options, std::unique_ptr<Recording> recording)
    : recording_(std::move(recording)),
      steps_(options.steps),
      trouble_directory_(options.trouble_directory),
      forks_(WatchForks()) {
  Sample();
  sampler_ = StartThread("bdn-recorder", [this] { Run(); });
}

Recorder::~Recorder() {
  {
    MutexLock lock(&mu_);
    is_ending_ = true;
  }
  wake_.Signal();
  sampler_.join();
  Sample();
  recording_->End(ReadClock(CLOCK_MONOTONIC));
  std::erase_if(slots, [this](const auto& slot) { return slot->recording() == recording_.get(); });
}

Recording::Writer* Recorder::WriterOfThread() {
  if (forks.load(std::memory_order_relaxed) != forks_) return nullptr;
  const auto is_here = [this](const auto& slot) { return slot->recording() == recording_.get(); };
  if (!slots.empty() && is_here(slots.front())) return &slots.front()->writer;
  auto found = std::find_if(slots.begin(), slots.end(), is_here);
  if (found == slots.end()) {
    // Recorders have ended meanwhile of which this thread alone keeps the memory.
    std::erase_if(slots, [](const auto& slot) { return slot->is_last(); });
    std::array<char, 16> name = {};
    pthread_getname_np(pthread_self(), name.data(), name.size());
    const auto id = static_cast<uint32_t>(syscall(SYS_gettid));
    slots.push_back(std::make_unique<Slot>(recording_, recording_->PlaceOfThread(id, name.data())));
    found = slots.end() - 1;
  }
  std::iter_swap(slots.begin(), found);
  return &slots.front()->writer;
}

uint64_t Recorder::NumberOf(std::string_view text) {
  uint64_t number;
  {
    MutexLock lock(&mu_);
    const auto found = texts_.find(text);
    if (found != texts_.end()) return found->second;
    // A program that makes up texts without end gets one number for all of the later ones.
    if (texts_.size() == kMostTexts) return kFirstText + kMostTexts;
    number = kFirstText + texts_.size();
    texts_.emplace(text, number);
  }
  Name(number, text);
  return number;
}

int64_t Recorder::SampleClocks() {
  const int64_t now = ReadClock(CLOCK_MONOTONIC);
  recording_->StoreClocks({now, ReadClock(CLOCK_REALTIME)});
  return now;
}

absl::StatusOr<std::string> Recorder::Latest(uint64_t most_bytes, absl::Duration last) {
  {
    MutexLock lock(&sampling_);
    SampleClocks();
  }
  return recording_->Latest(most_bytes, absl::ToInt64Nanoseconds(last));
}

void Recorder::Sample() {
  MutexLock lock(&sampling_);
  const int64_t now = SampleClocks();
  AddSamples(samples_.Take(now, recording_.get()));
  SampleLinks(now);
}

void Recorder::SampleLinks(int64_t now_ns) {
  if (links_ != nullptr) AddSamples(link_samples_.Take(now_ns, links_()));
}

void Recorder::AddSamples(const std::vector<TraceRecord>& records) {
  for (const TraceRecord& record : records) {
    if (Recording::Writer* const writer = WriterOfThread()) recording_->Add(writer, record);
  }
}

void Recorder::SetLinks(LinkSource links) {
  MutexLock lock(&sampling_);
  const bool is_last = links == nullptr;
  if (!is_last) links_ = std::move(links);
  SampleLinks(ReadClock(CLOCK_MONOTONIC));
  if (is_last) links_ = nullptr;
}

void Recorder::WriteOnTrouble(std::string_view why) {
  if (trouble_directory_.empty() || !path().empty()) return;
  {
    MutexLock lock(&mu_);
    const absl::Time now = absl::Now();
    if (now < next_trouble_) return;
    next_trouble_ = now + kTroubleInterval;
  }
  const absl::StatusOr<std::string> written = WriteTo(trouble_directory_);
  if (!written.ok()) {
    LogWarning("the recording cannot be kept (%s): %s", why, written.status().message());
    return;
  }
  LogInfo("the recording is in %s (%s); `bandoneon trace hang %s` reads it", *written, why,
          trouble_directory_);
}

void Recorder::Run() {
  for (;;) {
    {
      MutexLock lock(&mu_);
      while (!is_ending_ && wake_.WaitFor(&mu_, kSampleInterval)) {
      }
      if (is_ending_) return;
    }
    Sample();
  }
}

}  // namespace bdn
