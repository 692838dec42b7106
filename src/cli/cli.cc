#include "cli/cli.h"

#include <CLI/CLI.hpp>
#include <cstdio>

#include "base/error.h"

namespace nibble::cli {

int run(int argc, char** argv) {
  CLI::App app{"nibble runs FP4 language models at the speed of the memory they sit in."};
  app.require_subcommand(1);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e);
  } catch (const Error& e) {
    std::fprintf(stderr, "nibble: %s\n", e.what());
    return e.kind() == ErrorKind::kUsage ? 2 : 1;
  }
  return 0;
}

}  // namespace nibble::cli
