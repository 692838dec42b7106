// Runs a command in this process, for tests: what it prints and how it exits.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "cli/cli.h"

namespace nibble::cli {

struct CommandResult {
  int status = 0;
  std::string out;
  std::string err;
};

// `args` without the program's name. The Hugging Face cache is an empty one.
inline CommandResult run_command(std::vector<std::string> args) {
  setenv("HF_HUB_CACHE", (testing::TempDir() + "empty_hub").c_str(), 1);
  args.insert(args.begin(), "nibble");
  std::vector<char*> argv;
  for (std::string& arg : args) argv.push_back(arg.data());
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  CommandResult result;
  result.status = run(static_cast<int>(argv.size()), argv.data());
  std::fflush(stdout);
  result.err = testing::internal::GetCapturedStderr();
  result.out = testing::internal::GetCapturedStdout();
  return result;
}

}  // namespace nibble::cli
