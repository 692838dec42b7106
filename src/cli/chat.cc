// nibble chat: a conversation on the terminal, or one answer per line of a pipe.
#include <unistd.h>

#include <CLI/App.hpp>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/error.h"
#include "cli/chat_printer.h"
#include "cli/cli.h"
#include "cli/conversation.h"
#include "cli/engine_setup.h"
#include "cli/line_editor.h"
#include "cli/text_setup.h"
#include "cli/text_table.h"
#include "io/hub.h"

namespace nibble::cli {
namespace {

struct ChatFlags {
  EngineFlags engine;
  ChatFormatFlags chat_format;
  std::string system;
  std::string prompt;
  bool has_prompt = false;  // one question, then the end
  std::string effort = "medium";
  std::string reasoning = "auto";  // auto | show | hide
  std::optional<float> temperature;
  std::optional<float> top_p;
  std::optional<uint64_t> seed;
  int32_t max_tokens = 0;
  bool json = false;
};

// Set by SIGINT: ends the answer that is being written.
std::atomic<bool> interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free);  // so a signal handler may set it

void catch_interrupts() {
  struct sigaction action = {};
  action.sa_handler = [](int) { interrupted = true; };  // no SA_RESTART: reading a line ends too
  sigaction(SIGINT, &action, nullptr);
}

const char* finish_text(FinishReason finish) {
  switch (finish) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCanceled:
      return "canceled";
    default:
      return "error";
  }
}

std::string json_line(const Turn& turn) {
  const nlohmann::ordered_json line = {{"content", turn.content},
                                       {"reasoning", turn.reasoning},
                                       {"finish_reason", finish_text(turn.finish)},
                                       {"prompt_tokens", turn.prompt_tokens},
                                       {"completion_tokens", turn.completion_tokens},
                                       {"reasoning_tokens", turn.reasoning_tokens},
                                       {"first_token_s", turn.first_token_s},
                                       {"decode_s", turn.decode_s}};
  return line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

constexpr const char* kHelp =
    "  /effort low|medium|high   how long it thinks\n"
    "  /clear                    a new conversation\n"
    "  /quit, Ctrl-D             the end\n"
    "  Ctrl-C                    stops an answer\n";

class ChatLoop {
 public:
  ChatLoop(const ChatFlags& flags, Conversation& conversation, const SamplingParams& sampling)
      : flags_(flags), conversation_(conversation), sampling_(sampling) {
    out_is_terminal_ = isatty(STDOUT_FILENO) == 1;
  }

  // True unless an answer failed.
  bool ask(const std::string& question) {
    const bool show =
        flags_.reasoning == "show" || (flags_.reasoning == "auto" && out_is_terminal_);
    ChatPrinter printer(stdout, out_is_terminal_, show);
    interrupted = false;
    const auto turn = conversation_.say(
        question, sampling_, flags_.max_tokens,
        [&](const ChatEvent& event) {
          if (!flags_.json) printer.print(event);
        },
        [] { return interrupted.load(); });
    if (!flags_.json) printer.finish();
    if (!turn) {
      std::fprintf(stderr, "nibble: %s\n", turn.error().c_str());
      return false;
    }
    if (flags_.json)
      std::printf("%s\n", json_line(*turn).c_str());
    else if (out_is_terminal_)
      print_speed(*turn);
    std::fflush(stdout);
    return true;
  }

  void from_terminal() {
    std::printf("/help lists the commands.\n");
    LineEditor editor("> ");
    for (std::string line;;) {
      const auto ended = editor.read(line);
      if (ended == LineEditor::Ended::kEof) break;
      if (ended == LineEditor::Ended::kInterrupt || line.empty()) continue;
      if (line[0] != '/')
        ask(line);
      else if (!command(line))
        break;
    }
    std::printf("\n");
  }

  bool from_pipe() {
    bool good = true;
    for (std::string line; !interrupted && std::getline(std::cin, line);)
      if (!line.empty()) good = ask(line) && good;
    return good;
  }

 private:
  // False: it is time to go.
  bool command(const std::string& line) {
    if (line == "/quit" || line == "/exit") return false;
    if (line == "/clear") {
      conversation_.clear();
    } else if (line.starts_with("/effort ")) {
      const auto effort = parse_reasoning_effort(line.substr(8));
      if (effort)
        conversation_.options().effort = *effort;
      else
        std::printf("%s\n", effort.error().c_str());
    } else if (line == "/help") {
      std::printf("%s", kHelp);
    } else {
      std::printf("unknown: %s; /help lists the commands\n", line.c_str());
    }
    return true;
  }

  static void print_speed(const Turn& turn) {
    const auto more = static_cast<double>(turn.completion_tokens - 1);
    const std::string rate =
        turn.decode_s > 0 ? ", " + fixed_digits(more / turn.decode_s, 1) + " tokens/s" : "";
    std::printf("\x1b[2m(%lld tokens%s, the first after %.2f s%s)\x1b[0m\n",
                static_cast<long long>(turn.completion_tokens), rate.c_str(), turn.first_token_s,
                turn.finish == FinishReason::kStop
                    ? ""
                    : (std::string(", ended by ") + finish_text(turn.finish)).c_str());
  }

  const ChatFlags& flags_;
  Conversation& conversation_;
  SamplingParams sampling_;
  bool out_is_terminal_ = false;
};

SamplingParams sampling_of(const ChatFlags& flags, const SamplingParams& defaults) {
  SamplingParams sampling = defaults;
  if (flags.temperature) sampling.temperature = *flags.temperature;
  if (flags.top_p) sampling.top_p = *flags.top_p;
  sampling.seed = flags.seed;
  return sampling;
}

void chat(const ChatFlags& flags) {
  const auto effort = parse_reasoning_effort(flags.effort);
  if (!effort) throw Error(ErrorKind::kUsage, "--effort: " + effort.error());
  if (flags.has_prompt && flags.prompt.empty()) {
    throw Error(ErrorKind::kUsage, "the prompt is empty: say something, or leave it out to talk");
  }
  const ModelFiles files = find_model(flags.engine.model, flags.engine.revision);
  const auto text =
      load_text_side(files, describe_model(model_argument(files)).vocab_size, flags.chat_format);
  if (!text->chat_format) {
    throw Error(ErrorKind::kUnsupported,
                files.name +
                    ": it has no chat template, and its vocabulary no Harmony: "
                    "--chat-template FILE gives it one");
  }
  const bool quiet = flags.json || isatty(STDERR_FILENO) != 1;
  LoadedEngine loaded = load_engine(flags.engine, {.masked_ids = text->masked_ids, .quiet = quiet});
  loaded.engine->start();

  ChatOptions options;
  options.effort = *effort;
  Conversation conversation(*loaded.engine, *text, options, flags.system);
  ChatLoop loop(flags, conversation, sampling_of(flags, text->defaults));
  catch_interrupts();
  bool good = true;
  if (flags.has_prompt)
    good = loop.ask(flags.prompt);
  else if (isatty(STDIN_FILENO) == 1)
    loop.from_terminal();
  else
    good = loop.from_pipe();
  if (!good) throw CLI::RuntimeError(1);
}

}  // namespace

void add_chat(CLI::App& app) {
  auto flags = std::make_shared<ChatFlags>();
  flags->engine.max_num_seqs = 1;
  CLI::App* command = app.add_subcommand(
      "chat", "Talk with a model: on the terminal, or one question per line of a pipe");
  command
      ->add_option("MODEL", flags->engine.model, "directory, or repo id in the Hugging Face cache")
      ->required();
  const CLI::Option* prompt =
      command->add_option("PROMPT,-p,--prompt", flags->prompt, "ask this and stop");
  command->add_option("--system", flags->system, "instructions for the whole conversation");
  command->add_option("--effort", flags->effort, "reasoning effort: low, medium or high")
      ->capture_default_str();
  command->add_option("--reasoning", flags->reasoning, "auto: dimmed on a terminal, else hidden")
      ->check(CLI::IsMember({"auto", "show", "hide"}))
      ->capture_default_str();
  command->add_option("--temperature", flags->temperature, "0: always the likeliest token");
  command->add_option("--top-p", flags->top_p,
                      "only the likeliest tokens that add up to this share");
  command->add_option("--sampling-seed", flags->seed, "the same seed gives the same answers");
  command->add_option("--max-tokens", flags->max_tokens,
                      "of an answer; 0: what the context has room for");
  command->add_flag("--json", flags->json, "one JSON object per answer");
  add_chat_format_flags(*command, flags->chat_format);
  add_engine_flags(*command, flags->engine);
  command->callback([flags, prompt] {
    flags->has_prompt = prompt->count() > 0;
    chat(*flags);
  });
}

}  // namespace nibble::cli
