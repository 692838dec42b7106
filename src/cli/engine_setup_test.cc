#include "cli/engine_setup.h"

#include <gtest/gtest.h>

#include <vector>

#include "engine/engine_testing.h"

namespace nibble::cli {
namespace {

// A conversation with a model that has states goes on from the last answer, though no more than one
// sequence runs at once.
TEST(EngineSetup, OneSequenceLeavesAState) {
  EngineFlags flags;
  flags.model = NIBBLE_SOURCE_DIR "/models/nibble-tiny-qwen3-next";
  flags.device = "cpu";
  flags.max_model_len = 512;
  flags.max_num_seqs = 1;
  const LoadedEngine loaded = load_engine(flags, {.masked_ids = {}, .quiet = true});
  Request turn{.max_tokens = 8};
  turn.sampling.temperature = 0;
  for (int32_t i = 0; i < 200; ++i) turn.prompt.push_back(10 + i);
  const Transcript first = run_all(*loaded.engine, {turn})[0];
  ASSERT_FALSE(first.ids.empty());
  turn.prompt.insert(turn.prompt.end(), first.ids.begin(), first.ids.end());
  turn.prompt.insert(turn.prompt.end(), 20, 7);
  EXPECT_EQ(run_all(*loaded.engine, {turn})[0].cached_tokens,
            200 + static_cast<int32_t>(first.ids.size()) - 1);
}

}  // namespace
}  // namespace nibble::cli
