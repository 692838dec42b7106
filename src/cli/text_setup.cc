#include "cli/text_setup.h"

#include <CLI/App.hpp>
#include <algorithm>
#include <fstream>
#include <iterator>

#include "base/error.h"
#include "base/log.h"
#include "text/chat/harmony_format.h"
#include "text/chat/template_format.h"

namespace nibble::cli {
namespace {

// "do_sample": false asks for greedy decoding.
SamplingParams sampling_defaults(const std::optional<Config>& config) {
  SamplingParams params;
  if (!config) return params;
  if (!config->boolean_or("do_sample", true))
    params.temperature = 0;
  else
    params.temperature = static_cast<float>(config->number_or("temperature", 1.0, 0.0, 100.0));
  params.top_p = static_cast<float>(config->number_or("top_p", 1.0, 0.0, 1.0));
  params.min_p = static_cast<float>(config->number_or("min_p", 0.0, 0.0, 1.0));
  params.top_k = static_cast<int32_t>(config->integer_or("top_k", 0, 0, 1 << 30));
  params.repetition_penalty =
      static_cast<float>(config->number_or("repetition_penalty", 1.0, 1e-3, 100.0));
  return params;
}

// The part of a config that is of text, where the model sees images, too.
Config text_part(const Config& config) { return config.object("text_config").value_or(config); }

// What both files say: for some models each lacks one of the ends (Nemotron-3, Llama-3.1).
std::vector<int32_t> stop_ids(const ModelFiles& files, const ChatFormat* format,
                              int32_t vocab_size) {
  std::vector<int32_t> ids;
  const auto add = [&](const Config& source) {
    if (!source.has("eos_token_id")) return;
    for (const int64_t id : source.integers("eos_token_id", 0, vocab_size - 1)) {
      ids.push_back(static_cast<int32_t>(id));
    }
  };
  add(files.config);
  add(text_part(files.config));
  if (files.generation_config) add(*files.generation_config);
  if (format != nullptr) ids = format->stop_ids(std::move(ids));
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

std::string read_text(const std::filesystem::path& path) {
  constexpr uintmax_t kMaxBytes = 16 << 20;
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  if (error) throw Error(ErrorKind::kNotFound, path.string() + ": cannot be read");
  if (size > kMaxBytes) throw Error(ErrorKind::kCheckpoint, path.string() + ": is over 16 MB");
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

struct FoundTemplate {
  std::string source;  // "": there is none
  std::string origin;
};

// The flag's file, or the model's own: chat_template.jinja, chat_template.json,
// tokenizer_config.json.
FoundTemplate find_template(const std::filesystem::path& directory, const std::string& flag) {
  if (!flag.empty()) return {.source = read_text(flag), .origin = flag};
  const std::filesystem::path file = directory / "chat_template.jinja";
  if (std::filesystem::exists(file)) return {.source = read_text(file), .origin = file.string()};
  for (const char* name : {"chat_template.json", "tokenizer_config.json"}) {
    const std::filesystem::path path = directory / name;
    if (!std::filesystem::exists(path)) continue;
    std::string source = template_of_config(read_text(path), path.string());
    if (!source.empty()) return {.source = std::move(source), .origin = path.string()};
  }
  return {};
}

AnswerMarkup markup_of(const FoundTemplate& found, const ChatFormatFlags& flags) {
  AnswerMarkup markup = markup_of_template(found.source);
  if (!flags.tool_call_parser.empty()) {
    const auto format = parse_tool_format(flags.tool_call_parser);
    if (!format) throw Error(ErrorKind::kUsage, "--tool-call-parser: " + format.error());
    if (!template_has(found.source, *format)) {
      throw Error(ErrorKind::kUnsupported, "--tool-call-parser " + flags.tool_call_parser + ": " +
                                               found.origin + " does not write calls like that");
    }
    markup.tools = *format;
  }
  if (!flags.reasoning_parser.empty()) {
    const auto think = parse_reasoning_format(flags.reasoning_parser);
    if (!think) throw Error(ErrorKind::kUsage, "--reasoning-parser: " + think.error());
    markup.think = *think;
  }
  return markup;
}

void refuse_other_than_harmony(const ChatFormatFlags& flags) {
  const auto check = [](const char* flag, const std::string& value) {
    const bool is_harmony =
        value.empty() || value == "openai" || value == "gpt-oss" || value == "openai_gptoss";
    if (is_harmony) return;
    throw Error(ErrorKind::kUsage, std::string(flag) + " " + value +
                                       ": this model speaks Harmony, which is always parsed; "
                                       "--chat-template FILE makes it speak another format");
  };
  check("--tool-call-parser", flags.tool_call_parser);
  check("--reasoning-parser", flags.reasoning_parser);
}

std::unique_ptr<ChatFormat> make_format(const ModelFiles& files, const Tokenizer& tokenizer,
                                        const ChatFormatFlags& flags) {
  if (flags.chat_template.empty() && Harmony::fits(tokenizer)) {
    refuse_other_than_harmony(flags);
    return std::make_unique<HarmonyFormat>(tokenizer);
  }
  const FoundTemplate found = find_template(files.directory, flags.chat_template);
  if (found.source.empty()) {
    if (flags.tool_call_parser.empty() && flags.reasoning_parser.empty()) return nullptr;
    throw Error(ErrorKind::kUsage, files.name + ": has no chat template: --chat-template FILE");
  }
  const AnswerMarkup markup = markup_of(found, flags);
  const std::filesystem::path config = files.directory / "tokenizer_config.json";
  std::vector<std::pair<std::string, std::string>> literals;
  if (std::filesystem::exists(config)) {
    literals = template_literals(read_text(config), config.string());
  }
  ChatTemplate parsed = ChatTemplate::parse(found.source, found.origin);
  try {
    return std::make_unique<TemplateFormat>(tokenizer, std::move(parsed), markup,
                                            std::move(literals));
  } catch (const Error& e) {
    throw Error(e.kind(), found.origin + ": " + e.what());
  }
}

}  // namespace

void add_chat_format_flags(CLI::App& command, ChatFormatFlags& flags) {
  const auto add = [&](const char* name, std::string& value, const char* text) {
    command.add_option(name, value, text)->group("Chat format");
  };
  add("--chat-template", flags.chat_template, "a Jinja file instead of the model's own format");
  add("--tool-call-parser", flags.tool_call_parser,
      "how it writes calls: hermes, qwen3_coder, llama3_json, none; default: by its template");
  add("--reasoning-parser", flags.reasoning_parser,
      "qwen3, deepseek_r1: reasoning ends with </think>; none; default: by its template");
}

int32_t vocab_size_of(const ModelFiles& files) {
  return static_cast<int32_t>(
      text_part(files.config).integer("vocab_size", 1, std::numeric_limits<int32_t>::max()));
}

std::unique_ptr<TextSide> load_text_side(const ModelFiles& files, int32_t vocab_size,
                                         const ChatFormatFlags& flags) {
  if (files.directory.empty()) {
    throw Error(ErrorKind::kNotFound,
                files.name + ": there is only a config here, no tokenizer and no weights; " +
                    files.advice() +
                    ". `nibble plan`, `nibble doctor` and `nibble bench --load-format dummy` need "
                    "none");
  }
  auto text = std::make_unique<TextSide>(Tokenizer::load(files.directory.string()));
  const Tokenizer& tokenizer = text->tokenizer;
  if (tokenizer.size() > vocab_size) {
    throw Error(ErrorKind::kCheckpoint,
                (files.directory / "tokenizer.json").string() + ": it has ids up to " +
                    std::to_string(tokenizer.size() - 1) + ", but the model's vocab_size is " +
                    std::to_string(vocab_size));
  }
  text->chat_format = make_format(files, tokenizer, flags);
  text->defaults = sampling_defaults(files.generation_config);
  text->stop_ids = stop_ids(files, text->chat_format.get(), vocab_size);
  for (int32_t id = 0; id < vocab_size; ++id)
    if (!tokenizer.decodable(id)) text->masked_ids.push_back(id);
  return text;
}

}  // namespace nibble::cli
