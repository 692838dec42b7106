#include "server/http.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "server/http_testing.h"

namespace nibble::server {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// A server that echoes: /echo gives the body back, /stream streams "one", "two"; /hold answers when
// release() is called; /drop never answers; anything else is refused by the gate.
class HttpTest : public ::testing::Test {
 protected:
  HttpTest() {
    options_.port = 0;
    options_.max_body_bytes = 100'000;
    options_.max_held_bytes = 150'000;
    options_.idle_timeout = std::chrono::milliseconds(400);
    options_.head_timeout = std::chrono::milliseconds(300);
    options_.body_timeout = std::chrono::milliseconds(300);
    options_.write_timeout = std::chrono::milliseconds(300);
    options_.linger_timeout = std::chrono::milliseconds(300);
  }
  ~HttpTest() override {
    held_.reset();
    if (server_) server_->stop();
  }

  void start() {
    server_ = std::make_unique<HttpServer>(
        options_,
        [](const HttpRequest& head, HttpHeaders& headers) -> std::optional<HttpResponse> {
          headers.emplace_back("X-Gate", "seen");
          if (head.path == "/secret") return HttpResponse{.status = 401, .body = "no"};
          return std::nullopt;
        },
        [this](HttpRequest request, std::shared_ptr<HttpReply> reply) {
          handle(std::move(request), std::move(reply));
        },
        [](int status, const std::string& message) {
          return std::to_string(status) + ": " + message;
        });
    server_->start();
  }

  void handle(const HttpRequest& request, std::shared_ptr<HttpReply> reply) {
    if (request.path == "/echo") {
      reply->send({.content_type = "text/plain", .body = request.query + request.body});
    } else if (request.path == "/stream") {
      reply->start({.content_type = "text/plain"});
      reply->write("one");
      reply->write("two");
      reply->finish();
    } else if (request.path == "/flood") {
      reply->start({.content_type = "text/plain"});
      for (int i = 0; i < 64 && !reply->gone(); ++i) reply->write(std::string(1 << 20, 'x'));
      reply->on_gone([this] { notify_gone(); });
    } else if (request.path == "/hold") {
      reply->on_gone([this] { notify_gone(); });
      std::lock_guard lock(mutex_);
      held_ = std::move(reply);
      changed_.notify_all();
    }
  }

  void notify_gone() {
    std::lock_guard lock(mutex_);
    gone_ = true;
    changed_.notify_all();
  }
  bool wait_gone() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(10), [this] { return gone_; });
  }
  bool eventually_closed() {  // within a minute, as sanitizers look at every byte of each write
    for (int i = 0; i < 6000 && server_->num_connections() > 0; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return server_->num_connections() == 0;
  }
  std::shared_ptr<HttpReply> wait_held() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(10), [this] { return held_ != nullptr; });
    return held_;
  }

  HttpOptions options_;
  std::unique_ptr<HttpServer> server_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<HttpReply> held_;
  bool gone_ = false;
};

TEST_F(HttpTest, AnswersAndKeepsTheConnection) {
  start();
  RawClient client(server_->port());
  for (int i = 0; i < 3; ++i) {
    client.send_bytes("POST /echo?q=1& HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello");
    EXPECT_THAT(client.read_answer(),
                AllOf(StartsWith("HTTP/1.1 200 OK\r\n"), HasSubstr("X-Gate: seen\r\n"),
                      HasSubstr("Connection: keep-alive\r\n"), EndsWith("\r\n\r\nq=1&hello")));
  }
}

TEST_F(HttpTest, AnswersPipelinedRequestsInOrder) {
  start();
  RawClient client(server_->port());
  std::string requests;
  for (int i = 0; i < 50; ++i) {
    requests +=
        "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n" + std::to_string(10 + i);
  }
  client.send_bytes(requests + "\r\n");  // an empty line between requests is allowed
  for (int i = 0; i < 50; ++i) {
    EXPECT_THAT(client.read_answer(), EndsWith("\r\n\r\n" + std::to_string(10 + i)));
  }
}

TEST_F(HttpTest, ReadsPipelinedRequestsBehindOneThatTakesLong) {
  start();
  RawClient client(server_->port());
  client.send_bytes(
      "GET /hold HTTP/1.1\r\nHost: a\r\n\r\nGET /echo?next HTTP/1.1\r\nHost: a\r\n\r\n");
  wait_held()->send({.body = "late"});
  EXPECT_THAT(client.read_answer(), EndsWith("\r\n\r\nlate"));
  EXPECT_THAT(client.read_answer(), EndsWith("\r\n\r\nnext"));
}

TEST_F(HttpTest, StreamsInChunks) {
  start();
  RawClient client(server_->port());
  client.send_bytes("GET /stream HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_THAT(client.read_until("0\r\n\r\n"),
              AllOf(HasSubstr("Transfer-Encoding: chunked\r\n"),
                    EndsWith("\r\n\r\n3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n")));
}

TEST_F(HttpTest, StreamsToHttp10UntilTheEnd) {
  start();
  RawClient client(server_->port());
  client.send_bytes("GET /stream HTTP/1.0\r\n\r\n");
  EXPECT_THAT(client.read_to_end(), AllOf(HasSubstr("Connection: close\r\n"),
                                          Not(HasSubstr("chunked")), EndsWith("\r\n\r\nonetwo")));
}

TEST_F(HttpTest, LeavesTheBodyOutForHead) {
  start();
  RawClient client(server_->port());
  client.send_bytes(
      "HEAD /echo?12345 HTTP/1.1\r\nHost: a\r\n\r\nGET /echo?x HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_THAT(client.read_until("\r\n\r\n"), HasSubstr("Content-Length: 5\r\n"));
  EXPECT_THAT(client.read_answer(), EndsWith("\r\n\r\nx"));
}

TEST_F(HttpTest, ReadsChunkedBodiesAndAbsoluteTargets) {
  start();
  RawClient client(server_->port());
  client.send_bytes(
      "POST http://a.b/echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
      "3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nTrailer: t\r\n\r\n");
  EXPECT_THAT(client.read_answer(), EndsWith("\r\n\r\nabcde"));
}

TEST_F(HttpTest, SaysContinueWhereItIsExpected) {
  start();
  RawClient client(server_->port());
  client.send_bytes(
      "POST /echo HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
  EXPECT_EQ(client.read_until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  client.send_bytes("ok");
  EXPECT_THAT(client.read_answer(), EndsWith("\r\n\r\nok"));
  client.send_bytes(
      "POST /echo HTTP/1.1\r\nHost: a\r\nExpect: magic\r\nContent-Length: 2\r\n\r\nok");
  EXPECT_THAT(client.read_to_end(), StartsWith("HTTP/1.1 417"));
}

struct Refusal {
  const char* name;
  std::string request;
  const char* status;
};

class HttpRefusalTest : public HttpTest, public ::testing::WithParamInterface<Refusal> {};

TEST_P(HttpRefusalTest, IsRefusedAndClosed) {
  start();
  RawClient client(server_->port());
  client.send_bytes(GetParam().request);
  EXPECT_THAT(client.read_to_end(), StartsWith(std::string("HTTP/1.1 ") + GetParam().status));
  // And the server still answers others.
  RawClient other(server_->port());
  other.send_bytes("GET /echo?up HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_THAT(other.read_answer(), EndsWith("\r\n\r\nup"));
}

std::string with_head(const std::string& fields) {
  return "POST /echo HTTP/1.1\r\nHost: a\r\n" + fields + "\r\n\r\n";
}

std::string many_headers() {
  std::string text = "GET /echo HTTP/1.1\r\nHost: a\r\n";
  for (int i = 0; i < 10'000; ++i) text += "X-" + std::to_string(i) + ": y\r\n";
  return text + "\r\n";
}

INSTANTIATE_TEST_SUITE_P(
    Abuse, HttpRefusalTest,
    ::testing::Values(
        Refusal{"garbage", "\x16\x03\x01\x02 this is TLS, perhaps\r\n\r\n", "400"},
        Refusal{"version", "GET / HTTP/3.0\r\n\r\n", "505"},
        Refusal{"noSpace", "GET/HTTP/1.1\r\n\r\n", "400"},
        Refusal{"hugeHeader", with_head("X: " + std::string(1'000'000, 'x')), "431"},
        Refusal{"manyHeaders", many_headers(), "431"},
        Refusal{"noLineEnd", std::string(100'000, 'G'), "4"},
        Refusal{"bodyTooLarge", with_head("Content-Length: 100001"), "413"},
        Refusal{"absurdLength", with_head("Content-Length: 99999999999999999999999"), "400"},
        Refusal{"negativeLength", with_head("Content-Length: -1"), "400"},
        Refusal{"twoLengths", with_head("Content-Length: 1\r\nContent-Length: 2"), "400"},
        Refusal{"lengthAndChunked", with_head("Content-Length: 5\r\nTransfer-Encoding: chunked"),
                "400"},
        Refusal{"chunkedAndLength", with_head("Transfer-Encoding: chunked\r\nContent-Length: 5"),
                "400"},
        Refusal{"unknownEncoding", with_head("Transfer-Encoding: gzip, chunked"), "501"},
        Refusal{"notChunkedLast", with_head("Transfer-Encoding: gzip"), "400"},
        Refusal{"chunkedTwice", with_head("Transfer-Encoding: chunked, chunked"), "400"},
        Refusal{"chunkedBehindNothing", with_head("Transfer-Encoding: ,chunked"), "400"},
        Refusal{"chunkedWithWeight", with_head("Transfer-Encoding: chunked;q=1"), "400"},
        Refusal{"chunkedInHttp10",
                "POST /echo HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "400"},
        Refusal{"chunkSizeWithoutCr", with_head("Transfer-Encoding: chunked") + "3\n", "400"},
        Refusal{"chunkExtensionWithoutCr", with_head("Transfer-Encoding: chunked") + "3;a=b\n",
                "400"},
        Refusal{"gzip", with_head("Content-Encoding: gzip\r\nContent-Length: 3") + "abc", "415"},
        Refusal{"getWithBody", "GET /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n", "400"},
        Refusal{"optionsWithBody",
                "OPTIONS /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", "400"},
        Refusal{"noHost", "GET /echo HTTP/1.1\r\n\r\n", "400"},
        Refusal{"twoHosts", "GET /echo HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", "400"},
        Refusal{"hostOfTwoWords", "GET /echo HTTP/1.1\r\nHost: a b\r\n\r\n", "400"},
        Refusal{"hugeChunk", with_head("Transfer-Encoding: chunked") + "FFFFFFFFFFFFFFFFF\r\n",
                "400"},
        Refusal{"chunkOverLimit", with_head("Transfer-Encoding: chunked") + "20000\r\n", "413"},
        Refusal{"endlessChunkHeader",
                with_head("Transfer-Encoding: chunked") + "1;" + std::string(60'000, 'x'), "4"},
        Refusal{"badChunk", with_head("Transfer-Encoding: chunked") + "zz\r\n", "400"},
        Refusal{"foldedLine", "GET /echo HTTP/1.1\r\nHost: a\r\nX: b\r\n c\r\n\r\n", "400"},
        Refusal{"foldedControl", "GET /echo HTTP/1.1\r\nHost: a\r\nA: b\r\n\tc\x01\r\n\r\n", "400"},
        Refusal{"nulInName", std::string("GET /echo HTTP/1.1\r\nHost: a\r\nA\0B: c\r\n\r\n", 38),
                "400"},
        Refusal{"slowHead", "GET /echo HTTP/1.1\r\nHost", "408"},
        Refusal{"slowBody", with_head("Content-Length: 10") + "1", "408"}),
    [](const auto& info) { return info.param.name; });

TEST_F(HttpTest, RefusesByTheGateWithoutReadingTheBody) {
  start();
  RawClient client(server_->port());
  client.send_bytes("POST /secret HTTP/1.1\r\nHost: a\r\nContent-Length: 90000\r\n\r\nsome of it");
  EXPECT_THAT(client.read_to_end(), StartsWith("HTTP/1.1 401"));
  // Without a body there is nothing to skip: the connection stays.
  RawClient other(server_->port());
  other.send_bytes(
      "GET /secret HTTP/1.1\r\nHost: a\r\n\r\nGET /echo?x HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_THAT(other.read_answer(), StartsWith("HTTP/1.1 401"));
  EXPECT_THAT(other.read_answer(), EndsWith("\r\n\r\nx"));
}

TEST_F(HttpTest, SlowBytesDoNotExtendTheDeadline) {
  start();
  RawClient client(server_->port());
  std::string answer;
  for (int i = 0; i < 100 && client.send_bytes("G") && !client.closed_within(20); ++i) {
  }
  EXPECT_THAT(client.read_to_end(), StartsWith("HTTP/1.1 408"));
}

TEST_F(HttpTest, ClosesIdleConnections) {
  start();
  RawClient client(server_->port());
  EXPECT_TRUE(client.closed_within(5'000));
  EXPECT_EQ(client.read_to_end(), "");
}

TEST_F(HttpTest, NoticesAClientThatGoesAwayWhileItWaits) {
  start();
  RawClient client(server_->port());
  client.send_bytes("GET /hold HTTP/1.1\r\nHost: a\r\n\r\n");
  const auto reply = wait_held();
  EXPECT_FALSE(reply->gone());
  client.hang_up();
  EXPECT_TRUE(wait_gone());
  EXPECT_TRUE(reply->gone());
  reply->send({});  // harmless
}

TEST_F(HttpTest, NoticesAResetInTheMiddleOfAStream) {
  start();
  RawClient client(server_->port());
  client.send_bytes("GET /hold HTTP/1.1\r\nHost: a\r\n\r\n");
  const auto reply = wait_held();
  reply->start({});
  reply->write("data");
  EXPECT_THAT(client.read_until("data"), EndsWith("data"));
  client.reset();
  EXPECT_TRUE(wait_gone());
}

TEST_F(HttpTest, DropsAClientThatDoesNotReadItsStream) {
  options_.max_held_bytes = 64 << 20;
  start();
  RawClient client(server_->port());
  client.send_bytes("GET /flood HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_TRUE(wait_gone());
}

TEST_F(HttpTest, DropsAClientThatDoesNotReadItsAnswer) {
  options_.max_held_bytes = 64 << 20;
  start();
  RawClient client(server_->port());
  client.send_bytes("GET /hold HTTP/1.1\r\nHost: a\r\n\r\n");
  wait_held()->send({.body = std::string(32 << 20, 'x')});  // more than the sockets buffer
  EXPECT_TRUE(eventually_closed());
}

TEST_F(HttpTest, Answers500WhereTheHandlerForgets) {
  start();
  RawClient client(server_->port());
  client.send_bytes("GET /nothing HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_THAT(client.read_answer(), StartsWith("HTTP/1.1 500"));
}

TEST_F(HttpTest, CutsAForgottenStreamOff) {
  start();
  RawClient client(server_->port());
  client.send_bytes("GET /hold HTTP/1.1\r\nHost: a\r\n\r\n");
  wait_held()->start({});
  held_.reset();
  EXPECT_THAT(client.read_to_end(), Not(HasSubstr("0\r\n\r\n")));  // not a complete answer
}

TEST_F(HttpTest, TakesSoManyConnectionsAndRefusesTheNext) {
  options_.max_connections = 3;
  options_.idle_timeout = std::chrono::seconds(30);
  start();
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 3; ++i) {
    clients.push_back(std::make_unique<RawClient>(server_->port()));
    clients.back()->send_bytes("GET /echo?x HTTP/1.1\r\nHost: a\r\n\r\n");
    EXPECT_THAT(clients.back()->read_answer(), EndsWith("x"));
  }
  RawClient next(server_->port());
  EXPECT_THAT(next.read_to_end(),
              AllOf(StartsWith("HTTP/1.1 503"), HasSubstr("Retry-After: 1\r\n")));
}

TEST_F(HttpTest, BodiesThatAreOnlyAnnouncedHoldNothing) {
  options_.body_timeout = std::chrono::seconds(30);
  start();
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 64; ++i) {
    clients.push_back(std::make_unique<RawClient>(server_->port()));
    clients.back()->send_bytes(i % 2 == 0 ? with_head("Content-Length: 100000") + "x"
                                          : with_head("Transfer-Encoding: chunked") + "18000\r\n");
  }
  RawClient innocent(server_->port());
  innocent.send_bytes(with_head("Content-Length: 90000") + std::string(90'000, 'x'));
  EXPECT_THAT(innocent.read_answer(), EndsWith("xxx"));
}

TEST_F(HttpTest, TheLargestBodyGivesWay) {
  options_.body_timeout = std::chrono::seconds(30);
  options_.max_body_bytes = 1 << 20;
  options_.max_held_bytes = 500'000;
  start();
  const auto arriving = [&](size_t bytes) {
    auto client = std::make_unique<RawClient>(server_->port());
    client->send_bytes(with_head("Content-Length: 1000000") + std::string(bytes, 'x'));
    return client;
  };
  const auto large = arriving(400'000);  // a string's room is up to twice what it holds
  const auto small = arriving(100'000);
  const auto next = arriving(150'000);
  EXPECT_THAT(large->read_to_end(),
              AllOf(StartsWith("HTTP/1.1 503"), HasSubstr("Retry-After: 1\r\n")));
  for (const auto& [client, rest] : {std::pair(small.get(), 900'000), {next.get(), 850'000}}) {
    client->send_bytes(std::string(50'000, 'x'));
    EXPECT_FALSE(client->closed_within(50)) << rest;
  }
}

TEST_F(HttpTest, TakesManySmallBodiesInChunks) {
  options_.max_held_bytes = 0;  // what is small is free
  options_.body_timeout = std::chrono::seconds(30);
  start();
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 64; ++i) {
    clients.push_back(std::make_unique<RawClient>(server_->port()));
    clients.back()->send_bytes(with_head("Transfer-Encoding: chunked") + "3\r\nabc\r\n");
  }
  for (const auto& client : clients) {
    client->send_bytes("1\r\nd\r\n0\r\n\r\n");
    EXPECT_THAT(client->read_answer(), EndsWith("\r\n\r\nabcd"));
  }
}

TEST_F(HttpTest, DropsTheSlowestReaderOfWholeAnswers) {
  options_.max_held_bytes = 16 << 20;
  options_.write_timeout = std::chrono::seconds(30);
  start();
  RawClient client(server_->port());
  client.send_bytes("GET /hold HTTP/1.1\r\nHost: a\r\n\r\n");
  wait_held()->send({.body = std::string(40 << 20, 'x')});  // the sockets take some of it
  EXPECT_TRUE(eventually_closed());
}

TEST_F(HttpTest, NoticesThatAClientLeavesBehindItsPipelinedRequests) {
  start();
  RawClient client(server_->port());
  client.send_bytes("GET /hold HTTP/1.1\r\nHost: a\r\n\r\n");
  const auto reply = wait_held();
  std::string requests;
  while (requests.size() < 200'000) requests += "GET /echo?x HTTP/1.1\r\nHost: a\r\n\r\n";
  client.send_bytes(requests);
  client.hang_up();
  EXPECT_TRUE(wait_gone());
}

TEST_F(HttpTest, AnswersWithoutABodyHaveNoFraming) {
  start();
  RawClient client(server_->port());
  client.send_bytes("GET /hold HTTP/1.1\r\nHost: a\r\n\r\n");
  wait_held()->send({.status = 204, .content_type = ""});
  EXPECT_THAT(client.read_until("\r\n\r\n"),
              AllOf(StartsWith("HTTP/1.1 204"), Not(HasSubstr("Transfer-Encoding")),
                    Not(HasSubstr("Content-Length"))));
}

TEST_F(HttpTest, DrainsOpenAnswersAndClosesTheRest) {
  options_.idle_timeout = std::chrono::seconds(30);
  start();
  RawClient idle(server_->port());
  RawClient busy(server_->port());
  busy.send_bytes("GET /hold HTTP/1.1\r\nHost: a\r\n\r\n");
  const auto reply = wait_held();
  server_->drain();
  EXPECT_TRUE(idle.closed_within(5'000));
  reply->send({.body = "done"});
  EXPECT_THAT(busy.read_to_end(), AllOf(HasSubstr("Connection: close\r\n"), EndsWith("done")));
}

TEST_F(HttpTest, TellsWhenAStreamHasBeenQuiet) {
  start();
  RawClient client(server_->port());
  client.send_bytes("GET /hold HTTP/1.1\r\nHost: a\r\n\r\n");
  auto reply = wait_held();
  auto beats = std::make_shared<int>(0);
  reply->on_quiet(std::chrono::milliseconds(20), [reply, beats] {
    if (++*beats == 1) reply->start({.content_type = "text/plain"});
    reply->write("beat " + std::to_string(*beats) + "\n");
    if (*beats == 3) reply->finish();  // no more of them
  });
  EXPECT_THAT(client.read_until("0\r\n\r\n"),
              AllOf(HasSubstr("beat 1\n"), HasSubstr("beat 3\n"), EndsWith("0\r\n\r\n")));
  client.send_bytes("GET /echo?after HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_THAT(client.read_answer(), EndsWith("after"));
  EXPECT_EQ(*beats, 3);
}

TEST_F(HttpTest, SaysWhyItCannotListen) {
  start();
  options_.port = server_->port();
  const auto listen_again = [&] { HttpServer(options_, {}, {}, {}); };
  EXPECT_THROW(listen_again(), Error);
  options_.host = "no such host";
  EXPECT_THROW(listen_again(), Error);
}

}  // namespace
}  // namespace nibble::server
