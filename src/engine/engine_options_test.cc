#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "engine/engine.h"

namespace nibble {
namespace {

// A checkpoint's scales of keys and values are not 1: pages in bf16 need none.
TEST(EngineOptions, RefusesFp8PagesWhereTheModelDoes) {
  const ModelInfo info{.num_layers = 1,
                       .vocab_size = 8,
                       .max_positions = 64,
                       .groups = {{.layers = {0}, .num_kv_heads = 1, .head_dim = 16}},
                       .refuses_fp8_kv = "tensor \"x.k_scale\" is 1.5"};
  Engine::check(info, {.kv_dtype = DType::kBF16});
  try {
    Engine::check(info, {.kv_dtype = DType::kF8E4M3});
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kUnsupported);
    EXPECT_THAT(e.what(), testing::HasSubstr("--kv-cache-dtype fp8: tensor \"x.k_scale\" is 1.5"));
  }
}

}  // namespace
}  // namespace nibble
