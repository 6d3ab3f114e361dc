#include "common/base/log_context.h"

#include <atomic>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "common/base/escaped_text.h"
#include "common/base/mutex.h"
#include "common/base/status.h"

namespace bdn {
namespace {

struct Context {
  // The atomics publish no other memory.
  std::atomic<LogFormat> format{LogFormat::kText};
  std::atomic<uint64_t> step{0};  // 0 where no step is known: steps count from 1
  Mutex mu;
  LogPlace place ABSL_GUARDED_BY(mu);
};

// Returns the context, which is part of the log's state and therefore never destroyed either.
Context& Now() {
  static auto* context = new Context;
  return *context;
}

LogPlace PlaceIn(Context& context) {
  MutexLock lock(&context.mu);
  return context.place;
}

const char* LevelName(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "debug";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kWarning:
      return "warning";
    case LogLevel::kError:
      return "error";
    case LogLevel::kOff:
      return "off";
  }
  return "off";
}

void AppendText(const char* name, std::string_view text, std::string* line) {
  absl::StrAppendFormat(line, ",\"%s\":", name);
  AppendJsonText(text, line);
}

}  // namespace

absl::Status ParseLogFormat(std::string_view text, LogFormat* format) {
  if (text != "text" && text != "json") {
    return InvalidArgument("log format '%s' is neither text nor json", std::string(text));
  }
  *format = text == "json" ? LogFormat::kJson : LogFormat::kText;
  return absl::OkStatus();
}

void SetLogFormat(LogFormat format) { Now().format.store(format, std::memory_order_relaxed); }
LogFormat CurrentLogFormat() { return Now().format.load(std::memory_order_relaxed); }

void SetLogPlace(LogPlace place) {
  Context& context = Now();
  MutexLock lock(&context.mu);
  context.place = std::move(place);
  SetLogStep(0);
}

void SetLogEpoch(uint32_t epoch) {
  Context& context = Now();
  MutexLock lock(&context.mu);
  context.place.epoch = epoch;
}

void SetLogStep(uint64_t step) { Now().step.store(step, std::memory_order_relaxed); }

std::string JsonLogLine(absl::Time time, LogLevel level, std::string_view who,
                        std::string_view message) {
  std::string line = absl::StrFormat(
      "{\"time\":\"%s\",\"level\":\"%s\"",
      absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", time, absl::UTCTimeZone()), LevelName(level));
  Context& context = Now();
  const LogPlace place = PlaceIn(context);
  AppendText("role", place.role.empty() ? who : place.role, &line);
  AppendText("message", message, &line);
  if (!place.job.empty()) AppendText("job", place.job, &line);
  if (place.node) absl::StrAppendFormat(&line, ",\"node\":%d", *place.node);
  if (place.rank) absl::StrAppendFormat(&line, ",\"rank\":%d", *place.rank);
  if (place.epoch) absl::StrAppendFormat(&line, ",\"epoch\":%d", *place.epoch);
  const uint64_t step = context.step.load(std::memory_order_relaxed);
  if (step > 0) absl::StrAppendFormat(&line, ",\"step\":%d", step);
  return line + "}";
}

}  // namespace bdn
