// gpt-oss on a GPU for the engine's tests: dummy weights of a config with its head dim and windows,
// or a checkpoint.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "cpu/thread_pool.h"
#include "cuda/device.h"
#include "cuda/memory.h"
#include "cuda/stream.h"
#include "models/model.h"

namespace nibble {

inline constexpr char kGpuTestConfig[] = R"({
  "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss",
  "num_hidden_layers": 4, "hidden_size": 256, "head_dim": 64,
  "num_attention_heads": 8, "num_key_value_heads": 2,
  "num_local_experts": 8, "num_experts_per_tok": 4, "intermediate_size": 256,
  "sliding_window": 32, "vocab_size": 3072, "max_position_embeddings": 8192,
  "rope_theta": 150000, "rope_scaling": {"rope_type": "yarn", "factor": 2.0,
  "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false,
  "original_max_position_embeddings": 4096}})";

struct GpuTestModel {
  explicit GpuTestModel(Format dense, bool exact = true, const std::string& path = "") : pool(2) {
    const auto file = std::filesystem::path(testing::TempDir()) / "engine_gpu" / "config.json";
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << kGpuTestConfig;
    cx.pool = &pool;
    cx.activations = DType::kBF16;
    cx.kernels.activations = ops::ActFormat::kBF16;
    cx.kernels.exact = exact;
    load.format = path.empty() ? LoadFormat::kDummy : LoadFormat::kAuto, load.seed = 3;
    load.dense = {.qkv = dense, .out = dense, .unembed = dense};
    cx.kernels.gpu = cuda::open_device();
    stream = std::make_unique<cuda::Stream>();
    cx.stream = stream->handle();
    model = load_model(cx, path.empty() ? file.string() : path, load);
  }

  cpu::ThreadPool pool;
  std::unique_ptr<cuda::Stream> stream;
  ops::Ctx cx;
  LoadOptions load = {.memory = {.allocate = cuda::device_buffer,
                                 .allocate_staging = cuda::pinned_buffer,
                                 .copy = cuda::copy}};
  std::unique_ptr<Model> model;
};

}  // namespace nibble
