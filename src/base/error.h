// What stops nibble from starting: thrown as Error, caught only in cli/. The text says what to do
// next.
#pragma once

#include <stdexcept>
#include <string>

namespace nibble {

enum class ErrorKind {
  kUsage,       // flags that make no sense
  kNotFound,    // no such file, model or tensor
  kCheckpoint,  // a checkpoint, tokenizer or config that cannot be right
  kMemory,      // does not fit
  kUnsupported  // no kernel, format, device or model code for this
};

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& text) : std::runtime_error(text), kind_(kind) {}
  ErrorKind kind() const { return kind_; }

 private:
  ErrorKind kind_;
};

}  // namespace nibble
