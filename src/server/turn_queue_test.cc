#include "server/turn_queue.h"

#include <gtest/gtest.h>

#include <map>

namespace nibble::server {
namespace {

bool anybody(const std::string&) { return true; }

std::string take_all(TurnQueue<char>& queue) {
  std::string all;
  while (const auto one = queue.take(anybody)) all += *one;
  return all;
}

TEST(TurnQueue, ClientsTakeTurns) {
  TurnQueue<char> queue;
  for (const char c : std::string("abcdef")) queue.push("one", c);
  for (const char c : std::string("xy")) queue.push("two", c);
  queue.push("three", '!');
  EXPECT_EQ(queue.take(anybody), 'a');
  queue.push("four", '?');  // behind those who wait already
  EXPECT_EQ(take_all(queue), "x!b?ycdef");
  EXPECT_TRUE(queue.empty());
}

TEST(TurnQueue, WhoMayNotIsPassedOverAndKeepsItsTurn) {
  TurnQueue<char> queue;
  for (const char c : std::string("ab")) queue.push("one", c);
  for (const char c : std::string("xy")) queue.push("two", c);
  const auto two = [](const std::string& client) { return client == "two"; };
  EXPECT_EQ(queue.take(two), 'x');
  EXPECT_EQ(queue.take([](const std::string&) { return false; }), std::nullopt);
  EXPECT_EQ(take_all(queue), "ayb");
}

TEST(TurnQueue, WhatIsLateGoesFromTheFrontOfEach) {
  TurnQueue<int> queue;
  for (const int i : {1, 2, 8, 1}) queue.push("one", i);
  for (const int i : {3, 4}) queue.push("two", i);
  queue.push("three", 9);
  int dropped = 0;
  queue.drop_late([](int i) { return i < 5; }, [&](int i) { dropped += i; });
  EXPECT_EQ(dropped, 1 + 2 + 3 + 4);
  std::map<std::string, size_t> left;
  queue.count([&](const std::string& client, size_t n) { left[client] = n; });
  EXPECT_EQ(left, (std::map<std::string, size_t>{{"one", 2}, {"three", 1}}));
}

}  // namespace
}  // namespace nibble::server
