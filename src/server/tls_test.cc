// TLS over memory and over sockets; garbage on either port.
#include "server/tls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/ssl.h>

#include <cstdlib>
#include <filesystem>
#include <random>

#include "base/error.h"
#include "server/http.h"
#include "server/http_testing.h"

namespace nibble::server {
namespace {

using ::testing::HasSubstr;

// A certificate of its own for each run.
struct Certificate {
  explicit Certificate(const std::string& type = "rsa:2048") {
    directory = std::filesystem::temp_directory_path() /
                ("nibble_tls_" + std::to_string(std::random_device()()));
    std::filesystem::create_directory(directory);
    const std::string command = "openssl req -x509 -newkey " + type +
                                " -nodes -days 2 -subj /CN=localhost "
                                "-keyout " +
                                key() + " -out " + certificate() + " 2>/dev/null";
    EXPECT_EQ(std::system(command.c_str()), 0);
  }
  ~Certificate() { std::filesystem::remove_all(directory); }
  std::string key() const { return (directory / "key.pem").string(); }
  std::string certificate() const { return (directory / "cert.pem").string(); }
  std::filesystem::path directory;
};

std::shared_ptr<const TlsContext> context() {
  static const Certificate files;
  static const auto context = std::make_shared<const TlsContext>(files.certificate(), files.key());
  return context;
}

// OpenSSL's client over memory.
class TlsClient {
 public:
  TlsClient() : context_(SSL_CTX_new(TLS_client_method())), ssl_(SSL_new(context_)) {
    in_ = BIO_new(BIO_s_mem());
    out_ = BIO_new(BIO_s_mem());
    SSL_set_bio(ssl_, in_, out_);
    SSL_set_connect_state(ssl_);
  }
  ~TlsClient() {
    SSL_free(ssl_);
    SSL_CTX_free(context_);
  }
  // Takes bytes of the wire, gives those to be sent; what was said is in `plain`.
  std::string exchange(std::string_view wire, std::string& plain) {
    BIO_write(in_, wire.data(), static_cast<int>(wire.size()));
    SSL_do_handshake(ssl_);
    char buffer[4096];
    for (int n; (n = SSL_read(ssl_, buffer, sizeof buffer)) > 0;) plain.append(buffer, n);
    return take();
  }
  std::string say(std::string_view plain) {
    EXPECT_EQ(SSL_write(ssl_, plain.data(), static_cast<int>(plain.size())),
              static_cast<int>(plain.size()));
    return take();
  }

 private:
  std::string take() {
    std::string wire(BIO_pending(out_), '\0');
    if (!wire.empty()) BIO_read(out_, wire.data(), static_cast<int>(wire.size()));
    return wire;
  }
  SSL_CTX* context_;
  SSL* ssl_;
  BIO *in_, *out_;
};

TEST(Tls, TalksWhateverThePiecesAre) {
  for (const size_t piece : {1u, 7u, 100'000u}) {
    TlsChannel server(*context());
    TlsClient client;
    std::string at_client, at_server, to_server, to_client;
    to_server = client.exchange("", at_client);
    for (int round = 0; round < 6; ++round) {
      while (!to_server.empty()) {
        ASSERT_TRUE(server.receive(to_server.substr(0, piece), at_server, to_client));
        to_server.erase(0, piece);
      }
      to_server = client.exchange(std::exchange(to_client, {}), at_client);
    }
    const std::string long_text(50'000, 'x');
    to_server = client.say(long_text);
    while (!to_server.empty()) {
      ASSERT_TRUE(server.receive(to_server.substr(0, piece), at_server, to_client));
      to_server.erase(0, piece);
    }
    EXPECT_EQ(at_server, long_text);
    ASSERT_TRUE(server.send("hello " + long_text, to_client));
    client.exchange(to_client, at_client);
    EXPECT_EQ(at_client, "hello " + long_text);
  }
}

TEST(Tls, EndsAtGarbage) {
  TlsChannel server(*context());
  std::string plain, wire;
  EXPECT_FALSE(server.receive("GET / HTTP/1.1\r\nHost: x\r\n\r\n", plain, wire));
  EXPECT_EQ(plain, "");
  EXPECT_FALSE(server.send("too early", wire));
}

TEST(Tls, NamesTheFileAtFault) {
  const Certificate files;
  EXPECT_THROW(
      {
        try {
          TlsContext("no_such_file.pem", files.key());
        } catch (const Error& e) {
          EXPECT_THAT(e.what(), HasSubstr("no_such_file.pem"));
          throw;
        }
      },
      Error);
  EXPECT_THROW(TlsContext(files.certificate(), files.certificate()), Error);
  EXPECT_THROW(TlsContext(files.certificate(), Certificate().key()), Error);  // another one's
  EXPECT_THROW(
      TlsContext(files.certificate(), Certificate("ec -pkeyopt ec_paramgen_curve:P-256").key()),
      Error);
}

TEST(Tls, ServesHttp) {
  HttpOptions options{.port = 0, .tls = context()};
  HttpServer server(
      options, [](const HttpRequest&, HttpHeaders&) { return std::nullopt; },
      [](const HttpRequest& request, const std::shared_ptr<HttpReply>& reply) {
        if (request.path == "/stream") {
          reply->start({.content_type = "text/plain"});
          for (int i = 0; i < 100; ++i) reply->write(std::string(1'000, 'a'));
          return reply->finish();
        }
        reply->send({.content_type = "text/plain", .body = "path " + request.path});
      },
      [](int, const std::string& message) { return message; });
  server.start();
  const auto curl = [&](const std::string& path) {
    const std::string file = std::filesystem::temp_directory_path() /
                             ("nibble_tls_" + std::to_string(std::random_device()()));
    const std::string command =
        "curl -sk --max-time 20 https://localhost:" + std::to_string(server.port()) + path +
        " -o " + file;
    EXPECT_EQ(std::system(command.c_str()), 0);
    std::string text(std::filesystem::file_size(file), '\0');
    FILE* f = std::fopen(file.c_str(), "rb");
    EXPECT_EQ(std::fread(text.data(), 1, text.size(), f), text.size());
    std::fclose(f);
    std::filesystem::remove(file);
    return text;
  };
  EXPECT_EQ(curl("/x"), "path /x");
  EXPECT_EQ(curl("/stream"), std::string(100'000, 'a'));
  RawClient plain(server.port());  // plain HTTP at a port that speaks TLS
  plain.send_bytes("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_TRUE(plain.closed_within(5'000));
  EXPECT_EQ(curl("/y"), "path /y");
}

}  // namespace
}  // namespace nibble::server
