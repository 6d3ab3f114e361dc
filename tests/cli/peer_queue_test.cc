#include "cli/peer_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "cli/rate_hello.h"
#include "cli/rate_probe.h"
#include "cli/tcp_probe.h"

namespace bdn::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::chrono::milliseconds kLimit{30000};

class PeerQueueTest : public ::testing::Test {
 protected:
  PeerQueueTest() {
    int port = 0;
    const auto listener = ListenTcp({"127.0.0.1", "0"}, &port);
    EXPECT_TRUE(listener.ok()) << listener.status();
    listener_ = *listener;
    place_ = {"127.0.0.1", std::to_string(port)};
    queue_ = std::make_unique<PeerQueue>(listener_, "sesame", [this](const absl::Status& why) {
      refused_.push_back(std::string(why.message()));
    });
  }
  ~PeerQueueTest() override {
    queue_.reset();
    close(listener_);
    for (const int fd : opened_) close(fd);
  }

  int Connect() {
    const TcpAttempt attempt = ConnectTcp(Resolve(place_)->front(), kLimit);
    EXPECT_GE(attempt.fd, 0) << attempt.why;
    return opened_.emplace_back(attempt.fd);
  }
  // Returns what a peer is told: `count` bytes, fewer where the connection ends. The queue is
  // tended meanwhile.
  std::string Hear(int fd, size_t count) {
    std::string heard;
    for (char byte = 0; heard.size() < count; heard.push_back(byte)) {
      for (pollfd polled = {fd, POLLIN, 0}; poll(&polled, 1, 1) == 0;) {
        if (queue_ != nullptr) queue_->Tend();
      }
      if (read(fd, &byte, 1) != 1) break;
    }
    return heard;
  }
  // Shows a proof, and returns the answer: 'y' or 'n'.
  char ShowToken(int fd, const std::string& token) {
    const std::string hello = Hear(fd, kHello.size() + kNonceBytes);
    EXPECT_EQ(hello.substr(0, kHello.size()), kHello);
    const std::string theirs = hello.substr(kHello.size());
    const std::string ours(kNonceBytes, 'o');
    const std::string answer = ours + RateProof("peer", token, theirs, ours);
    EXPECT_EQ(write(fd, answer.data(), answer.size()), static_cast<ssize_t>(answer.size()));
    const std::string said = Hear(fd, 1 + kProofBytes);
    if (said.front() == 'n') return 'n';
    EXPECT_EQ(said, std::string("y").append(RateProof("listener", token, theirs, ours)));
    return 'y';
  }
  int Waiting() {
    const int fd = Connect();
    EXPECT_EQ(ShowToken(fd, "sesame"), 'y');
    return fd;
  }

  int listener_ = -1;
  HostAndPort place_;
  std::vector<std::string> refused_;
  std::vector<int> opened_;
  std::unique_ptr<PeerQueue> queue_;
};

TEST_F(PeerQueueTest, TellsWhoWaitsHowManyAreBefore) {
  const int a = Waiting(), b = Waiting(), c = Waiting();
  EXPECT_EQ(Hear(a, kNoteBytes), NoteBytes(Note::kWait, 1));
  EXPECT_EQ(Hear(b, kNoteBytes), NoteBytes(Note::kWait, 2));
  EXPECT_EQ(Hear(c, kNoteBytes), NoteBytes(Note::kWait, 3));
  const auto next = queue_->Next(kLimit);
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_EQ(next->address, "127.0.0.1");
  EXPECT_EQ(Hear(b, kNoteBytes), NoteBytes(Note::kWait, 1));
  EXPECT_EQ(Hear(c, kNoteBytes), NoteBytes(Note::kWait, 2));
  EXPECT_EQ(write(next->fd, "x", 1), 1);
  EXPECT_EQ(Hear(a, 1), "x") << "the first to come is the first";
  close(next->fd);
}

TEST_F(PeerQueueTest, KeepsNobodyWaitingForWhoSaysNothing) {
  Connect();
  Waiting();
  const auto next = queue_->Next(kLimit);
  ASSERT_TRUE(next.ok()) << next.status();
  close(next->fd);
}

TEST_F(PeerQueueTest, RefusesAnotherToken) {
  const int fd = Connect();
  EXPECT_EQ(ShowToken(fd, "parsley"), 'n');
  EXPECT_EQ(Hear(fd, 1), "") << "closed";
  EXPECT_THAT(refused_, ElementsAre(HasSubstr("another token")));
  EXPECT_EQ(queue_->Next(std::chrono::milliseconds(0)).status().code(),
            absl::StatusCode::kDeadlineExceeded);
}

TEST_F(PeerQueueTest, GivesUpTheOldestOfTooManyStrangers) {
  std::vector<int> strangers;
  for (size_t i = 0; i <= PeerQueue::kMostStrangers; ++i) {
    strangers.push_back(Connect());
    Hear(strangers.back(), kHello.size());
  }
  Hear(strangers.front(), kHello.size() + kNonceBytes);
  EXPECT_EQ(Hear(strangers.front(), 1), "") << "closed";
  EXPECT_THAT(refused_, ElementsAre(HasSubstr("does not say its token")));
}

TEST_F(PeerQueueTest, SendsAwayWhoIsTooMany) {
  for (size_t i = 0; i < PeerQueue::kMostWaiting; ++i) Waiting();
  const int late = Waiting();
  EXPECT_EQ(Hear(late, kNoteBytes), NoteBytes(Note::kFull, PeerQueue::kMostWaiting));
  EXPECT_EQ(Hear(late, 1), "") << "closed";
  EXPECT_THAT(refused_, ElementsAre(HasSubstr("256 wait already")));
}

TEST_F(PeerQueueTest, ForgetsWhoLeavesWhileItWaits) {
  const int a = Waiting(), b = Waiting();
  Hear(b, kNoteBytes);
  shutdown(a, SHUT_RDWR);
  EXPECT_EQ(Hear(b, kNoteBytes), NoteBytes(Note::kWait, 1));
  EXPECT_THAT(refused_, ElementsAre(HasSubstr("left while it waited")));
}

TEST_F(PeerQueueTest, TellsWhoWaitsThatItEnds) {
  const int fd = Waiting();
  queue_->Tend();
  queue_.reset();
  EXPECT_EQ(Hear(fd, 2 * kNoteBytes), NoteBytes(Note::kWait, 1) + NoteBytes(Note::kEnded));
}

TEST(Notes, AreReadAsTheyAreWritten) {
  for (const Note note : {Note::kWait, Note::kGo, Note::kFull, Note::kEnded}) {
    const auto read = ParseNote(NoteBytes(note, 0xfedc));
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->note, note);
    EXPECT_EQ(read->number, 0xfedc);
  }
  EXPECT_FALSE(ParseNote("x12").ok());
  EXPECT_FALSE(ParseNote("w1").ok());
}

}  // namespace
}  // namespace bdn::cli
