#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "io/safetensors.h"

namespace nibble {
namespace {

using nlohmann::json;

constexpr int kMaxDepth = 16;

bool is_plain_file_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
}

}  // namespace

SafetensorsIndex parse_safetensors_index(std::string_view text, const std::string& file) {
  const auto fail = [&](const std::string& what) {
    throw Error(ErrorKind::kCheckpoint, file + ": " + what);
  };
  std::string section;  // the top-level key that the parser is in
  std::set<std::string> names;
  const auto watch = [&](int depth, json::parse_event_t event, json& value) {
    if (depth > kMaxDepth) fail("nested deeper than 16 levels");
    if (event != json::parse_event_t::key) return true;
    if (depth == 1) section = value.get<std::string>();
    if (depth == 2 && section == "weight_map" && !names.insert(value.get<std::string>()).second)
      fail("tensor " + value.dump() + " is named twice");
    return true;
  };
  json index;
  try {
    index = json::parse(text, watch);
  } catch (const json::exception& e) {
    fail(std::string("not valid JSON: ") + e.what());
  }
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object())
    fail("has no object \"weight_map\"");

  SafetensorsIndex result;
  for (const auto& [tensor, shard] : index["weight_map"].items()) {
    if (!shard.is_string() || !is_plain_file_name(shard.get<std::string>()))
      fail("tensor " + json(tensor).dump() + ": found " + shard.dump() +
           ", expected the name of a file in the same directory");
    result.file_of[tensor] = shard.get<std::string>();
  }
  if (result.file_of.empty()) fail("\"weight_map\" names no tensor");
  if (index.contains("metadata") && index["metadata"].is_object() &&
      index["metadata"].contains("total_size")) {
    const json& total = index["metadata"]["total_size"];
    // Some writers go through a float.
    const double value = total.is_number() ? total.get<double>() : -1;
    if (!(value >= 0 && value < 9e18)) fail("metadata.total_size: found " + total.dump());
    result.total_bytes =
        total.is_number_float() ? static_cast<int64_t>(value) : total.get<int64_t>();
  }
  return result;
}

}  // namespace nibble
