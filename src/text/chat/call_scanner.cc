#include "text/chat/call_scanner.h"

#include <nlohmann/json.hpp>
#include <utility>

namespace nibble {
namespace {

bool is_blank(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

}  // namespace

CallScanner::State CallScanner::push(char c) {
  if (state_ != State::kOpen) return state_;
  switch (at_) {
    case At::kObject:
      if (c == '{') {
        at_ = At::kKey;
      } else if (!is_blank(c)) {
        state_ = State::kBad;
      }
      break;
    case At::kKey:
      if (c == '"') {
        key_.clear();
        at_ = At::kInKey;
      } else if (c == '}') {
        state_ = close();
      } else if (c != ',' && !is_blank(c)) {
        state_ = State::kBad;
      }
      break;
    case At::kInKey:
      if (c == '"') {
        at_ = At::kColon;
      } else {
        key_ += c;
      }
      break;
    case At::kColon:
      if (c == ':') {
        at_ = At::kValue;
      } else if (!is_blank(c)) {
        state_ = State::kBad;
      }
      break;
    case At::kValue:
      if (is_blank(c)) break;
      at_ = At::kInValue;
      value_.clear();
      depth_ = 0;
      in_string_ = escaped_ = false;
      seen_ = seen_ || key_ == "arguments" || key_ == "parameters";
      value_char(c);
      break;
    case At::kInValue: {
      const bool is_word = depth_ == 0 && !in_string_;  // a number, true, null: no end of its own
      if (is_word && (c == ',' || c == '}' || is_blank(c))) {
        state_ = end_value();
        if (state_ == State::kOpen && c == '}') state_ = close();
      } else {
        value_char(c);
      }
      break;
    }
  }
  return state_;
}

void CallScanner::value_char(char c) {
  const bool is_arguments = key_ == "arguments" || key_ == "parameters";
  const bool is_first = value_.empty() && !begun_;
  if (is_arguments && ((is_first && c == '{') || (begun_ && value_.empty()))) {
    begun_ = true;
    arguments_ += c;
  } else {
    value_ += c;
  }
  bool ended = false;
  if (in_string_) {
    if (escaped_) {
      escaped_ = false;
    } else if (c == '\\') {
      escaped_ = true;
    } else if (c == '"') {
      in_string_ = false;
      ended = depth_ == 0;
    }
  } else if (c == '"') {
    in_string_ = true;
  } else if (c == '{' || c == '[') {
    ++depth_;
  } else if (c == '}' || c == ']') {
    ended = --depth_ == 0;
  }
  if (ended) state_ = end_value();
}

CallScanner::State CallScanner::end_value() {
  at_ = At::kKey;
  using nlohmann::json;
  if (key_ == "name") {
    const json name = json::parse(value_, nullptr, /*allow_exceptions=*/false);
    if (!name.is_string() || name.get_ref<const std::string&>().empty()) return State::kBad;
    name_ = name.get<std::string>();
  } else if ((key_ == "arguments" || key_ == "parameters") && !begun_) {
    // An object in a string, which some models write; null for none.
    const json text = json::parse(value_, nullptr, /*allow_exceptions=*/false);
    const std::string inner = text.is_string() ? text.get<std::string>() : "{}";
    if (!text.is_null() && !(text.is_string() && json::accept(inner))) return State::kBad;
    begun_ = true;
    arguments_ = inner;
  }
  return State::kOpen;
}

CallScanner::State CallScanner::close() {
  if (name_.empty() || (arguments_needed_ && !seen_)) return State::kBad;
  if (!begun_) arguments_ = "{}";
  return State::kDone;
}

std::string CallScanner::take_arguments() { return std::exchange(arguments_, {}); }

}  // namespace nibble
