#ifndef BANDONEON_TESTS_TRANSPORT_TRANSPORT_FIXTURE_H_
#define BANDONEON_TESTS_TRANSPORT_TRANSPORT_FIXTURE_H_

#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/transport/transport.h"
#include "gtest/gtest.h"

// The parts that the suites of transports share: an inbox, closures that count, payloads that can
// be recognised.

namespace bdn {

// Returns a peer that is known by one URL.
inline Peer PeerAt(const std::string& url, LinkSecurity security = LinkSecurity::kOpen,
                   const PublicKey& key = {}, const std::string& secret = "") {
  return {{EndpointOf(url, security)}, key, secret};
}
// Listens, and returns the URL of the network's endpoint, or of the one that there is.
inline std::string ListenAt(Transport* transport, const std::string& url) {
  const auto endpoints = transport->Listen(url);
  if (!endpoints.ok()) {
    ADD_FAILURE() << endpoints.status();
    return "";
  }
  const std::string found = NetworkUrl(*endpoints);
  return found.empty() ? UrlOf(endpoints->front()) : found;
}

// Long enough to never pass on a loaded machine, by a clock of the tests: only a failing test waits
// so.
inline const SteadyClock kClock;
inline absl::Time PatienceEnds() { return kClock.Now() + absl::Seconds(60); }

// Whether this thread is inside a call of the transport, while no callback may run on it.
inline thread_local bool is_inside_call = false;
// A scope in which this thread is inside a call of the transport.
class InsideCall {
 public:
  InsideCall() { is_inside_call = true; }
  ~InsideCall() { is_inside_call = false; }
};

// The frames that have arrived. The handler fails the test when it runs inline, or after Seal.
// Thread-safe.
class Inbox {
 public:
  struct Item {
    ConnectionId from;
    Frame frame;
  };

  Transport::FrameHandler Handler() {
    return [this](ConnectionId from, Frame frame) {
      EXPECT_FALSE(is_inside_call) << "the handler ran inline";
      MutexLock lock(&mu_);
      EXPECT_FALSE(is_sealed_) << "the handler ran after Join";
      items_.push_back({from, std::move(frame)});
      changed_.SignalAll();
    };
  }

  // The first `count` frames, in the order of their arrival; fewer, and a failure, when patience
  // ends.
  std::vector<Item> WaitFor(size_t count) {
    const absl::Time deadline = PatienceEnds();
    MutexLock lock(&mu_);
    while (items_.size() < count && kClock.WaitUntil(&changed_, &mu_, deadline)) {
    }
    EXPECT_GE(items_.size(), count) << "frames are missing";
    return items_;
  }

  size_t size() {
    MutexLock lock(&mu_);
    return items_.size();
  }
  void Seal() {
    MutexLock lock(&mu_);
    is_sealed_ = true;
  }
  void Clear() {
    MutexLock lock(&mu_);
    items_.clear();
  }

 private:
  Mutex mu_;
  CondVar changed_;
  std::vector<Item> items_ ABSL_GUARDED_BY(mu_);
  bool is_sealed_ ABSL_GUARDED_BY(mu_) = false;
};

// A maker of SendDones that must each run exactly once: one that is dropped, or runs twice or
// inline, fails the test. Thread-safe.
class Completions {
 public:
  Transport::SendDone Expect() {
    {
      MutexLock lock(&mu_);
      ++expected_;
    }
    auto once = std::make_shared<Once>();
    return [this, once](const absl::Status& status) {
      EXPECT_FALSE(is_inside_call) << "a completion ran inline";
      EXPECT_EQ(++once->runs, 1);
      MutexLock lock(&mu_);
      statuses_.push_back(status);
      changed_.SignalAll();
    };
  }

  // All statuses so far, once every expected one came.
  std::vector<absl::Status> WaitForAll() {
    const absl::Time deadline = PatienceEnds();
    MutexLock lock(&mu_);
    while (statuses_.size() < expected_ && kClock.WaitUntil(&changed_, &mu_, deadline)) {
    }
    EXPECT_EQ(statuses_.size(), expected_) << "completions are missing";
    return statuses_;
  }
  absl::Status Last() {
    const std::vector<absl::Status> all = WaitForAll();
    return all.empty() ? absl::InternalError("none came") : all.back();
  }
  size_t size() {
    MutexLock lock(&mu_);
    return statuses_.size();
  }

 private:
  struct Once {
    int runs = 0;
    ~Once() { EXPECT_EQ(runs, 1) << "a completion was dropped"; }
  };

  Mutex mu_;
  CondVar changed_;
  size_t expected_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<absl::Status> statuses_ ABSL_GUARDED_BY(mu_);
};

// Looks until the condition holds, or patience ends.
inline void AwaitTrue(const std::function<bool()>& condition) {
  const absl::Time deadline = PatienceEnds();
  while (!condition() && kClock.Now() < deadline) std::this_thread::yield();
  EXPECT_TRUE(condition());
}

// A push of `step` whose payload follows from it.
inline Frame FrameOf(Step step, size_t payload_bytes) {
  Buffer payload = Buffer::Allocate(payload_bytes);
  for (size_t i = 0; i < payload_bytes; ++i) {
    payload.data()[i] = static_cast<std::byte>(step * 31 + i * 7 + i / 251);
  }
  FrameHeader header;
  header.type = FrameType::kPush;
  header.codec = 1;
  header.sender = 3;
  header.key = Key::Of(7, 2);
  header.step = step;
  return MakeFrame(header, std::move(payload));
}

inline void ExpectSameFrame(const Frame& actual, const Frame& expected) {
  EXPECT_EQ(actual.header, expected.header);
  EXPECT_TRUE(CheckPayload(actual).ok()) << CheckPayload(actual);
  const ByteSpan bytes = actual.payload.span();
  EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), expected.payload.span().begin(),
                         expected.payload.span().end()));
}

// A directory of its own, which is removed with the object.
class TempDir {
 public:
  TempDir() {
    std::string pattern = (std::filesystem::temp_directory_path() / "bdn-test-XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~TempDir() { std::filesystem::remove_all(path_); }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace bdn

#endif  // BANDONEON_TESTS_TRANSPORT_TRANSPORT_FIXTURE_H_
