// One streamed request to an OpenAI server over HTTP, and when each part of the answer came.
#pragma once

#include <utility>  // awaitable.hpp of Boost 1.74 needs it and does not include it

#include <boost/asio/awaitable.hpp>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace nibble::cli {

using LoadTime = std::chrono::steady_clock::time_point;

// "http://host:port/prefix" in parts.
struct LoadTarget {
  std::string host;
  std::string port = "80";
  std::string prefix;  // "/v1"
  std::string api_key;
};
// Throws Error(kUsage) for what is no such URL; https is refused.
LoadTarget parse_target(const std::string& url);

struct Exchange {
  LoadTime due;                  // when it was to be sent
  std::vector<double> chunks_s;  // arrival of each piece of text, in seconds since `due`
  double end_s = 0;
  int status = 0;     // of HTTP; 0: no answer
  std::string error;  // empty: the stream came to its end
  bool has_usage = false;
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t new_tokens = 0;  // as the server's usage has it, else the number of chunks

  bool ok() const { return error.empty(); }
  double ttft_s() const { return chunks_s.front(); }  // where there is a chunk
};

// POSTs `body` to `path` below the target's prefix, on a connection of its own. Never throws.
boost::asio::awaitable<Exchange> ask(const LoadTarget& target, std::string path, std::string body,
                                     LoadTime due, std::chrono::seconds timeout);

// The first model of GET /models. Throws Error(kUnsupported) where the server does not say.
std::string first_model(const LoadTarget& target);

}  // namespace nibble::cli
