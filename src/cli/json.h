// JSON that commands print with --json: keys in the order written.
#pragma once

#include <cstdio>
#include <nlohmann/json.hpp>

namespace nibble::cli {

using Json = nlohmann::ordered_json;

// To standard output, indented; bytes that are not UTF-8 become U+FFFD.
inline void print_json(const Json& json) {
  const std::string text = json.dump(2, ' ', false, Json::error_handler_t::replace);
  std::printf("%s\n", text.c_str());
}

}  // namespace nibble::cli
