// LineEditor: lines that a person types, with editing and history (libedit).
#pragma once

#include <memory>
#include <optional>
#include <string>

namespace nibble::cli {

class LineEditor {
 public:
  // Standard input is a terminal.
  explicit LineEditor(std::string prompt);
  ~LineEditor();

  enum class Ended { kLine, kInterrupt, kEof };
  // Reads into `line`, without its newline. kInterrupt: Ctrl-C, the line is dropped; needs a SIGINT
  // handler installed without SA_RESTART.
  Ended read(std::string& line);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace nibble::cli
