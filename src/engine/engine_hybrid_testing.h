// What the tests of engines over models with states share, on CPUs and GPUs.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "engine/engine_testing.h"

namespace nibble {

// Bytes for the states of all sequences, and the pages of one.
inline int64_t bytes_for_one_and_states(const ModelInfo& info, const EngineOptions& options) {
  int64_t bytes = Engine::kv_bytes_for(info, options, options.max_model_len, options.max_num_seqs);
  for (const LayerGroup& group : info.groups) {
    bytes -= (options.max_num_seqs - 1) * (options.max_model_len / options.page_size) *
             page_bytes(group, {.page_size = options.page_size, .dtype = options.kv_dtype});
  }
  return bytes;
}

// Six with long answers, more than the pages of bytes_for_one_and_states() hold together.
inline std::vector<Request> long_requests(int32_t vocab) {
  std::vector<Request> all;
  for (int32_t i = 0; i < 6; ++i) {
    all.push_back({.prompt = toy_prompt(5 + i, i, vocab)});
    all.back().max_tokens = 80;
    all.back().sampling.seed = i;
  }
  return all;
}

inline void expect_same(const std::vector<Transcript>& found,
                        const std::vector<Transcript>& expected, const char* what) {
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(found[i].error, "");
    EXPECT_TRUE(found[i] == expected[i]) << what << ", request " << i;
  }
}

}  // namespace nibble
