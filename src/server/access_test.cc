#include "server/access.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nibble::server {
namespace {

using ::testing::Contains;
using ::testing::Pair;

int status_of(const AccessRules& rules, HttpHeaders headers, bool guarded = false,
              HttpHeaders* reply = nullptr) {
  HttpRequest head;
  head.method = "POST";
  head.headers = std::move(headers);
  HttpHeaders ignored;
  const auto error = check_access(rules, head, guarded, reply ? *reply : ignored);
  return error ? error->status : 200;
}

TEST(AccessTest, AsksForTheKeyWhereGuarded) {
  AccessRules rules;
  EXPECT_EQ(status_of(rules, {}, true), 200);
  rules.api_keys = {"first", "second"};
  EXPECT_EQ(status_of(rules, {}, false), 200);
  EXPECT_EQ(status_of(rules, {}, true), 401);
  EXPECT_EQ(status_of(rules, {{"authorization", "Bearer second"}}, true), 200);
  EXPECT_EQ(status_of(rules, {{"authorization", "bearer first"}}, true), 200);
  for (const std::string& bad :
       {std::string("Bearer firs"), std::string("Bearer first "), std::string("Bearer firstfirst"),
        std::string("Basic first"), std::string("first"), std::string("Bearer "), std::string(),
        "Bearer " + std::string(30'000, 'f')}) {
    EXPECT_EQ(status_of(rules, {{"authorization", bad}}, true), 401) << bad.substr(0, 30);
  }
}

TEST(AccessTest, AnEmptyKeyLetsNobodyIn) {
  AccessRules rules;
  rules.api_keys = {"", "real"};
  EXPECT_EQ(status_of(rules, {}, true), 401);
  EXPECT_EQ(status_of(rules, {{"authorization", "Bearer "}}, true), 401);
  EXPECT_EQ(status_of(rules, {{"x-api-key", ""}}, true), 401);
  EXPECT_EQ(status_of(rules, {{"x-api-key", "real"}}, true), 200);
}

TEST(AccessTest, ComparesSecrets) {
  EXPECT_TRUE(same_secret("abc", "abc"));
  EXPECT_FALSE(same_secret("abd", "abc"));
  EXPECT_FALSE(same_secret("ab", "abc"));
  EXPECT_FALSE(same_secret("abcabc", "abc"));
  EXPECT_FALSE(same_secret("", "abc"));
  EXPECT_FALSE(same_secret("abc", ""));
}

TEST(AccessTest, KnowsItsOwnNames) {
  AccessRules rules;
  EXPECT_EQ(status_of(rules, {{"host", "evil.example"}}), 200);  // meant for anyone
  rules.allowed_hosts.emplace();
  for (const char* good : {"localhost", "localhost:8000", "LOCALHOST:1", "127.0.0.1:8000",
                           "[::1]:8000", "[::1]", "192.168.0.7:80", "a.localhost"}) {
    EXPECT_EQ(status_of(rules, {{"host", good}}), 200) << good;
  }
  for (const char* bad : {"evil.example", "evil.example:8000", "localhost.evil.example", "",
                          "127.0.0.1.evil.example", "1e.example"}) {
    EXPECT_EQ(status_of(rules, {{"host", bad}}), 403) << bad;
  }
  EXPECT_EQ(status_of(rules, {}), 200);  // HTTP/1.0, of no browser
  for (const char* from : {"http://", "http://evil.example"})
    EXPECT_EQ(status_of(rules, {{"origin", from}}), 403) << from;
  rules.allowed_hosts->push_back("Spark.lan");
  EXPECT_EQ(status_of(rules, {{"host", "spark.lan:8000"}}), 200);
}

TEST(AccessTest, LetsInItsOwnPagesAndThoseOnLocalhost) {
  AccessRules rules;
  const auto origin = [&](const char* from) {
    return status_of(rules, {{"host", "box.lan:8000"}, {"origin", from}});
  };
  EXPECT_EQ(origin("http://box.lan:8000"), 200);
  EXPECT_EQ(origin("http://localhost:3000"), 200);
  EXPECT_EQ(origin("https://127.0.0.1"), 200);
  EXPECT_EQ(origin("http://box.lan:9"), 403);
  EXPECT_EQ(origin("https://evil.example"), 403);
  EXPECT_EQ(origin("http://localhost.evil.example"), 403);
  EXPECT_EQ(origin("null"), 403);
  rules.allowed_origins = {"https://ui.example"};
  EXPECT_EQ(origin("https://ui.example"), 200);
  EXPECT_EQ(origin("https://ui.example.evil"), 403);
  rules.allowed_origins = {"*"};
  EXPECT_EQ(origin("null"), 200);
}

TEST(AccessTest, TellsTheBrowserWhatItMayDo) {
  HttpHeaders reply;
  EXPECT_EQ(status_of({}, {{"host", "a"}, {"origin", "http://localhost:3000"}}, true, &reply), 200);
  EXPECT_THAT(reply, Contains(Pair("Access-Control-Allow-Origin", "http://localhost:3000")));
  EXPECT_THAT(reply, Contains(Pair("Vary", "Origin")));
  HttpRequest preflight;
  preflight.method = "OPTIONS";
  preflight.headers = {{"host", "a"}, {"origin", "http://localhost:3000"}};
  AccessRules rules;
  rules.api_keys = {"k"};
  reply.clear();
  EXPECT_FALSE(check_access(rules, preflight, true, reply));  // comes without the key
  EXPECT_THAT(reply, Contains(Pair("Access-Control-Allow-Headers", ::testing::_)));
}

TEST(AccessTest, AClientIsItsKeyOrWhereOnlyOneIsKnownItsAddress) {
  AccessRules rules;
  HttpRequest head;
  head.peer = "192.0.2.7";
  EXPECT_EQ(client_of(rules, head), "192.0.2.7");
  head.headers = {{"authorization", "Bearer second"}};
  rules.api_keys = {"second"};  // of all, maybe
  EXPECT_EQ(client_of(rules, head), "192.0.2.7");
  rules.api_keys = {"first", "second"};
  const std::string second = client_of(rules, head);
  head.peer = "192.0.2.8";
  EXPECT_EQ(client_of(rules, head), second);
  head.headers = {{"x-api-key", "first"}};
  EXPECT_NE(client_of(rules, head), second);
  EXPECT_NE(client_of(rules, head), "192.0.2.8");
}

}  // namespace
}  // namespace nibble::server
