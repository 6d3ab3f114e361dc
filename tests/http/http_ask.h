#ifndef BANDONEON_TESTS_HTTP_HTTP_ASK_H_
#define BANDONEON_TESTS_HTTP_HTTP_ASK_H_

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

namespace bdn {

// Sends `text` and reads until the other end closes.
inline std::string Ask(int port, const std::string& text) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  EXPECT_EQ(send(fd, text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
  std::string answer;
  char some[4096];
  for (ssize_t n; (n = read(fd, some, sizeof(some))) > 0;)
    answer.append(some, static_cast<size_t>(n));
  close(fd);
  return answer;
}

}  // namespace bdn

#endif  // BANDONEON_TESTS_HTTP_HTTP_ASK_H_
