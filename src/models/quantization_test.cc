#include "models/quantization.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "base/error.h"

namespace nibble {
namespace {

Quantization of(const std::string& json) {
  return Quantization(Config::parse("{\"quantization_config\": " + json + "}", "config.json"));
}
const std::string kUp = "model.layers.3.mlp.up_proj", kQ = "model.layers.3.self_attn.q_proj",
                  kGate = "model.layers.3.mlp.gate";

TEST(Quantization, NoneIsBf16) {
  EXPECT_EQ(Quantization().format_of(kUp), Format::kBF16);
  EXPECT_EQ(Quantization(Config::parse("{}", "config.json")).format_of(kUp), Format::kBF16);
}

TEST(Quantization, ModelOpt) {
  const Quantization q = of(R"({"quant_method": "modelopt", "quant_algo": "nvfp4",
      "exclude_modules": ["lm_head", "*.mlp.gate", "model.layers.5*"]})");
  EXPECT_EQ(q.format_of(kUp), Format::kNvfp4);
  EXPECT_EQ(q.format_of(kGate), Format::kBF16);
  EXPECT_EQ(q.format_of("lm_head"), Format::kBF16);
  EXPECT_EQ(q.format_of("model.layers.5.mlp.up_proj"), Format::kBF16);
  const auto algorithm = [](const std::string& name) {
    return of("{\"quant_method\": \"modelopt\", \"quant_algo\": \"" + name + "\"}").format_of(kUp);
  };
  EXPECT_EQ(algorithm("FP8"), Format::kFp8Row);
  EXPECT_EQ(algorithm("FP8_PB_WO"), Format::kFp8Block);
  EXPECT_EQ(algorithm("MXFP8"), Format::kMxfp8);
  EXPECT_THROW(algorithm("W4A16_AWQ"), Error);
}

TEST(Quantization, ModelOptByLayer) {
  const Quantization q = of(R"({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION",
      "quantized_layers": {"model.layers.3.mlp.experts": {"quant_algo": "NVFP4"},
                           "model.layers.3.self_attn.q_proj": {"quant_algo": "FP8"}}})");
  EXPECT_EQ(q.format_of("model.layers.3.mlp.experts.17.up_proj"), Format::kNvfp4);
  EXPECT_EQ(q.format_of(kQ), Format::kFp8Row);
  EXPECT_EQ(q.format_of(kUp), Format::kBF16);
}

TEST(Quantization, CompressedTensors) {
  const Quantization q = of(R"({"quant_method": "compressed-tensors", "format": "mixed-precision",
      "ignore": ["lm_head", "re:.*mlp.gate$"], "config_groups": {
        "group_0": {"format": "nvfp4-pack-quantized", "weights": {"num_bits": 4},
                    "targets": ["re:.*mlp.*\\.(gate_up|gate|up|down)_proj$"]},
        "group_1": {"format": "float-quantized", "weights": {"strategy": "block"},
                    "targets": ["re:.*self_attn\\.(q|k|v)_proj"]},
        "group_2": {"format": "pack-quantized", "weights": {"num_bits": 4, "group_size": 32},
                    "targets": ["model.layers.3.self_attn.o_proj"]}}})");
  EXPECT_EQ(q.format_of(kUp), Format::kNvfp4);
  EXPECT_EQ(q.format_of("model.layers.3.mlp.experts.0.gate_proj"), Format::kNvfp4);
  EXPECT_EQ(q.format_of(kGate), Format::kBF16);
  EXPECT_EQ(q.format_of(kQ), Format::kFp8Block);
  EXPECT_EQ(q.format_of("model.layers.3.self_attn.o_proj"), Format::kInt4G32);
  EXPECT_EQ(q.format_of("lm_head"), Format::kBF16);
}

TEST(Quantization, OthersLeaveTheHead) {
  for (const auto& [json, format] :
       {std::pair{R"({"quant_method": "fp8", "weight_block_size": [128, 128]})", Format::kFp8Block},
        {R"({"quant_method": "fp8"})", Format::kFp8Row},
        {R"({"quant_method": "awq", "bits": 4, "group_size": 128})", Format::kInt4G128},
        {R"({"quant_method": "awq", "bits": 4, "group_size": 64})", Format::kInt4G32}}) {
    EXPECT_EQ(of(json).format_of(kUp), format) << json;
    EXPECT_EQ(of(json).format_of("lm_head"), Format::kBF16) << json;
  }
  EXPECT_THROW(of(R"({"quant_method": "gptq", "bits": 4})"), Error);
}

std::string refusal(const std::function<void()>& run) {
  try {
    run();
    return "";
  } catch (const Error& e) {
    return e.what();
  }
}

// What tensors of the same shapes would be read as.
TEST(Quantization, RefusesOtherOrders) {
  EXPECT_EQ(refusal([] { of(R"({"quant_method": "awq", "bits": 4, "version": "gemv"})"); }),
            "config.json: quantization_config.version: is gemv, expected gemm");
  EXPECT_EQ(refusal([] { of(R"({"quant_method": "fp8", "weight_block_size": [64, 128]})"); }),
            "config.json: quantization_config.weight_block_size: is not [128, 128]");
}

// A missing tensor of them would be read as zero points of 8.
TEST(Quantization, ZeroPointsThatTheConfigSpeaksOf) {
  const TensorInfo there;
  WeightInfo weight{kUp + ".weight", {64, 128}, Format::kInt4G32};
  const auto take = [&](const std::string& json, const WeightInfo& w) {
    return refusal([&] { of(json).take({&w, 1}); });
  };
  const std::string by_groups = R"({"quant_method": "compressed-tensors",
      "format": "pack-quantized", "config_groups": {"group_0": {"targets": ["re:.*mlp.*"],
          "weights": {"num_bits": 4, "group_size": 32, "symmetric": )";
  const std::string said = "config.json: quantization_config: says that weights have zero points; ";
  EXPECT_EQ(take(by_groups + "false}}}}", weight),
            said + "tensor \"" + kUp + ".weight_zero_point\" is missing");
  EXPECT_EQ(take(by_groups + "true}}}}", weight), "");
  WeightInfo apart = weight;
  apart.name = kQ + ".weight";
  EXPECT_EQ(take(by_groups + "false}}}}", apart), "");
  weight.is_awq = true;
  const std::string awq = R"({"quant_method": "awq", "bits": 4, "zero_point": )";
  EXPECT_EQ(take(awq + "true}", weight), said + "tensor \"" + kUp + ".qzeros\" is missing");
  EXPECT_EQ(take(awq + "false}", weight), "");
  weight.zeros = &there;
  EXPECT_EQ(take(awq + "true}", weight), "");
}

}  // namespace
}  // namespace nibble
