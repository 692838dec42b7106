// Config: a JSON object of a model directory (config.json, generation_config.json), read with
// checks. Every failure throws Error(kCheckpoint) that names the file, the key, what was found and
// what is expected. A key whose value is null counts as absent, as in transformers.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

class Config {
 public:
  // Throws Error(kNotFound) where there is no such file, Error(kCheckpoint) where it is not a JSON
  // object or larger than 16 MB. `origin` is how messages call the text.
  static Config load(const std::filesystem::path& file);
  static Config parse(std::string_view text, std::string origin);

  const std::string& origin() const { return origin_; }
  std::vector<std::string> keys() const;
  bool has(const std::string& key) const;

  // A whole number within [min, max] (128 and 128.0 alike).
  int64_t integer(const std::string& key, int64_t min, int64_t max) const;
  int64_t integer_or(const std::string& key, int64_t fallback, int64_t min, int64_t max) const;
  // A finite number within [min, max].
  double number(const std::string& key, double min, double max) const;
  double number_or(const std::string& key, double fallback, double min, double max) const;
  bool boolean(const std::string& key) const;
  bool boolean_or(const std::string& key, bool fallback) const;
  std::string text(const std::string& key) const;
  std::string text_or(const std::string& key, const std::string& fallback) const;
  // Lists; a single value counts as a list of one (eos_token_id is written both ways).
  std::vector<std::string> texts(const std::string& key) const;
  std::vector<int64_t> integers(const std::string& key, int64_t min, int64_t max) const;
  // The object under `key`, or nullopt where the key is absent.
  std::optional<Config> object(const std::string& key) const;

  // The JSON text, for printing.
  std::string dump() const;

  // Throws Error(kCheckpoint) "<origin>: <key>: <what>"; for the checks that a model makes itself.
  [[noreturn]] void fail(const std::string& key, const std::string& what) const;

 private:
  struct Node;
  Config(std::shared_ptr<const Node> node, std::string origin, std::string prefix);

  std::shared_ptr<const Node> node_;
  std::string origin_;
  std::string prefix_;  // "rope_scaling." inside that object
};

// The rotary embedding's parameters, whichever way they are written: `rope_parameters`
// (transformers 5) or `rope_scaling`, with `rope_type` (formerly `type`, "default" where absent)
// and `rope_theta` (inside, or beside at top level) always present in the answer. Throws where both
// dicts are there and disagree, or where rope_theta is nowhere.
Config rope_parameters(const Config& config);

// config.json of openai/gpt-oss-20b and -120b, and of other families in the formats that
// builtin_configs.cc lists; nullopt for any other name.
std::optional<Config> builtin_config(std::string_view repo_id);

}  // namespace nibble
