// Models with recurrent layers on the GPU, by slots of a test's own, against transformers.
#include <gtest/gtest.h>

#include <cmath>

#include "cuda/device.h"
#include "cuda/memory.h"
#include "cuda/stream.h"
#include "models/draft_head.h"
#include "models/test_goldens.h"

namespace nibble {
namespace {

struct OnGpu {
  OnGpu(const std::string& name, bool exact) {
    cx.pool = &pool;
    cx.activations = DType::kBF16;
    cx.kernels.activations = ops::ActFormat::kBF16;
    cx.kernels.exact = exact;
    cx.kernels.gpu = cuda::open_device();
    cx.stream = stream.handle();
    LoadOptions load;
    load.memory = {.allocate = cuda::device_buffer,
                   .allocate_staging = cuda::pinned_buffer,
                   .copy = cuda::copy};
    model = load_model(cx, kGoldens / name, load);
    model->reserve(cx, {128, 128});
  }
  cpu::ThreadPool pool{2};
  cuda::Stream stream;
  ops::Ctx cx;
  std::unique_ptr<Model> model;
};

// Root mean square of what logits are off by over their own.
double rms_off(const Logits& got, const std::vector<float>& want) {
  double off = 0, all = 0;
  for (size_t t = 0; t < got.size(); ++t)
    for (size_t n = 0; n < got[t].size(); ++n) {
      const double w = want[t * got[t].size() + n];
      off += std::pow(got[t][n] - w, 2), all += w * w;
    }
  return std::sqrt(off / all);
}

// All experts are chosen: bf16 chooses no others. It rounds a value by 0.23% at most, root mean
// square; some ten stored values a layer, two layers, as a random walk: 1% of the residual stream,
// and three times that for what gates and norms of single heads amplify.
TEST(HybridGpu, LogitsEqualTransformers) {
  for (const std::string name : {"qwen3_next-128", "nemotron_h-128"})
    for (const bool exact : {false, true}) {
      OnGpu gpu(name, exact);
      TestRunner runner(*gpu.model, gpu.cx, 1, 160, DType::kBF16, 16, cuda::copy);
      const double off = rms_off(runner.run(tokens_of(name), 128), expected<float>(name, "logits"));
      EXPECT_LT(off, 0.03) << name << " " << exact;
      std::printf("%s: rms off %.4f\n", name.c_str(), off);
    }
}

// The layer reads rows that are as far off, and adds what the third of its like does: 4%.
TEST(HybridGpu, MtpLogitsEqualAnIndependentForwardPass) {
  const std::string name = "qwen3_next-128";
  OnGpu gpu(name, /*exact=*/false);
  const LoadOptions load{.memory = {.allocate = cuda::device_buffer,
                                    .allocate_staging = cuda::pinned_buffer,
                                    .copy = cuda::copy}};
  const auto head = load_draft_head(gpu.cx, {kGoldens / "../mtp" / name}, *gpu.model, load);
  gpu.model->keep_rows(head->target_layers());
  gpu.model->reserve(gpu.cx, {160, 160});
  head->model().reserve(gpu.cx, {160, 160});
  const std::vector<int32_t> tokens = tokens_of(name);
  TestRunner target(*gpu.model, gpu.cx, 1, 160, DType::kBF16, 16, cuda::copy);
  target.run(tokens, 160);
  std::vector<int32_t> rows(tokens.size());
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<int32_t>(i);
  const Buffer there = gpu.cx.allocate(static_cast<int64_t>(rows.size() * sizeof(int32_t)));
  cuda::copy(there.data(), rows.data(), there.size_bytes());
  const std::vector<Tensor> kept = gpu.model->kept_rows();
  head->set_input({kept, static_cast<const int32_t*>(there.data())});
  TestRunner runner(head->model(), gpu.cx, 1, 160, DType::kBF16, 16, cuda::copy);
  const Logits got = runner.step({{0, {tokens.begin() + 1, tokens.end()}}});
  const double off =
      rms_off(got, expected<float>(std::filesystem::path("../mtp") / name, "logits"));
  EXPECT_LT(off, 0.04);
  std::printf("rms off %.4f\n", off);
  // A draft goes on from the last row of that step.
  const std::vector<int32_t> last = {static_cast<int32_t>(tokens.size()) - 2};
  cuda::copy(there.data(), last.data(), sizeof(int32_t));
  head->set_input({{}, static_cast<const int32_t*>(there.data())});
  const auto ids = expected<int64_t>(std::filesystem::path("../mtp") / name, "draft_ids");
  const auto want = expected<float>(std::filesystem::path("../mtp") / name, "draft_logits");
  const Logits draft = runner.step({{0, {static_cast<int32_t>(ids.at(0))}}});
  const size_t vocab = draft.at(0).size();
  EXPECT_LT(rms_off(draft, {want.begin() + vocab, want.begin() + 2 * vocab}), 0.06);
}

TEST(HybridGpu, TheSameBitsHoweverATextIsCut) {
  for (const std::string name :
       {"qwen3_next", "qwen3_next-128", "qwen3_next-modelopt", "nemotron_h", "nemotron_h-groups",
        "nemotron_h-modelopt", "nemotron_h-128"}) {
    OnGpu gpu(name, /*exact=*/true);
    TestRunner runner(*gpu.model, gpu.cx, 1, 160, DType::kBF16, 16, cuda::copy);
    const std::vector<int32_t> tokens = tokens_of(name);
    const Logits whole = runner.run(tokens, 128);
    for (const int32_t chunk : {1, 7, 64})
      ASSERT_EQ(runner.run(tokens, chunk), whole) << name << " " << chunk;
  }
}

// Sequences side by side, of different lengths, as each alone.
TEST(HybridGpu, TheSameBitsAloneAndInABatch) {
  OnGpu gpu("qwen3_next", /*exact=*/true);
  const std::vector<int32_t> tokens = tokens_of("qwen3_next");
  TestRunner runner(*gpu.model, gpu.cx, 2, 160, DType::kBF16, 16, cuda::copy);
  const Logits whole = runner.run(tokens, 64);
  runner.clear(0);
  Logits first, second;
  for (int32_t begin = 0; begin < 90; begin += 30) {
    const std::vector<int32_t> piece(tokens.begin() + begin, tokens.begin() + begin + 30);
    const std::vector<int32_t> one(tokens.begin() + begin / 30, tokens.begin() + begin / 30 + 1);
    Logits rows = runner.step({{0, piece}, {1, one}});
    first.insert(first.end(), rows.begin(), rows.begin() + 30);
    second.push_back(rows.back());
  }
  EXPECT_TRUE(std::equal(first.begin(), first.end(), whole.begin()));
  EXPECT_TRUE(std::equal(second.begin(), second.end(), whole.begin()));
}

}  // namespace
}  // namespace nibble
