#include "cli/cli.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "cli/suggestion.h"
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
  add_pull(app);
}

// CLI11 takes the largest number for one that is larger still.
std::string why_not_in_64_bits(const std::string& number, bool is_signed) {
  errno = 0;
  is_signed ? void(std::strtoll(number.c_str(), nullptr, 0))
            : void(std::strtoull(number.c_str(), nullptr, 0));
  return errno == ERANGE ? number + " does not fit into 64 bits" : "";
}

void check_whole_numbers(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    const std::string type = option->get_type_name();
    const bool is_signed = type.starts_with("INT");
    if (!is_signed && !type.starts_with("UINT")) continue;
    option->check([is_signed](const std::string& n) { return why_not_in_64_bits(n, is_signed); });
  }
  for (CLI::App* command : app.get_subcommands({})) check_whole_numbers(*command);
}

// `nibble help [COMMAND]` is the same as --help.
void spell_out_help(std::vector<std::string>& arguments) {
  if (arguments.empty() || arguments.front() != "help") return;
  arguments.erase(arguments.begin());
  arguments.emplace_back("--help");
}

// CLI11 says of a word that is no command only that one is missing.
void require_command(const CLI::App& app, const std::vector<std::string>& arguments) {
  if (arguments.empty()) {
    std::fputs(app.help().c_str(), stderr);
    throw Error(ErrorKind::kUsage, "say a COMMAND");
  }
  const std::string& first = arguments.front();
  if (first.starts_with('-')) return;
  std::string commands;
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) {
    if (command->get_name() == first) return;
    commands += (commands.empty() ? "" : ", ") + command->get_name();
    names.push_back(command->get_name());
  }
  throw Error(ErrorKind::kUsage,
              "no command '" + first + "'; there are " + commands + did_you_mean(first, names));
}

std::vector<std::string> flags_of(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

// CLI11 writes the bounds of numbers that have none in 300 digits.
std::string without_bounds(std::string text) {
  const size_t at = text.find(" not in range ");
  const size_t to = text.find(" to ", at);
  if (at == std::string::npos || to == std::string::npos || text.size() - to < 100) return text;
  return text.substr(0, at) + " is no number, or too small a one";
}

// What was wrong with the flags, and where they are listed.
std::string usage_text(const CLI::App* app, const CLI::Error& error) {
  std::string command = "nibble";
  const CLI::App* at = app;
  while (!at->get_subcommands().empty()) {
    at = at->get_subcommands().front();
    command += " " + at->get_name();
  }
  std::string text = without_bounds(error.what());
  if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ExtrasError)) {  // last to first
    text = "unknown:";
    const std::vector<std::string> words = app->remaining(true);
    for (const std::string& word : words) text += " " + word;
    const std::string first = words.empty() ? "" : words.front();
    if (first.starts_with("--"))
      text += did_you_mean(first.substr(0, first.find('=')), flags_of(*at));
  }
  return "nibble: " + text + "\n`" + command + " --help` lists the flags\n";
}

}  // namespace

int run(int argc, char** argv) {
  constexpr int kFailure = 1, kUsage = 2;
  CLI::App app{"nibble runs FP4 language models at the speed of the memory they sit in.", "nibble"};
  app.set_version_flag("--version", build_text());
  app.require_subcommand(1);
  app.failure_message(usage_text);
  add_commands(app);
  check_whole_numbers(app);
  install_log_sink();
  try {
    std::vector<std::string> arguments(argv + 1, argv + argc);
    spell_out_help(arguments);
    require_command(app, arguments);
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
