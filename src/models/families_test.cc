// Llama, Qwen3, Qwen3-MoE, Qwen3-Next and NemotronH against Hugging Face transformers, on small
// random checkpoints of odd shapes in many formats (tests/goldens/families, written by
// tools/write_family_goldens.py and write_hybrid_goldens.py); what is refused of their configs and
// checkpoints.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <regex>
#include <span>
#include <sstream>
#include <string>

#include "base/error.h"
#include "formats/bf16.h"
#include "io/bundle_for_test.h"
#include "io/checkpoint.h"
#include "io/io_test.h"
#include "models/config_sizes.h"
#include "models/random_checkpoint.h"
#include "models/step_work.h"
#include "models/test_goldens.h"

namespace nibble {
namespace {

using testing::HasSubstr;

constexpr const char* kCases[] = {"llama",
                                  "llama-tied",
                                  "llama-f16",
                                  "llama-modelopt-fp8",
                                  "llama-ct-int4",
                                  "qwen3",
                                  "qwen3-modelopt",
                                  "qwen3-ct",
                                  "qwen3-fp8",
                                  "qwen3-awq",
                                  "qwen3_moe",
                                  "qwen3_moe-over-all",
                                  "qwen3_moe-modelopt",
                                  "qwen3_moe-ct",
                                  "qwen3_moe-fp8",
                                  "qwen3_next",
                                  "qwen3_next-128",
                                  "qwen3_next-spelling",
                                  "qwen3_next-yarn",
                                  "qwen3_next-modelopt",
                                  "qwen3_next-ct",
                                  "qwen3_next-fp8",
                                  "qwen3_next-alike",
                                  "qwen3_next-joined",
                                  "qwen3_5_moe",
                                  "qwen3_5_moe-modelopt",
                                  "qwen3_5_moe-mixed",
                                  "qwen3_5_moe-alike",
                                  "qwen3_5_moe-joined",
                                  "qwen3_5",
                                  "nemotron_h",
                                  "nemotron_h-groups",
                                  "nemotron_h-modelopt",
                                  "nemotron_h-alike",
                                  "nemotron_h-128"};

class FamilyGolden : public testing::TestWithParam<const char*> {};

// own_error is what transformers' float32 is off by itself, from its float64. What is off here is
// of the same kind, by other orders of summing: five times that.
TEST_P(FamilyGolden, LogProbabilitiesEqualTransformers) {
  const std::string name = GetParam();
  const std::vector<int32_t> tokens = tokens_of(name);
  const double bound = 5 * expected<float>(name, "own_error").at(0);
  EXPECT_GT(bound, 0);
  EXPECT_LT(bound, 1e-3);
  for (const Kernels kernels : kernels_here()) {
    Loaded loaded(kGoldens / name, kernels);
    TestRunner runner(*loaded.model, loaded.cx, 1, static_cast<int32_t>(tokens.size()),
                      DType::kF32);
    EXPECT_LT(worst(runner.run(tokens, 128), expected<float>(name, "logits")), bound)
        << kernels_name(kernels);
  }
}

// The residual stream that enters each layer, of values around one: the logits' own bound.
TEST_P(FamilyGolden, ResidualStreamEqualsTransformers) {
  const std::string name = GetParam();
  const std::vector<int32_t> tokens = tokens_of(name);
  const double bound = 5 * expected<float>(name, "own_error").at(0);
  Loaded loaded(kGoldens / name, kTwins);
  std::map<int, std::vector<float>> x;  // by layer, all tokens
  loaded.cx.tap = [&](std::string_view buffer, int layer, const Tensor& value) {
    if (buffer != "x") return;
    const float* data = value.as<float>();
    x[layer].insert(x[layer].end(), data, data + value.num_elements());
  };
  TestRunner runner(*loaded.model, loaded.cx, 1, static_cast<int32_t>(tokens.size()), DType::kF32);
  runner.run(tokens, 128);
  ASSERT_EQ(static_cast<int32_t>(x.size()), loaded.model->info().num_layers);
  for (const auto& [layer, got] : x) {
    const auto want = expected<float>(name, "x." + std::to_string(layer));
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i)
      ASSERT_NEAR(got[i], want[i], bound) << "layer " << layer << " element " << i;
  }
}

// One reduction order whatever the step holds: the same bits in chunks of any size.
TEST_P(FamilyGolden, TheSameBitsHoweverATokenIsComputed) {
  const std::vector<int32_t> tokens = tokens_of(GetParam());
  const auto len = static_cast<int32_t>(tokens.size());
  for (const Kernels kernels : kernels_here()) {
    if (kernels == kTwins) continue;  // one order by construction
    Loaded loaded(kGoldens / GetParam(), kernels);
    TestRunner runner(*loaded.model, loaded.cx, 1, len, DType::kBF16);
    const Logits whole = runner.run(tokens, 128);
    for (int32_t chunk : {1, 7, 64})
      ASSERT_EQ(runner.run(tokens, chunk), whole) << kernels_name(kernels) << " " << chunk;
  }
}

// Behind the last op in which tokens meet a prompt's other rows are left out: the same bits.
TEST_P(FamilyGolden, TheLastRowOfAPromptIsTheSameAlone) {
  std::vector<int32_t> tokens = tokens_of(GetParam());
  tokens.resize(std::min<size_t>(tokens.size(), 128));  // of a step
  const auto len = static_cast<int32_t>(tokens.size());
  const int32_t chunk = (len + 1) / 2;
  const auto half = tokens.begin() + chunk;
  ASSERT_GE(len, 32);
  for (const Kernels kernels : kernels_here()) {
    Loaded loaded(kGoldens / GetParam(), kernels);
    TestRunner runner(*loaded.model, loaded.cx, 1, len, DType::kBF16);
    const Logits last{runner.run(tokens, len).back()};
    const Logits last_of_two{runner.run(tokens, chunk).back()};
    runner.clear(0);
    ASSERT_EQ(runner.step({{0, tokens}}, TestRunner::Wanted::kLast), last);
    runner.clear(0);
    ASSERT_TRUE(runner.step({{0, {tokens.begin(), half}}}, TestRunner::Wanted::kNone).empty());
    ASSERT_EQ(runner.step({{0, {half, tokens.end()}}}, TestRunner::Wanted::kLast), last_of_two)
        << kernels_name(kernels);
  }
}

// Of several sequences each has its own row.
TEST_P(FamilyGolden, TheLastRowsOfSeveralPromptsAreTheSameAlone) {
  const std::vector<int32_t> tokens = tokens_of(GetParam());
  ASSERT_GE(tokens.size(), 32u);
  const auto part = [&](int begin, int end) {
    return std::vector(tokens.begin() + begin, tokens.begin() + end);
  };
  const std::vector<TestChunk> chunks = {{0, part(3, 32)}, {1, part(0, 7)}, {2, part(1, 32)}};
  for (const Kernels kernels : kernels_here()) {
    Loaded loaded(kGoldens / GetParam(), kernels);
    TestRunner runner(*loaded.model, loaded.cx, 3, 32, DType::kBF16);
    Logits alone;
    for (const TestChunk& chunk : chunks) alone.push_back(runner.run(chunk.tokens, 32).back());
    runner.clear(0);
    ASSERT_EQ(runner.step(chunks, TestRunner::Wanted::kLast), alone) << kernels_name(kernels);
  }
}

// The config alone says the formats that the tensors have, and what is allocated for them.
TEST_P(FamilyGolden, TheConfigSaysWhatTheTensorsAre) {
  const std::filesystem::path directory = kGoldens / GetParam();
  if (std::string_view(GetParam()) == "llama-f16") return;  // of 16 bits are all bf16 there
  const ModelInfo here = describe_model(directory);
  const ModelInfo planned = describe_model(directory / "config.json");
  EXPECT_EQ(here.parameters, planned.parameters);
  EXPECT_EQ(here.weight_bytes, planned.weight_bytes);
  ASSERT_EQ(here.parts.size(), planned.parts.size());
  for (size_t i = 0; i < here.parts.size(); ++i)
    EXPECT_EQ(here.parts[i].formats, planned.parts[i].formats) << here.parts[i].name;
}

// Of bytes on disk, whatever they become in memory.
TEST_P(FamilyGolden, ProgressEndsAtTheTotal) {
  int64_t done = 0, total = 0;
  LoadOptions options;
  options.progress = [&](int64_t so_far, int64_t all) {
    EXPECT_LE(so_far, all);
    done = std::max(done, so_far), total = all;
  };
  Loaded loaded(kGoldens / GetParam(), cpu::Isa::kScalar, options);
  EXPECT_GT(total, 0);
  EXPECT_EQ(done, total);
}

// Dummy weights of every format, of finite logits that differ from token to token.
TEST_P(FamilyGolden, DummyWeightsRun) {
  Loaded loaded(kGoldens / GetParam() / "config.json", cpu::Isa::kScalar,
                {.format = LoadFormat::kDummy});
  TestRunner runner(*loaded.model, loaded.cx, 1, 16, DType::kBF16);
  const Logits logits = runner.run({1, 2, 3, 1, 2, 3, 4, 5}, 8);
  for (const auto& row : logits)
    for (const float x : row) ASSERT_TRUE(std::isfinite(x));
  EXPECT_NE(logits[0], logits[1]);
}

INSTANTIATE_TEST_SUITE_P(Cases, FamilyGolden, testing::ValuesIn(kCases), [](const auto& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

// Without files. Parameters as their publishers count them; what a token reads of NVFP4 is nine
// sixteenths of a byte an element, and four bytes a row.
TEST(Families, BuiltInIds) {
  const struct {
    const char* id;
    int64_t parameters;
    const char* linear;  // formats of the MLPs or experts
  } kIds[] = {{"Qwen/Qwen3-8B", 8'190'735'360, "bf16"},
              {"nvidia/Qwen3-8B-NVFP4", 8'190'735'360, "nvfp4"},
              {"Qwen/Qwen3-8B-FP8", 8'190'735'360, "fp8_block"},
              {"Qwen/Qwen3-30B-A3B", 30'532'122'624, "bf16"},
              {"nvidia/Qwen3-30B-A3B-NVFP4", 30'532'122'624, "nvfp4"},
              {"RedHatAI/Qwen3-30B-A3B-NVFP4", 30'532'122'624, "nvfp4"},
              {"Qwen/Qwen3-Next-80B-A3B-Instruct", 79'674'391'296, "bf16"},
              {"Qwen/Qwen3.5-35B-A3B", 34'660'610'688, "bf16"},
              {"meta-llama/Llama-3.1-8B", 8'030'261'248, "bf16"},
              {"nvidia/Llama-3.1-8B-Instruct-FP8", 8'030'261'248, "fp8"},
              {"nvidia/Llama-3.1-8B-Instruct-NVFP4", 8'030'261'248, "nvfp4"}};
  for (const auto& known : kIds) {
    const ModelInfo info = describe_model(known.id);
    EXPECT_EQ(info.parameters, known.parameters) << known.id;
    for (const WeightPart& part : info.parts) {
      const bool is_linear = part.name == "mlp" || part.name == "experts";
      const bool is_quantized = is_linear || part.name == "attention";
      EXPECT_EQ(part.formats, is_quantized ? known.linear : "bf16") << known.id << " " << part.name;
      if (part.name != "mlp" || std::string_view(known.linear) != "nvfp4") continue;
      const int64_t layers = info.num_layers, width = info.vocab_size == 151936 ? 12288 : 14336;
      EXPECT_EQ(part.bytes, layers * (3 * width * 4096 * 9 / 16 + 4 * (2 * width + 4096)));
    }
  }
}

// The embedding lies in memory once, unless the head is to be smaller than it.
TEST(Families, TiedEmbeddingsAreOneCopy) {
  const ModelInfo info = describe_model(kGoldens / "llama-tied");
  EXPECT_EQ(info.parts.at(0).name, "embed and unembed");
  EXPECT_EQ(info.parts.at(0).bytes, 2 * 101 * 96);
  EXPECT_EQ(info.parts.at(0).choices, 1);  // a token's logits read all of it
  for (const WeightPart& part : info.parts) EXPECT_NE(part.name, "unembed");
  const ModelInfo smaller = describe_model(kGoldens / "llama-tied", {.unembed = Format::kMxfp8});
  EXPECT_EQ(smaller.weight_bytes, info.weight_bytes + 101 * 96 / 32 * 33);
  // What is said of linear layers is not said of the table, whatever reads it.
  const test::TempDir directory;
  std::ofstream(directory / "config.json")
      << random_config({.family = Family::kLlama, .format = Format::kNvfp4, .is_tied = true});
  for (const ops::Site& site : list_sites(directory / "config.json", {.unembed = Format::kMxfp8}))
    if (site.key.op == ops::Op::kNormUnembed) {
      EXPECT_EQ(site.weight.format, Format::kMxfp8);
    }
  LoadOptions options;
  options.dense.unembed = Format::kMxfp8;
  Loaded one(kGoldens / "llama-tied", cpu::Isa::kScalar),
      two(kGoldens / "llama-tied", cpu::Isa::kScalar, options);
  const auto run = [](Loaded& loaded) {
    TestRunner runner(*loaded.model, loaded.cx, 1, 16, DType::kF32);
    return runner.run({5, 6, 7, 8}, 4);
  };
  const Logits a = run(one), b = run(two);
  double off = 0, size = 0;
  for (size_t t = 0; t < a.size(); ++t)
    for (size_t n = 0; n < a[t].size(); ++n)
      off += std::pow(a[t][n] - b[t][n], 2), size += std::pow(a[t][n], 2);
  EXPECT_GT(off, 0);
  EXPECT_LT(std::sqrt(off / size), 0.05);  // E4M3 rounds by 2^-4 / sqrt(12), 1.8%, a weight
}

std::string read_text(const std::filesystem::path& file) {
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

// What is said of a golden's config.json with `key` set to `value` (none: taken out).
std::string refusal(const std::string& name, const std::string& key, const std::string& value) {
  const test::TempDir dir;
  std::string text = read_text(kGoldens / name / "config.json");
  text = std::regex_replace(text, std::regex("\"" + key + "\": *[^,\\[{}]*,"), "");
  if (!value.empty()) text.replace(text.find('{'), 1, "{\"" + key + "\": " + value + ",");
  std::ofstream(dir / "config.json") << text;
  try {
    describe_model(dir / "config.json");
    return "";
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("config.json: ")) << key;
    return e.what();
  }
}

TEST(Families, ConfigsThatCannotBe) {
  const struct {
    const char *name, *key, *value, *said;
  } kBad[] = {
      {"llama", "hidden_size", "", "hidden_size"},
      {"llama", "hidden_size", "97", "hidden_size: is not a multiple of num_attention_heads"},
      {"llama", "num_key_value_heads", "4", "num_attention_heads: is not a multiple"},
      {"llama", "hidden_act", "\"gelu\"", "hidden_act: is gelu, expected silu"},
      {"llama", "mlp_bias", "true", "mlp_bias: is true"},
      {"llama", "head_dim", "17", "head_dim: is odd"},
      {"llama", "vocab_size", "0", "vocab_size"},
      {"llama", "num_hidden_layers", "\"three\"", "num_hidden_layers"},
      {"llama-f16", "rope_scaling", "{\"rope_type\": \"yarn\", \"factor\": 4}",
       "rope_type: is yarn, expected llama3 or default"},
      {"llama-f16", "rope_scaling", "{\"rope_type\": \"llama3\", \"factor\": 8}",
       "low_freq_factor"},
      {"llama-f16", "rope_scaling",
       "{\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 4, \"high_freq_factor\": "
       "4, "
       "\"original_max_position_embeddings\": 8192}",
       "high_freq_factor: is not more than low_freq_factor"},
      {"qwen3", "attention_bias", "true", "attention_bias: is true"},
      {"qwen3", "use_sliding_window", "true", "use_sliding_window: is true"},
      {"qwen3", "rope_theta", "", "rope_theta: is missing"},
      {"qwen3_moe", "num_experts_per_tok", "8", "num_experts_per_tok"},
      {"qwen3_moe", "decoder_sparse_step", "2", "decoder_sparse_step: is not 1"},
      {"qwen3_moe", "moe_intermediate_size", "-1", "moe_intermediate_size"},
      {"qwen3_moe", "num_experts", "5000", "num_experts"},
      {"qwen3_next", "full_attention_interval", "",
       "layer_types: is missing, and so is full_attention_interval"},
      {"qwen3_next", "layer_types", "[\"linear_attention\"]", "layer_types: has 1 entries"},
      {"qwen3_next", "layer_types", "[\"mamba\"]", "layer_types: has mamba"},
      {"qwen3_next-spelling", "full_attention_interval", "3",
       "layer_types: disagrees with full_attention_interval"},
      {"qwen3_next", "linear_num_value_heads", "3", "is not a multiple of linear_num_key_heads"},
      {"qwen3_next", "linear_conv_kernel_dim", "1", "linear_conv_kernel_dim"},
      {"qwen3_next", "partial_rotary_factor", "0.1", "turns 3 dims of a head"},
      {"qwen3_next", "partial_rotary_factor", "", "partial_rotary_factor: is missing"},
      {"qwen3_next", "hidden_act", "\"gelu\"", "hidden_act: is gelu"},
      {"qwen3_next", "head_dim", "33", "head_dim: is odd"},
      {"qwen3_next", "attn_output_gate", "false", "attn_output_gate: is false"},
      {"qwen3_next", "output_gate_type", "\"sigmoid\"", "output_gate_type: is sigmoid"},
      {"nemotron_h", "hybrid_override_pattern", "",
       "hybrid_override_pattern: is missing, and so is layers_block_type"},
      {"nemotron_h", "hybrid_override_pattern", "\"MEX*\"", "has layers of other kinds"},
      {"nemotron_h", "num_hidden_layers", "8",
       "hybrid_override_pattern: has 9 layers; num_hidden_layers is 8"},
      {"nemotron_h", "num_hidden_layers", "\"nine\"", "num_hidden_layers: found \"nine\""},
      {"nemotron_h", "mamba_num_heads", "7", "mamba_num_heads: is not a multiple of n_groups"},
      {"nemotron_h", "mlp_hidden_act", "\"silu\"", "mlp_hidden_act: is silu, expected relu2"},
      {"nemotron_h", "moe_latent_size", "32", "moe_latent_size: is there"},
      {"nemotron_h", "use_conv_bias", "false", "use_conv_bias: is false"},
      {"nemotron_h", "n_group", "3", "n_group: does not divide n_routed_experts"},
      {"nemotron_h-groups", "topk_group", "1", "num_experts_per_tok: is more than topk_group"},
      {"nemotron_h", "n_shared_experts", "2", "n_shared_experts: is not 1"},
      {"nemotron_h", "routed_scaling_factor", "-1", "routed_scaling_factor"},
      {"qwen3", "quantization_config", "{\"quant_method\": \"bitsandbytes\"}",
       "quant_method: is bitsandbytes, expected modelopt"},
      {"qwen3", "quantization_config", "{\"quant_method\": \"modelopt\", \"quant_algo\": \"X\"}",
       "quant_algo: is X, which nibble does not read"},
      {"qwen3", "quantization_config", "{\"quant_method\": \"compressed-tensors\"}",
       "config_groups: is missing"},
      {"qwen3", "quantization_config", "{\"quant_method\": \"awq\", \"bits\": 3}",
       "bits: is not 4"},
      {"qwen3-modelopt", "hidden_size", "72",
       "quantization_config: model.layers.0.self_attn.q_proj"
       ".weight has rows of 72, no whole blocks of nvfp4"},
  };
  for (const auto& bad : kBad)
    EXPECT_THAT(refusal(bad.name, bad.key, bad.value), HasSubstr(bad.said))
        << bad.name << " " << bad.key << " " << bad.value;
}

TEST(Families, MoreExpertsThanCanBe) {
  const Config config = Config::parse("{}", "config.json");
  const auto said = [&](int64_t experts, int64_t of_expert) -> std::string {
    try {
      check_experts(config, "num_experts", experts, of_expert);
      return "";
    } catch (const Error& e) {
      return e.what();
    }
  };
  EXPECT_EQ(said(131'072, 1'000'000), "");
  EXPECT_THAT(said(131'073, 1), HasSubstr("num_experts: makes more than 131,072 experts"));
  EXPECT_THAT(said(131'072, 8'000'000'000), HasSubstr("num_experts: makes more than 10^15"));
}

// A golden's checkpoint whose file has `from` replaced by as many bytes.
std::string load_refusal(const std::string& name, const std::string& from, const std::string& to) {
  EXPECT_EQ(from.size(), to.size());
  const test::TempDir dir;
  std::filesystem::copy_file(kGoldens / name / "config.json", dir / "config.json");
  std::string bytes = read_text(kGoldens / name / "model.safetensors");
  const size_t at = bytes.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  bytes.replace(at, from.size(), to);
  std::ofstream(dir / "model.safetensors", std::ios::binary) << bytes;
  try {
    Loaded loaded(dir.path(), cpu::Isa::kScalar);
    return "";
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr(dir.path().string()));
    return e.what();
  }
}

TEST(Families, TensorsThatDoNotFit) {
  EXPECT_THAT(load_refusal("llama", "\"shape\":[160,96]", "\"shape\":[96,160]"),
              HasSubstr("expected bf16 [160, 96] by the config"));
  EXPECT_THAT(load_refusal("qwen3_moe", "experts.3.up_proj.weight", "experts.3.xp_proj.weight"),
              HasSubstr("mlp.experts.3.up_proj.weight\": is missing"));
  EXPECT_THAT(load_refusal("qwen3", "self_attn.q_norm.weight", "self_attn.q_norx.weight"),
              HasSubstr("self_attn.q_norm.weight\": is missing; expected bf16 [24]"));
  EXPECT_THAT(
      load_refusal("qwen3-modelopt", "gate_proj.weight_scale_2", "gate_proj.weight_scale_X"),
      HasSubstr("gate_proj.weight"));
  EXPECT_THAT(load_refusal("llama-f16", "0.self_attn.k_proj.weight", "0.self_attn.x_proj.weight"),
              HasSubstr("config.json: asks for tensor \"model.layers.0.self_attn.k_proj.weight\", "
                        "which is missing"));
}

TEST(Families, MatricesOfOneProductInTwoFormats) {
  const std::string name = "\"model.layers.1.self_attn.v_proj.weight\":{\"dtype\":";
  EXPECT_THAT(
      load_refusal("llama", name + "\"BF16\"", name + " \"F16\""),
      HasSubstr(": model.layers.1.self_attn.q_proj.weight is bf16 and "
                "model.layers.1.self_attn.v_proj.weight f16; nibble multiplies them as one"));
}

// The tensors of a golden with those whose names end so times a power of two, and more of one
// float.
void write_scaled(const std::filesystem::path& from, const std::filesystem::path& to,
                  const std::map<std::string, float>& factors,
                  const std::map<std::string, float>& more) {
  std::filesystem::copy_file(from / "config.json", to / "config.json");
  const auto plain = open_checkpoint(from);
  test::Bundle bundle;
  for (const TensorInfo& t : plain->tensors()) {
    std::vector<std::byte> bytes(t.bytes);
    const ReadJob job = ReadJob::whole(t, bytes.data());
    plain->read({&job, 1});
    for (const auto& [end, factor] : factors) {
      if (!t.name.ends_with(end)) continue;
      ASSERT_EQ(t.dtype, DType::kBF16);
      for (size_t i = 0; i < bytes.size(); i += 2) {
        uint16_t bits;
        std::memcpy(&bits, &bytes[i], 2);
        bits = bf16_from_float(bf16_to_float(bits) * factor);
        std::memcpy(&bytes[i], &bits, 2);
      }
    }
    bundle.add(t.name, t.dtype, t.shape, std::move(bytes));
  }
  for (const auto& [name, value] : more) {
    const auto bytes = std::as_bytes(std::span(&value, 1));
    bundle.add(name, DType::kF32, {}, {bytes.begin(), bytes.end()});
  }
  bundle.write(to / "model.safetensors");
}

// Keys 4,096 times and values 1,024 times as large would be E4M3's largest, all of them. Under
// scales of as much they lie in the pages as those of the plain model do, and give its bits.
TEST(Families, KvScalesDivideWhatFp8PagesHold) {
  const test::TempDir dir;
  std::map<std::string, float> scales;
  for (const char* layer : {"0", "1", "2"}) {
    const std::string attention = "model.layers." + std::string(layer) + ".self_attn.";
    scales[attention + (layer[0] == '0' ? "k_proj.k_scale" : "k_scale")] = 4096;
    scales[attention + (layer[0] == '0' ? "v_proj.v_scale" : "attn.v_scale")] = 1024;
  }
  write_scaled(kGoldens / "llama", dir.path(),
               {{"k_proj.weight", 4096.f},
                {"q_proj.weight", 1 / 4096.f},
                {"v_proj.weight", 1024.f},
                {"o_proj.weight", 1 / 1024.f}},
               scales);
  EXPECT_EQ(describe_model(dir.path()).refuses_fp8_kv, "");
  const std::vector<int32_t> tokens = tokens_of("llama");
  for (const Kernels kernels : kernels_here()) {
    const auto logits = [&](const std::filesystem::path& directory) {
      Loaded loaded(directory, kernels);
      TestRunner runner(*loaded.model, loaded.cx, 1, static_cast<int32_t>(tokens.size()),
                        DType::kF8E4M3);
      return runner.run(tokens, 7);
    };
    EXPECT_EQ(logits(dir.path()), logits(kGoldens / "llama")) << kernels_name(kernels);
  }
}

// A scale that is of no layer might be anybody's.
TEST(Families, KvScalesOfNoLayerKeepPagesOutOfFp8) {
  EXPECT_EQ(describe_model(kGoldens / "llama-modelopt-fp8").refuses_fp8_kv, "");
  const test::TempDir dir;
  write_scaled(kGoldens / "qwen3", dir.path(), {}, {{"model.layers.7.self_attn.k_scale", 1.5f}});
  EXPECT_THAT(describe_model(dir.path()).refuses_fp8_kv,
              HasSubstr("\"model.layers.7.self_attn.k_scale\" is 1.5"));
}

}  // namespace
}  // namespace nibble
