#include "cli/text_setup.h"

#include <algorithm>

#include "base/error.h"

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

// What both files say: for some models each lacks one of the ends (Nemotron-3, Llama-3.1).
std::vector<int32_t> stop_ids(const ModelFiles& files, const std::optional<Harmony>& harmony,
                              int32_t vocab_size) {
  std::vector<int32_t> ids;
  if (harmony) ids = harmony->stop_ids();
  const auto add = [&](const Config& source) {
    if (!source.has("eos_token_id")) return;
    for (const int64_t id : source.integers("eos_token_id", 0, vocab_size - 1)) {
      // After <|end|> of the analysis the final message follows.
      if (!harmony || id != harmony->ids().end) ids.push_back(static_cast<int32_t>(id));
    }
  };
  add(files.config);
  if (files.generation_config) add(*files.generation_config);
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

}  // namespace

std::unique_ptr<TextSide> load_text_side(const ModelFiles& files, int32_t vocab_size) {
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
  if (Harmony::fits(tokenizer)) text->harmony.emplace(tokenizer);
  text->defaults = sampling_defaults(files.generation_config);
  text->stop_ids = stop_ids(files, text->harmony, vocab_size);
  for (int32_t id = 0; id < vocab_size; ++id)
    if (!tokenizer.decodable(id)) text->masked_ids.push_back(id);
  return text;
}

}  // namespace nibble::cli
