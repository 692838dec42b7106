// nibble score: log-probabilities of given ids, as JSON. Needs no tokenizer: how two engines are
// compared.
#include <CLI/App.hpp>
#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "cli/cli.h"
#include "cli/engine_setup.h"
#include "cli/token_ids.h"

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

std::vector<int32_t> read_ids(const ScoreFlags& flags) {
  if (!flags.ids_file.empty()) return read_token_ids(flags.ids_file);
  std::vector<int32_t> ids = parse_token_ids(flags.ids, "--ids");
  if (ids.empty()) throw Error(ErrorKind::kUsage, "--ids: no token ids");
  return ids;
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
