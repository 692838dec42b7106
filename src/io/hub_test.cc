#include "io/hub.h"

#include <gmock/gmock.h>

#include <cstdlib>

#include "io/io_test.h"

namespace nibble {
namespace {

using test::error_of;
using test::TempDir;
using test::write_file;
using testing::AllOf;
using testing::HasSubstr;
namespace fs = std::filesystem;

constexpr const char* kConfig = R"({"model_type": "gpt_oss", "hidden_size": 32})";
constexpr const char* kOriginalConfig = R"({"num_hidden_layers": 2, "num_experts": 4,
    "experts_per_token": 4, "initial_context_length": 64, "rope_theta": 150000,
    "rope_scaling_factor": 32.0, "rope_ntk_alpha": 1, "rope_ntk_beta": 32})";

// As huggingface_hub lays it out: blobs, and snapshots of relative links to them.
void add_to_cache(const fs::path& cache, const std::string& folder, const std::string& ref,
                  const std::string& hash) {
  const fs::path repo = cache / folder;
  write_file(repo / "refs" / ref, hash + "\n");
  write_file(repo / "blobs/c0", kConfig);
  write_file(repo / "blobs/c1", R"({"eos_token_id": [1, 2]})");
  write_file(repo / "blobs/c2", "weights");
  fs::create_directories(repo / "snapshots" / hash);
  fs::create_symlink("../../blobs/c0", repo / "snapshots" / hash / "config.json");
  fs::create_symlink("../../blobs/c1", repo / "snapshots" / hash / "generation_config.json");
  fs::create_symlink("../../blobs/c2", repo / "snapshots" / hash / "model.safetensors");
}

TEST(FindModel, FindsADirectory) {
  const TempDir dir;
  write_file(dir / "config.json", kConfig);
  const ModelFiles bare = find_model(dir.path(), "main", dir / "cache");
  EXPECT_EQ(bare.directory, dir.path());
  EXPECT_EQ(bare.config.integer("hidden_size", 1, 99), 32);
  EXPECT_FALSE(bare.generation_config.has_value());
  EXPECT_THAT(error_of([&] { bare.require_weights(); }),
              AllOf(HasSubstr("no weights here"), HasSubstr("--load-format dummy")));
  write_file(dir / "model.safetensors.index.json", "{}");
  write_file(dir / "generation_config.json", R"({"eos_token_id": 7})");
  const ModelFiles full = find_model(dir.path(), "main", dir / "cache");
  EXPECT_EQ(full.require_weights(), dir.path());
  EXPECT_EQ(full.generation_config->integer("eos_token_id", 0, 9), 7);
}

TEST(FindModel, FindsAConfigFile) {
  const TempDir dir;
  write_file(dir / "some.json", kConfig);
  const ModelFiles model = find_model(dir / "some.json", "main", dir / "cache");
  EXPECT_TRUE(model.directory.empty());
  EXPECT_EQ(model.config.text("model_type"), "gpt_oss");
  EXPECT_THAT(error_of([&] { model.require_weights(); }), HasSubstr("only a config"));
}

// A download of original/* alone: config and weights both come from there.
TEST(FindModel, FindsTheOriginalLayout) {
  const TempDir dir;
  write_file(dir / "original/config.json", kOriginalConfig);
  write_file(dir / "original/model.safetensors", "weights");
  const ModelFiles outer = find_model(dir.path(), "main", dir / "cache");
  EXPECT_EQ(outer.require_weights(), dir / "original");
  EXPECT_EQ(outer.config.integer("num_local_experts", 1, 99), 4);
  const ModelFiles inner = find_model(dir / "original", "main", dir / "cache");
  EXPECT_EQ(inner.require_weights(), dir / "original");
  EXPECT_EQ(inner.config.text("model_type"), "gpt_oss");
}

TEST(FindModel, FindsARepoInTheCache) {
  const TempDir dir;
  add_to_cache(dir.path(), "models--some--model.v1", "main", "0123abcd");
  add_to_cache(dir.path(), "models--some--model.v1", "refs/pr/1", "4567ef");
  const fs::path snapshots = dir / "models--some--model.v1/snapshots";
  const ModelFiles model = find_model("some/model.v1", "main", dir.path());
  EXPECT_EQ(model.directory, snapshots / "0123abcd");
  EXPECT_EQ(model.require_weights(), snapshots / "0123abcd");
  EXPECT_EQ(model.generation_config->integers("eos_token_id", 0, 9).size(), 2u);
  EXPECT_EQ(find_model("some/model.v1", "0123abcd", dir.path()).directory, snapshots / "0123abcd");
  EXPECT_EQ(find_model("some/model.v1", "refs/pr/1", dir.path()).directory, snapshots / "4567ef");
}

TEST(FindModel, PrefersTheCacheToABuiltInConfig) {
  const TempDir dir;
  const ModelFiles builtin = find_model("openai/gpt-oss-20b", "main", dir.path());
  EXPECT_EQ(builtin.config.integer("num_hidden_layers", 1, 99), 24);
  EXPECT_THAT(error_of([&] { builtin.require_weights(); }),
              HasSubstr("`nibble pull openai/gpt-oss-20b`"));
  add_to_cache(dir.path(), "models--openai--gpt-oss-20b", "main", "99");
  EXPECT_EQ(
      find_model("openai/gpt-oss-20b", "main", dir.path()).config.integer("hidden_size", 1, 99),
      32);
}

TEST(FindModel, SaysWhatToDo) {
  const TempDir dir;
  const auto error = [&](const std::string& model, const std::string& revision) {
    return error_of([&] { find_model(model, revision, dir.path()); });
  };
  EXPECT_THAT(error("some/model", "main"),
              AllOf(HasSubstr("`nibble pull some/model`"), HasSubstr("HF_HOME")));
  EXPECT_THAT(error("some/model", "v2"), HasSubstr("`nibble pull some/model --revision v2`"));
  EXPECT_THAT(error("/no/such/directory", "main"), HasSubstr("no such directory or file"));
  EXPECT_THAT(error("../x", "main"), HasSubstr("not a Hugging Face repo id"));
  EXPECT_THAT(error("a/b/c", "main"), HasSubstr("not a Hugging Face repo id"));
  EXPECT_THAT(error("some/model", "../../x"), HasSubstr("not a branch"));
  EXPECT_THAT(error(dir.path().string(), "main"), HasSubstr("has no config.json"));
  // A ref that leads out of the cache is not followed.
  write_file(dir / "models--some--model/refs/main", "../../..");
  EXPECT_THAT(error("some/model", "main"), HasSubstr("`nibble pull some/model`"));
}

TEST(HubCacheDirectory, FollowsTheEnvironment) {
  for (const char* name : {"HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"}) unsetenv(name);
  const char* home = std::getenv("HOME");
  const std::string before = home == nullptr ? "" : home;
  setenv("HOME", "/h", 1);
  EXPECT_EQ(hub_cache_directory(), "/h/.cache/huggingface/hub");
  setenv("XDG_CACHE_HOME", "/x", 1);
  EXPECT_EQ(hub_cache_directory(), "/x/huggingface/hub");
  setenv("HF_HOME", "/f", 1);
  EXPECT_EQ(hub_cache_directory(), "/f/hub");
  setenv("HF_HUB_CACHE", "/c", 1);
  EXPECT_EQ(hub_cache_directory(), "/c");
  for (const char* name : {"HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"}) unsetenv(name);
  setenv("HOME", before.c_str(), 1);
}

}  // namespace
}  // namespace nibble
