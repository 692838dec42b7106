// nibble score: log-probabilities of given ids, as JSON. Needs no tokenizer: how two engines are
// compared.
#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "cli/cli.h"
#include "cli/engine_setup.h"

namespace nibble::cli {
namespace {

using nlohmann::json;

struct ScoreFlags {
  EngineFlags engine;
  std::string ids;
  std::string ids_file;
  int32_t top = 8;
  int32_t chunk = 0;
};

// Numbers with blanks, commas or brackets between.
std::vector<int32_t> parse_ids(std::string_view text, const std::string& origin) {
  constexpr std::string_view kBetween = " \t\r\n,[]";
  std::vector<int32_t> ids;
  while (true) {
    text.remove_prefix(std::min(text.find_first_not_of(kBetween), text.size()));
    if (text.empty()) break;
    const std::string_view word = text.substr(0, text.find_first_of(kBetween));
    int32_t id = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), id);
    if (error != std::errc() || end != word.data() + word.size()) {
      throw Error(ErrorKind::kUsage,
                  origin + ": \"" + std::string(word.substr(0, 40)) + "\" is not a token id");
    }
    ids.push_back(id);
    text.remove_prefix(word.size());
  }
  if (ids.empty()) throw Error(ErrorKind::kUsage, origin + ": no token ids");
  return ids;
}

std::vector<int32_t> read_ids(const ScoreFlags& flags) {
  if (flags.ids_file.empty()) return parse_ids(flags.ids, "--ids");
  std::ifstream file(flags.ids_file);
  if (!file) throw Error(ErrorKind::kNotFound, flags.ids_file + ": cannot be read");
  return parse_ids(std::string(std::istreambuf_iterator<char>(file), {}), flags.ids_file);
}

json to_json(const PromptLogprobs& p) {
  json top = json::array();
  for (const TokenLogprob& t : p.top) top.push_back({{"id", t.id}, {"logprob", t.logprob}});
  json next = std::isnan(p.next_logprob) ? json(nullptr) : json(p.next_logprob);
  return {{"id", p.id}, {"next_logprob", std::move(next)}, {"top", std::move(top)}};
}

// One sequence, as long as the ids are; its steps run on this thread.
void score(ScoreFlags flags) {
  Request request{.prompt = read_ids(flags), .prompt_logprobs = flags.top};
  if (flags.chunk > 0) flags.engine.max_num_batched_tokens = flags.chunk;
  if (flags.engine.max_model_len == 0) {
    const ModelFiles files = find_model(flags.engine.model, flags.engine.revision);
    const ModelInfo info = describe_model(model_argument(files));
    flags.engine.max_model_len =
        static_cast<int32_t>(std::min<size_t>(request.prompt.size(), info.max_positions));
  }
  const LoadedEngine loaded = load_engine(flags.engine, {.masked_ids = {}, .quiet = true});

  json positions = json::array();
  std::string error;
  request.on_prompt_logprobs = [&](const PromptLogprobs& p) { positions.push_back(to_json(p)); };
  request.on_output = [&](const Output& output) { error = output.error; };
  const Result<RequestId> id = loaded.engine->submit(std::move(request));
  if (!id.ok()) throw Error(ErrorKind::kUsage, id.error());
  while (loaded.engine->step()) {
  }
  if (!error.empty()) throw Error(ErrorKind::kCheckpoint, flags.engine.model + ": " + error);
  const std::string text = json{{"positions", std::move(positions)}}.dump();
  if (std::puts(text.c_str()) < 0 || std::fflush(stdout) != 0) {
    throw Error(ErrorKind::kUsage, "standard output: cannot be written");
  }
}

}  // namespace

void add_score(CLI::App& app) {
  const auto flags = std::make_shared<ScoreFlags>();
  flags->engine.max_num_seqs = 1;
  CLI::App* command = app.add_subcommand(
      "score", "Print the log-probabilities that a model gives to token ids, as JSON");
  command
      ->add_option("MODEL", flags->engine.model,
                   "directory, config.json, or repo id in the Hugging Face cache")
      ->required();
  auto* ids = command->add_option_group("ids");
  ids->add_option("--ids", flags->ids, "token ids: 5,17,42");
  ids->add_option("--ids-file", flags->ids_file, "a file of token ids, any of blank , [ ] between");
  ids->require_option(1);
  command->add_option("--top", flags->top, "likeliest ids to print at each position")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command->add_option("--chunk", flags->chunk, "another name for --max-num-batched-tokens")
      ->check(CLI::PositiveNumber);
  command->add_flag("--json")->description("the output is JSON either way");
  add_engine_flags(*command, flags->engine);
  command->callback([flags] { score(*flags); });
}

}  // namespace nibble::cli
