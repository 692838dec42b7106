// nibble serve whose GPU fails under it: every client is told, and the process ends with 1.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <future>
#include <iterator>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "cli/cli.h"
#include "cli/load_client.h"
#include "cuda/random_fill.h"
#include "server/http_testing.h"

namespace nibble::cli {
namespace {

using server::RawClient;

uint16_t free_port() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {}, .sin_zero = {}};
  socklen_t length = sizeof address;
  EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), length), 0);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
  close(fd);
  return ntohs(address.sin_port);
}

bool becomes_ready(uint16_t port) {
  const LoadTarget target = parse_target("http://127.0.0.1:" + std::to_string(port) + "/v1");
  for (int tries = 0; tries < 600; ++tries) {
    try {
      return first_model(target), true;
    } catch (const Error&) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  }
  return false;
}

// Seconds of work.
std::unique_ptr<RawClient> ask(uint16_t port, bool stream) {
  const std::string body =
      std::string(R"({"prompt": "What", "max_tokens": 3900, "ignore_eos": true)") +
      (stream ? R"(, "stream": true})" : "}");
  auto client = std::make_unique<RawClient>(port);
  client->send_bytes(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
      "Content-Length: " +
      std::to_string(body.size()) + "\r\n\r\n" + body);
  return client;
}

bool is_told(const std::string& answer) {
  return answer.find(R"("error")") != std::string::npos &&
         answer.find("illegal memory access") != std::string::npos;
}

// Once every stream has begun, writes where there is no memory: from there on CUDA answers every
// call with that error. How many clients were not told; -1: it never served.
int fail_under_clients(uint16_t port) {
  if (!becomes_ready(port)) return -1;
  const auto whole = ask(port, /*stream=*/false);
  std::vector<std::unique_ptr<RawClient>> streams;
  for (int i = 0; i < 3; ++i) streams.push_back(ask(port, /*stream=*/true));
  for (const auto& stream : streams) stream->read_until("data: {");
  try {
    cuda::random_fill(reinterpret_cast<void*>(16), 4096, {.constant = 1});
  } catch (const std::exception&) {
  }
  int untold = 0;
  for (const auto& stream : streams) {
    const std::string rest = stream->read_to_end();
    untold += !is_told(rest) || rest.find("data: [DONE]") == std::string::npos;
  }
  const std::string answer = whole->read_to_end();
  return untold + (!answer.starts_with("HTTP/1.1 500 ") || !is_told(answer));
}

// What the program ends with, or where clients were not told 100 and how many; 99: it never served.
int serve_until_the_gpu_fails() {
  const uint16_t port = free_port();
  auto untold = std::async(std::launch::async, fail_under_clients, port);
  std::istringstream command("nibble serve " NIBBLE_SOURCE_DIR
                             "/models/nibble-tiny-gpt-oss --load-format dummy --device cuda "
                             "--max-model-len 4096 --max-num-seqs 4 --port " +
                             std::to_string(port));
  std::vector<std::string> args{std::istream_iterator<std::string>(command), {}};
  std::vector<char*> argv;
  for (std::string& arg : args) argv.push_back(arg.data());
  const int status = run(static_cast<int>(argv.size()), argv.data());
  const int missing = untold.get();
  return missing == 0 ? status : 100 + missing;
}

// In a process of its own, which the failure leaves without a GPU.
TEST(ServeGpuFailure, TellsEveryClientAndEndsWithOne) {
  if (std::getenv("NIBBLE_SMALL_TESTS") != nullptr) GTEST_SKIP() << "tools would report its error";
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_EXIT(std::exit(serve_until_the_gpu_fails()), testing::ExitedWithCode(1),
              "the engine failed; every request was ended");
}

}  // namespace
}  // namespace nibble::cli
