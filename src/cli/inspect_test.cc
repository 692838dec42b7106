#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/run_for_test.h"
#include "io/safetensors.h"

namespace nibble::cli {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

const std::string kTiny = std::string(NIBBLE_SOURCE_DIR) + "/models/nibble-tiny-gpt-oss";

// Numbers of tensors and bytes of the two published checkpoints (metadata.total_size of their
// index files).
TEST(Inspect, CountsThePublishedCheckpointsToTheByte) {
  for (const auto& [name, tensors, bytes] :
       {std::tuple{"openai/gpt-oss-20b", 459, int64_t{13'761'264'768}},
        {"openai/gpt-oss-120b", 687, int64_t{65'248'815'744}}}) {
    const CommandResult result = run_command({"inspect", name, "--json"});
    ASSERT_EQ(result.status, 0) << result.err;
    const json out = json::parse(result.out);
    EXPECT_EQ(out["num_tensors"], tensors);
    EXPECT_EQ(out["total_bytes"], bytes);
    EXPECT_EQ(out["weights_on_disk"], false);
  }
}

TEST(Inspect, FindsTheShippedModelInOrder) {
  const CommandResult text = run_command({"inspect", kTiny});
  EXPECT_EQ(text.status, 0) << text.err;
  EXPECT_THAT(text.out, AllOf(HasSubstr("model.layers.*.self_attn.q_proj.weight"),
                              HasSubstr("mxfp4"), HasSubstr("agree with the config")));
  EXPECT_THAT(run_command({"inspect", kTiny, "--all"}).out,
              HasSubstr("model.layers.0.self_attn.q_proj.weight"));
  const json out = json::parse(run_command({"inspect", kTiny, "--json"}).out);
  EXPECT_EQ(out["agrees"], true);
  EXPECT_TRUE(out["unused"].empty());
  EXPECT_EQ(out["formats"]["mxfp4"]["bytes"].get<int64_t>() * 32,
            out["formats"]["mxfp4"]["elements"].get<int64_t>() * 17);
}

TEST(Inspect, SaysWhatDoesNotAgree) {
  const std::filesystem::path dir = std::filesystem::path(testing::TempDir()) / "inspect_model";
  std::filesystem::create_directories(dir);
  std::filesystem::copy_file(kTiny + "/config.json", dir / "config.json",
                             std::filesystem::copy_options::overwrite_existing);
  const std::byte data[8] = {};
  const TensorData tensor{"model.norm.weight", DType::kBF16, {4}, data};
  write_safetensors(dir / "model.safetensors", {&tensor, 1});
  const CommandResult result = run_command({"inspect", dir, "--json"});
  EXPECT_EQ(result.status, 1);
  EXPECT_THAT(result.err, HasSubstr("is missing; expected"));
  EXPECT_EQ(json::parse(result.out)["agrees"], false);
}

TEST(Inspect, ShowsModelsThatItCannotRun) {
  const std::filesystem::path dir = std::filesystem::path(testing::TempDir()) / "inspect_other";
  std::filesystem::create_directories(dir);
  std::ofstream(dir / "config.json") << R"({"architectures": ["OtherForCausalLM"]})";
  const std::byte data[8] = {};
  const TensorData tensor{"w", DType::kBF16, {4}, data};
  write_safetensors(dir / "model.safetensors", {&tensor, 1});
  const CommandResult result = run_command({"inspect", dir});
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("Not checked"), HasSubstr("OtherForCausalLM")));
}

}  // namespace
}  // namespace nibble::cli
