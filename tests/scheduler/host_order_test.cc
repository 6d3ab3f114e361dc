#include "scheduler/host_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

namespace bdn {
namespace {

TEST(HostOrder, NamesGoAsPeopleCountAndProcessesByTheirIds) {
  const std::vector<std::string> expected = {
      "a",          "a:7",        "node1:3",     "node2:900",  "node2:1000", "node2a:1", "node10:1",
      "node10-1:5", "node10-2:4", "node10-10:3", "node010x:1", "nodes:x",    "rack2:1",
  };
  std::vector<NodeInfo> nodes;
  for (const std::string& host : expected) {
    nodes.push_back({.id = static_cast<NodeId>(100 - nodes.size()), .host = host});
  }
  std::shuffle(nodes.begin(), nodes.end(), std::mt19937(5));
  std::sort(nodes.begin(), nodes.end(), ComesBefore);
  std::vector<std::string> sorted;
  for (const NodeInfo& node : nodes) sorted.push_back(node.host);
  EXPECT_EQ(sorted, expected);
}

TEST(HostOrder, OneProcessGoesByItsAddressAndThenByTheOrderOfComing) {
  const NodeInfo first{.id = 5, .endpoints = {EndpointOf("tcp://h:1")}, .host = "h:1"};
  const NodeInfo second{.id = 4, .endpoints = {EndpointOf("tcp://h:2")}, .host = "h:1"};
  NodeInfo third = second;
  third.id = 6;
  EXPECT_TRUE(ComesBefore(first, second));
  EXPECT_FALSE(ComesBefore(second, first));
  EXPECT_TRUE(ComesBefore(second, third));
  EXPECT_FALSE(ComesBefore(second, second));
}

TEST(HostOrder, NumbersOfAnyLengthCompare) {
  const NodeInfo small{.id = 2, .host = "h" + std::string(30, '9')};
  const NodeInfo large{.id = 1, .host = "h1" + std::string(30, '0')};
  EXPECT_TRUE(ComesBefore(small, large));
  EXPECT_FALSE(ComesBefore(large, small));
}

}  // namespace
}  // namespace bdn
