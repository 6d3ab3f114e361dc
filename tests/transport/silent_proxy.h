#ifndef BANDONEON_TESTS_TRANSPORT_SILENT_PROXY_H_
#define BANDONEON_TESTS_TRANSPORT_SILENT_PROXY_H_

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace bdn {

// A proxy between a connector and a listener, as a middlebox is. It passes bytes on until it is
// told otherwise: it forgets its connections (they are not closed, and bytes that come on them are
// lost), or cuts them, or stalls, when it neither takes nor passes on bytes until it goes on, and
// loses nothing. Thread-safe.
class SilentProxy {
 public:
  // `address`: "tcp://127.0.0.1:port".
  explicit SilentProxy(const std::string& address) : target_(Loopback(PortOf(address))) {
    listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in any = Loopback(0);
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&any), sizeof(any)), 0);
    EXPECT_EQ(listen(listener_, 16), 0);
    socklen_t size = sizeof(any);
    getsockname(listener_, reinterpret_cast<sockaddr*>(&any), &size);
    address_ = absl::StrCat("tcp://127.0.0.1:", ntohs(any.sin_port));
    thread_ = std::thread([this] { Run(); });
  }
  ~SilentProxy() {
    is_over_ = true;
    Wake();
    thread_.join();
    for (const Pair& pair : pairs_) {
      close(pair.fds[0]);
      close(pair.fds[1]);
    }
    close(listener_);
    close(wake_);
  }

  const std::string& address() const { return address_; }
  void GoSilent() { num_silent_ = num_accepted_.load(); }
  // Ends the connections that there are, at both ends.
  void Cut() {
    num_cut_ = num_accepted_.load();
    Wake();
  }
  // After so many bytes more, of both directions together. Connections are accepted still.
  void StallAfter(int64_t bytes) {
    bytes_left_ = bytes;
    Wake();
  }
  bool is_stalled() const { return bytes_left_ == 0; }
  void GoOn() { StallAfter(kForEver); }
  int num_accepted() const { return num_accepted_; }

 private:
  static constexpr int64_t kForEver = INT64_MAX;
  struct Pair {
    int fds[2];
  };

  static int PortOf(const std::string& address) {
    return std::stoi(address.substr(address.rfind(':') + 1));
  }
  static sockaddr_in Loopback(int port) {
    sockaddr_in name{};
    name.sin_family = AF_INET;
    name.sin_port = htons(static_cast<uint16_t>(port));
    name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return name;
  }
  void Wake() {
    const uint64_t one = 1;
    (void)!write(wake_, &one, sizeof(one));
  }

  void Accept() {
    Pair pair{{accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC),
               socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)}};
    EXPECT_EQ(connect(pair.fds[1], reinterpret_cast<const sockaddr*>(&target_), sizeof(target_)),
              0);
    pairs_.push_back(pair);
    ++num_accepted_;
  }

  // False when an end has closed.
  bool HandOn(int from, int to, bool is_silent) {
    char bytes[65536];
    int64_t left = bytes_left_;
    const int64_t most = std::min<int64_t>(sizeof(bytes), left);
    if (most == 0) return true;
    const ssize_t got = read(from, bytes, static_cast<size_t>(most));
    if (got <= 0) return false;
    // Unless it was told otherwise meanwhile.
    if (left != kForEver) bytes_left_.compare_exchange_strong(left, left - got);
    for (ssize_t sent = 0; !is_silent && sent < got;) {
      const ssize_t wrote = send(to, bytes + sent, static_cast<size_t>(got - sent), MSG_NOSIGNAL);
      if (wrote <= 0) return false;
      sent += wrote;
    }
    return true;
  }

  void Run() {
    std::vector<bool> has_ended;
    while (!is_over_) {
      std::vector<pollfd> fds = {{wake_, POLLIN, 0}, {listener_, POLLIN, 0}};
      has_ended.resize(pairs_.size());
      for (size_t i = 0; i < pairs_.size(); ++i) {
        for (const int fd : pairs_[i].fds) fds.push_back({has_ended[i] ? -1 : fd, POLLIN, 0});
      }
      if (is_stalled()) {
        for (size_t i = 2; i < fds.size(); ++i) fds[i].fd = -1;
      }
      if (poll(fds.data(), fds.size(), -1) < 0) continue;
      uint64_t wakes;
      if (fds[0].revents != 0) (void)!read(wake_, &wakes, sizeof(wakes));
      for (int i = 0; i < num_cut_; ++i) {
        for (const int fd : pairs_[static_cast<size_t>(i)].fds) shutdown(fd, SHUT_RDWR);
      }
      const size_t known = pairs_.size();
      if (fds[1].revents != 0) Accept();
      for (size_t i = 0; i < known; ++i) {
        const bool is_silent = static_cast<int>(i) < num_silent_;
        for (int side = 0; side < 2; ++side) {
          if (fds[2 + 2 * i + static_cast<size_t>(side)].revents == 0) continue;
          if (HandOn(pairs_[i].fds[side], pairs_[i].fds[1 - side], is_silent)) continue;
          has_ended[i] = true;
          if (!is_silent) shutdown(pairs_[i].fds[1 - side], SHUT_RDWR);
        }
      }
    }
  }

  const sockaddr_in target_;
  const int wake_ = eventfd(0, EFD_CLOEXEC);
  int listener_ = -1;
  std::string address_;
  std::atomic<bool> is_over_{false};
  std::atomic<int> num_accepted_{0};
  std::atomic<int> num_silent_{0};
  std::atomic<int> num_cut_{0};
  std::atomic<int64_t> bytes_left_{kForEver};
  std::vector<Pair> pairs_;  // of the thread
  std::thread thread_;
};

}  // namespace bdn

#endif  // BANDONEON_TESTS_TRANSPORT_SILENT_PROXY_H_
