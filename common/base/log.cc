#include "common/base/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include "absl/strings/ascii.h"
#include "absl/time/clock.h"
#include "common/base/log_context.h"
#include "common/base/mutex.h"
#include "common/base/status.h"

namespace bdn {
namespace {

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
    case LogLevel::kOff:
      return spdlog::level::off;
  }
  return spdlog::level::off;
}

std::string TextPattern(std::string_view who) {
  return "%Y-%m-%d %H:%M:%S.%e %L " + std::string(who) + ": %v";
}

spdlog::logger* MakeLogger(const std::string& pattern) {
  auto* made = new spdlog::logger("bandoneon", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  made->set_level(spdlog::level::warn);
  made->set_pattern(pattern);
  made->flush_on(spdlog::level::trace);
  return made;
}

// The one mutable global: the log's sinks. Never destroyed, so that late threads may still log.
spdlog::logger& Sink() {
  static auto* logger = MakeLogger(TextPattern("bandoneon"));
  return *logger;
}

// Takes lines as they are; both write to one stream, whose lock is spdlog's.
spdlog::logger& JsonSink() {
  static auto* logger = MakeLogger("%v");
  return *logger;
}

struct Named {
  Mutex mu;
  std::string who ABSL_GUARDED_BY(mu) = "bandoneon";
};
Named& Process() {
  static auto* named = new Named;
  return *named;
}

// Control characters would begin lines of others' making, or move a terminal's cursor.
std::string OnOneLine(const std::string& text) {
  std::string line;
  line.reserve(text.size());
  for (const char c : text) {
    if (c == '\n') {
      line += "\\n";
    } else if (absl::ascii_iscntrl(static_cast<unsigned char>(c))) {
      absl::StrAppendFormat(&line, "\\x%02x", static_cast<uint8_t>(c));
    } else {
      line += c;
    }
  }
  return line;
}

}  // namespace

void InitLog(LogLevel level, std::string_view who) {
  Sink().set_level(ToSpdlog(level));
  Sink().set_pattern(TextPattern(who));
  JsonSink().set_level(ToSpdlog(level));
  Named& process = Process();
  MutexLock lock(&process.mu);
  process.who = who;
}

absl::Status ParseLogLevel(std::string_view text, LogLevel* level) {
  constexpr struct {
    const char* name;
    LogLevel level;
  } kNames[] = {{"debug", LogLevel::kDebug},
                {"info", LogLevel::kInfo},
                {"warning", LogLevel::kWarning},
                {"error", LogLevel::kError},
                {"off", LogLevel::kOff}};
  for (const auto& entry : kNames) {
    if (text == entry.name) {
      *level = entry.level;
      return absl::OkStatus();
    }
  }
  return InvalidArgument("log level '%s' is none of debug, info, warning, error, off",
                         std::string(text));
}

void LogLine(LogLevel level, const std::string& line) {
  if (!Sink().should_log(ToSpdlog(level))) return;
  if (CurrentLogFormat() == LogFormat::kText) {
    Sink().log(ToSpdlog(level), OnOneLine(line));
    return;
  }
  std::string who;
  {
    Named& process = Process();
    MutexLock lock(&process.mu);
    who = process.who;
  }
  JsonSink().log(ToSpdlog(level), JsonLogLine(absl::Now(), level, who, line));
}

}  // namespace bdn
