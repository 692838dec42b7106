// Reads one call written as a JSON object, {"name": "f", "arguments": {...}}, a character at a
// time, and hands the arguments on as they come.
#pragma once

#include <string>

namespace nibble {

class CallScanner {
 public:
  enum class State {
    kOpen,  // more of the object is to come
    kDone,  // it is complete, and a call
    kBad    // it is no call
  };

  // `arguments_needed`: without "arguments" or "parameters" it is no call.
  explicit CallScanner(bool arguments_needed) : arguments_needed_(arguments_needed) {}

  State push(char c);

  // Whether it is surely a call: its name is known, and its arguments have begun or are not there.
  bool is_call() const { return !name_.empty() && (begun_ || state_ == State::kDone); }
  const std::string& name() const { return name_; }
  // The arguments that have come since the last time, verbatim; once is_call().
  std::string take_arguments();

 private:
  enum class At { kObject, kKey, kInKey, kColon, kValue, kInValue };
  void value_char(char c);
  State end_value();
  State close();

  bool arguments_needed_;
  At at_ = At::kObject;
  State state_ = State::kOpen;
  std::string key_, value_, name_, arguments_;
  bool begun_ = false;  // arguments_ holds, or held, an object
  bool seen_ = false;   // there was a value of "arguments"
  bool in_string_ = false, escaped_ = false;
  int depth_ = 0;  // of brackets in the value
};

}  // namespace nibble
