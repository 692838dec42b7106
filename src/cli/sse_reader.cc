#include "cli/sse_reader.h"

#include <nlohmann/json.hpp>

namespace nibble::cli {
namespace {

using nlohmann::json;

// The member of an object, or null.
const json& member(const json& object, const char* name) {
  static const json kNull;
  if (!object.is_object()) return kNull;
  const auto found = object.find(name);
  return found == object.end() ? kNull : *found;
}

bool is_text(const json& value) {
  return value.is_string() && !value.get_ref<const std::string&>().empty();
}

int64_t count(const json& value) { return value.is_number_integer() ? value.get<int64_t>() : 0; }

}  // namespace

bool SseReader::feed(std::string_view bytes,
                     const std::function<void(std::string_view)>& on_event) {
  for (const char c : bytes) {
    const bool ends_line = c == '\r' || c == '\n';
    if (ends_line && !(c == '\n' && after_cr_)) take_line(on_event);
    after_cr_ = c == '\r';
    if (!ends_line) line_ += c;
    if (line_.size() + data_.size() > kMaxEventBytes) return false;
  }
  return true;
}

void SseReader::take_line(const std::function<void(std::string_view)>& on_event) {
  constexpr std::string_view kField = "data:";
  if (line_.empty()) {
    if (has_data_) on_event(data_);
    data_.clear();
    has_data_ = false;
  } else if (line_.starts_with(kField)) {
    std::string_view value = std::string_view(line_).substr(kField.size());
    if (value.starts_with(' ')) value.remove_prefix(1);
    if (has_data_) data_ += '\n';
    data_ += value;
    has_data_ = true;
  }
  line_.clear();
}

StreamChunk read_chunk(std::string_view text) {
  StreamChunk chunk;
  const json event = json::parse(text, nullptr, false);
  if (!event.is_object() || !member(event, "error").is_null()) return chunk;
  chunk.is_valid = true;
  for (const json& choice : member(event, "choices")) {
    const json& delta = member(choice, "delta");
    const json& calls = member(delta, "tool_calls");
    chunk.has_text |= is_text(member(choice, "text")) || is_text(member(delta, "content")) ||
                      is_text(member(delta, "reasoning_content")) ||
                      is_text(member(delta, "reasoning")) || (calls.is_array() && !calls.empty());
  }
  const json& usage = member(event, "usage");
  chunk.has_usage = usage.is_object();
  chunk.prompt_tokens = count(member(usage, "prompt_tokens"));
  chunk.completion_tokens = count(member(usage, "completion_tokens"));
  chunk.cached_tokens = count(member(member(usage, "prompt_tokens_details"), "cached_tokens"));
  return chunk;
}

}  // namespace nibble::cli
