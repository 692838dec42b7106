// MODEL of the command line: a directory, a config.json, or a repo id in the Hugging Face cache.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "io/config.h"

namespace nibble {

struct ModelFiles {
  std::string name;                 // as given, for messages and the served name
  std::filesystem::path directory;  // tokenizer and so on; empty for a bare or built-in config
  std::filesystem::path weights;    // for open_checkpoint(); empty where there are none
  Config config;                    // Hugging Face names, also where the file has OpenAI's
  std::optional<Config> generation_config;

  // `weights`, or Error(kNotFound) that says how to get them.
  const std::filesystem::path& require_weights() const;

  // How to get what is missing beside the config.
  std::string advice() const;
};

// "organisation/name", of letters that are safe in a path.
bool is_repo_id(const std::string& model);
// A branch, tag or commit; its parts are safe in a path.
bool is_revision(const std::string& revision);
// A repo's folder in the cache: "models--organisation--name".
std::string hub_folder(const std::string& repo_id);

// HF_HOME, or XDG_CACHE_HOME/huggingface, or ~/.cache/huggingface.
std::filesystem::path hub_home_directory();

// HF_HUB_CACHE, or hub_home_directory()/hub.
std::filesystem::path hub_cache_directory();

// Tried in this order: a directory; a file (config.json); a repo id "org/name" in the cache at
// `revision` (a branch, tag or commit); a built-in config of that id. Throws Error(kNotFound) that
// says what to do, Error(kCheckpoint) for a config that cannot be read.
ModelFiles find_model(const std::string& model, const std::string& revision = "main",
                      const std::filesystem::path& cache = hub_cache_directory());

}  // namespace nibble
