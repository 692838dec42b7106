// SseReader: the events of a stream as OpenAI's API sends them, out of bytes that come in any
// pieces. Only "data:" lines count; other fields and comments are passed over (HTML standard,
// section 9.2).
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace nibble::cli {

class SseReader {
 public:
  static constexpr size_t kMaxEventBytes = size_t{1} << 24;

  // Calls on_event with the data of every event that is complete by now. False: an event is longer
  // than kMaxEventBytes; nothing more is read.
  bool feed(std::string_view bytes, const std::function<void(std::string_view)>& on_event);

 private:
  void take_line(const std::function<void(std::string_view)>& on_event);

  std::string line_;
  std::string data_;  // of the event so far
  bool has_data_ = false;
  bool after_cr_ = false;  // a line feed now belongs to the line end before it
};

// What a benchmark asks of one event's JSON.
struct StreamChunk {
  bool is_valid = false;  // JSON, and no "error" in it
  bool has_text = false;  // content, reasoning or a tool call
  bool has_usage = false;
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t completion_tokens = 0;
};
StreamChunk read_chunk(std::string_view json);

}  // namespace nibble::cli
