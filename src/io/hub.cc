#include "io/hub.h"

#include <algorithm>
#include <cstdlib>

#include "base/error.h"
#include "io/files.h"
#include "io/original_layout.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxRefBytes = 4096;

[[noreturn]] void not_found(const std::string& text) { throw Error(ErrorKind::kNotFound, text); }

bool has_weights(const fs::path& directory) {
  return fs::exists(directory / "model.safetensors") ||
         fs::exists(directory / "model.safetensors.index.json");
}

Config load_config(const fs::path& file) {
  const Config config = Config::load(file);
  return is_original_config(config) ? from_original_config(config) : config;
}

// A model's directory: config.json and weights in it, or all of them in its original/.
ModelFiles from_directory(const std::string& name, const fs::path& directory) {
  const fs::path original = directory / "original";
  fs::path config = directory / "config.json";
  if (!fs::exists(config)) config = original / "config.json";
  if (!fs::exists(config))
    not_found(directory.string() + ": has no config.json; MODEL is a model's directory, a " +
              "config.json or a Hugging Face repo id");
  ModelFiles files{.name = name,
                   .directory = directory,
                   .weights = {},
                   .config = load_config(config),
                   .generation_config = {}};
  if (has_weights(directory)) {
    files.weights = directory;
  } else if (has_weights(original)) {
    files.weights = original;
  }
  const fs::path generation = directory / "generation_config.json";
  if (fs::exists(generation)) files.generation_config = Config::load(generation);
  return files;
}

// One path component: letters, digits, '-', '_', '.'; neither "." nor "..".
bool is_component(std::string_view text) {
  return !text.empty() && text != "." && text != ".." &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) {
           return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
         });
}

std::string trimmed(std::string text) {
  const auto is_space = [](unsigned char c) { return std::isspace(c) != 0; };
  while (!text.empty() && is_space(text.back())) text.pop_back();
  return text;
}

// snapshots/<hash> of a revision, or empty where the cache does not have it.
fs::path find_snapshot(const fs::path& repo, const std::string& revision) {
  std::string hash = revision;
  const fs::path ref = repo / "refs" / revision;
  if (fs::is_regular_file(ref)) hash = trimmed(read_text_file(ref, kMaxRefBytes));
  if (!is_component(hash)) return {};
  const fs::path snapshot = repo / "snapshots" / hash;
  return fs::is_directory(snapshot) ? snapshot : fs::path();
}

fs::path environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string pull_command(const std::string& repo_id, const std::string& revision) {
  return "`nibble pull " + repo_id + (revision == "main" ? "" : " --revision " + revision) + "`";
}

}  // namespace

const fs::path& ModelFiles::require_weights() const {
  if (!weights.empty()) return weights;
  not_found(name + ": there are no weights here, only a config; " + advice() +
            ", or use `--load-format dummy` for random ones");
}

bool is_repo_id(const std::string& model) {
  const size_t slash = model.find('/');
  return slash != std::string::npos && is_component(model.substr(0, slash)) &&
         is_component(model.substr(slash + 1));
}

// Branches and refs/pr/N have slashes; none may lead out of the cache.
bool is_revision(const std::string& revision) {
  size_t begin = 0;
  while (true) {
    const size_t slash = revision.find('/', begin);
    if (!is_component(revision.substr(begin, slash - begin))) return false;
    if (slash == std::string::npos) return true;
    begin = slash + 1;
  }
}

std::string hub_folder(const std::string& repo_id) {
  std::string folder = "models--" + repo_id;
  folder.replace(folder.find('/'), 1, "--");
  return folder;
}

std::string ModelFiles::advice() const {
  if (is_repo_id(name) && !fs::exists(name))
    return "fetch them with " + pull_command(name, "main") + ", or set HF_HOME where they are";
  return "expected model.safetensors, or model.safetensors.index.json and its shards";
}

fs::path hub_home_directory() {
  if (fs::path home = environment("HF_HOME"); !home.empty()) return home;
  fs::path base = environment("XDG_CACHE_HOME");
  if (base.empty()) base = environment("HOME") / ".cache";
  return base / "huggingface";
}

fs::path hub_cache_directory() {
  if (fs::path cache = environment("HF_HUB_CACHE"); !cache.empty()) return cache;
  return hub_home_directory() / "hub";
}

ModelFiles find_model(const std::string& model, const std::string& revision,
                      const fs::path& cache) {
  if (fs::is_directory(model)) return from_directory(model, model);
  if (fs::is_regular_file(model))
    return {.name = model,
            .directory = {},
            .weights = {},
            .config = load_config(model),
            .generation_config = {}};
  if (!is_repo_id(model))
    not_found(model + ": no such directory or file, and not a Hugging Face repo id " +
              "(organisation/name)");
  if (!is_revision(revision))
    throw Error(ErrorKind::kUsage, "--revision " + revision + ": not a branch, tag or commit");

  const fs::path snapshot = find_snapshot(cache / hub_folder(model), revision);
  if (!snapshot.empty()) return from_directory(model, snapshot);
  if (std::optional<Config> config = builtin_config(model); config && revision == "main")
    return {.name = model,
            .directory = {},
            .weights = {},
            .config = *std::move(config),
            .generation_config = {}};
  not_found(model + ": revision " + revision + " is not in the Hugging Face cache " +
            cache.string() + "; fetch it with " + pull_command(model, revision) +
            ", or set HF_HOME if it lies elsewhere");
}

}  // namespace nibble
