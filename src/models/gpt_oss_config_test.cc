#include "models/gpt_oss_config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>

#include "base/error.h"

namespace nibble {
namespace {

// Of openai/gpt-oss-20b and -120b: what the two published index files and the model card say.
TEST(GptOssInfo, OfThePublishedModels) {
  const ModelInfo small = describe_model("openai/gpt-oss-20b");
  EXPECT_EQ(small.parameters, 20914757184);
  EXPECT_EQ(small.weight_bytes, 13761264768);
  EXPECT_EQ(small.weight_bytes_per_token, 3708089088);
  const ModelInfo large = describe_model("openai/gpt-oss-120b");
  EXPECT_EQ(large.parameters, 116829156672);
  EXPECT_EQ(large.weight_bytes, 65248815744);
  EXPECT_EQ(large.weight_bytes_per_token, 5002907904);
  EXPECT_EQ(large.architecture, "GptOssForCausalLM");
  EXPECT_EQ(large.num_layers, 36);
  EXPECT_EQ(large.vocab_size, 201088);
  EXPECT_EQ(large.max_positions, 131072);
  for (const LayerGroup& group : large.groups) {
    EXPECT_EQ(group.num_kv_heads, 8);
    EXPECT_EQ(group.head_dim, 64);
  }
  // 9.10 and 6.06 GFLOP a token.
  EXPECT_NEAR(static_cast<double>(large.flops_per_token), 9.10e9, 0.01e9);
  EXPECT_NEAR(static_cast<double>(small.flops_per_token), 6.06e9, 0.01e9);
}

TEST(GptOssInfo, PartsSumToTheWhole) {
  const ModelInfo info = describe_model("openai/gpt-oss-20b");
  int64_t sum = 0;
  std::string names;
  for (const WeightPart& part : info.parts) sum += part.bytes, names += part.name + " ";
  EXPECT_EQ(sum, info.weight_bytes);
  EXPECT_EQ(names, "embed norms attention router experts unembed ");
  EXPECT_EQ(info.parts[2].bytes, 1274406912);
  EXPECT_EQ(info.parts[4].bytes, 10165616640);
  EXPECT_EQ(info.parts[4].chosen, 4);
  EXPECT_EQ(info.parts[4].choices, 32);
}

TEST(GptOssInfo, WindowLayersAreTheEvenOnes) {
  const ModelInfo info = describe_model("openai/gpt-oss-20b");
  ASSERT_EQ(info.groups.size(), 2u);
  EXPECT_EQ(info.groups[0].window, kNoWindow);
  EXPECT_EQ(info.groups[0].layers.front(), 1);
  EXPECT_EQ(info.groups[1].window, 128);
  EXPECT_EQ(info.groups[1].layers,
            (std::vector<int32_t>{0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22}));
}

TEST(GptOssPlan, NamesAKernelForEveryOpOfEveryLayer) {
  ops::Ctx cx;
  cx.kernels.isa = cpu::Isa::kAvx2;
  const std::vector<ops::PlanEntry> plan = plan_kernels(cx, "openai/gpt-oss-20b");
  EXPECT_EQ(plan.size(), 2u + 24 * 6);
  for (const ops::PlanEntry& entry : plan) {
    EXPECT_EQ(entry.kernel, entry.site.op == ops::Op::kEmbed ? "cpu_copy" : "avx2_float");
    if (entry.site.op == ops::Op::kEmbed) continue;
    ASSERT_FALSE(entry.refused.empty());
    EXPECT_EQ(entry.refused.back().kernel, "avx512_float");  // the next better one
    for (const ops::Refusal& r : entry.refused) EXPECT_NE(r.reason, "") << r.kernel;
  }
  cx.kernels.isa = cpu::Isa::kScalar;
  const std::map<ops::Op, std::string> plain = {{ops::Op::kEmbed, "cpu_copy"},
                                                {ops::Op::kAttention, "plain_float"}};
  for (const ops::PlanEntry& entry : plan_kernels(cx, "openai/gpt-oss-20b"))
    EXPECT_EQ(entry.kernel, plain.contains(entry.site.op) ? plain.at(entry.site.op) : "plain_any");
}

// A small valid config with `key` set to `value` (JSON), or left out where value is empty.
std::string config_text(const std::string& key = "", const std::string& value = "") {
  const std::pair<const char*, const char*> entries[] = {
      {"architectures", "[\"GptOssForCausalLM\"]"},
      {"num_hidden_layers", "2"},
      {"hidden_size", "64"},
      {"intermediate_size", "32"},
      {"num_attention_heads", "4"},
      {"num_key_value_heads", "2"},
      {"head_dim", "16"},
      {"num_local_experts", "4"},
      {"num_experts_per_tok", "2"},
      {"layer_types", "[\"sliding_attention\",\"full_attention\"]"},
      {"sliding_window", "8"},
      {"vocab_size", "100"},
      {"max_position_embeddings", "1000"},
      {"rope_theta", "150000"},
      {"rope_scaling",
       "{\"rope_type\":\"yarn\",\"factor\":32,\"original_max_position_embeddings\":64,"
       "\"truncate\":false}"},
      {"rms_norm_eps", "1e-5"}};
  std::string text;
  bool found = key.empty();
  for (const auto& [name, usual] : entries) {
    found = found || key == name;
    if (key == name && value.empty()) continue;
    text +=
        (text.empty() ? "{\"" : ",\"") + std::string(name) + "\":" + (key == name ? value : usual);
  }
  if (!found) text += ",\"" + key + "\":" + value;
  return text + "}";
}

GptOssConfig parse(const std::string& key = "", const std::string& value = "") {
  return parse_gpt_oss_config(Config::parse(config_text(key, value), "config.json"));
}

TEST(GptOssConfig, Reads) {
  const GptOssConfig c = parse();
  EXPECT_EQ(c.layers, 2);
  EXPECT_EQ(c.window_of(0), 8);
  EXPECT_EQ(c.window_of(1), kNoWindow);
  EXPECT_FLOAT_EQ(c.swiglu_limit, 7);
  EXPECT_EQ(c.rope.inv_freq.size(), 8u);
  EXPECT_EQ(parse("head_dim", "").head_dim, 16);  // hidden / heads
  EXPECT_EQ(parse("layer_types", "").sliding, (std::vector<bool>{true, false}));
  EXPECT_EQ(parse("rope_scaling", "{\"rope_type\":\"default\"}").rope.concentration, 1);
  const ops::Rope filled_in = parse("rope_scaling", "").rope;
  EXPECT_FLOAT_EQ(filled_in.concentration, 0.1f * std::log(32.f) + 1);
  EXPECT_EQ(filled_in.inv_freq,
            parse("rope_scaling",
                  "{\"rope_type\":\"yarn\",\"factor\":32,\"beta_fast\":32,\"beta_slow\":1,"
                  "\"truncate\":false,\"original_max_position_embeddings\":4096}")
                .rope.inv_freq);
}

// Each size is within its limits; together they are more than bytes can be counted in 63 bits.
TEST(GptOssConfig, RefusesSizesThatOverflowTogether) {
  std::string text = config_text("num_hidden_layers", "1000");
  const std::pair<const char*, const char*> larger[] = {
      {"\"hidden_size\":64", "\"hidden_size\":1048576"},
      {"\"intermediate_size\":32", "\"intermediate_size\":1048576"},
      {"\"num_local_experts\":4", "\"num_local_experts\":65536"}};
  for (const auto& [from, to] : larger) {
    ASSERT_NE(text.find(from), std::string::npos);
    text.replace(text.find(from), std::string(from).size(), to);
  }
  try {
    parse_gpt_oss_config(Config::parse(text, "config.json"));
    ADD_FAILURE() << "was accepted";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("10^15 parameters"), std::string::npos) << e.what();
  }
}

TEST(GptOssConfig, RefusesWhatCannotBe) {
  const std::pair<const char*, const char*> bad[] = {
      {"num_hidden_layers", "0"},
      {"num_hidden_layers", "3"},  // layer_types has two
      {"num_hidden_layers", ""},
      {"hidden_size", "65"},
      {"hidden_size", "\"64\""},
      {"intermediate_size", "33"},
      {"num_attention_heads", "3"},
      {"num_key_value_heads", "0"},
      {"head_dim", "15"},
      {"num_local_experts", "0"},
      {"num_experts_per_tok", "5"},
      {"layer_types", "[\"sliding_attention\",\"chunked_attention\"]"},
      {"sliding_window", "0"},
      {"sliding_window", ""},
      {"vocab_size", "-1"},
      {"rope_theta", ""},
      {"rope_scaling", "{\"rope_type\":\"llama3\",\"factor\":8}"},
      {"rope_scaling", "{\"rope_type\":\"yarn\"}"},
      {"rope_scaling", "{\"factor\":32}"},
      {"swiglu_alpha", "1"},
      {"rms_norm_eps", "-1"},
      {"tie_word_embeddings", "true"},
      {"attention_bias", "false"},
      {"hidden_act", "\"gelu\""},
      {"quantization_config", "{\"quant_method\":\"gptq\"}"}};
  for (const auto& [key, value] : bad) {
    try {
      parse(key, value);
      ADD_FAILURE() << key << " = " << value << " was accepted";
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::kCheckpoint) << e.what();
      EXPECT_NE(std::string(e.what()).find("config.json"), std::string::npos) << e.what();
    }
  }
}

}  // namespace
}  // namespace nibble
