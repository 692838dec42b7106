#include "cli/cli.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "base/error.h"
#include "cli/version.h"
#include "cli/vllm_flags.h"

namespace nibble::cli {
namespace {

void add_commands(CLI::App& app) {
  add_serve(app);
  add_bench(app);
  add_chat(app);
  add_doctor(app);
  add_plan(app);
  add_inspect(app);
  add_score(app);
  add_eval(app);
  add_tokenize(app);
}

}  // namespace

int run(int argc, char** argv) {
  constexpr int kFailure = 1, kUsage = 2;
  CLI::App app{"nibble runs FP4 language models at the speed of the memory they sit in."};
  app.set_version_flag("--version", build_text());
  app.require_subcommand(1);
  add_commands(app);
  install_log_sink();
  try {
    std::vector<std::string> arguments(argv + 1, argv + argc);
    spell_out_vllm_flags(arguments);
    std::reverse(arguments.begin(), arguments.end());  // as CLI11 wants them
    app.parse(std::move(arguments));
  } catch (const CLI::RuntimeError& e) {
    return e.get_exit_code();
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : kUsage;
  } catch (const Error& e) {
    std::fprintf(stderr, "nibble: %s\n", e.what());
    return e.kind() == ErrorKind::kUsage ? kUsage : kFailure;
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "nibble: out of memory; `nibble plan MODEL` says what it takes\n");
    return kFailure;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "nibble: %s\n", e.what());
    return kFailure;
  }
  return 0;
}

}  // namespace nibble::cli
