// Whole models of random odd shapes on a GPU against the twins on the CPU: whatever kernels the ops
// of a layer are given, each hands its neighbour what that one reads. Counts the pairs of rows that
// neighbours can be given by force, and fails where one was not run.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cuda/device.h"
#include "cuda/memory.h"
#include "cuda/stream.h"
#include "io/io_test.h"
#include "models/test_any_shape.h"
#include "ops/refuse.h"

namespace nibble {
namespace {

using namespace any_shape;  // NOLINT

// moe_up leaves E4M3 for moe_down: both or neither.
bool can_meet(Op first, const std::string& a, const std::string& b) {
  return first != Op::kMoeUp || ops::is_experts_fp8(a) == ops::is_experts_fp8(b);
}

// Rows that serve steps of every size, where they are forced.
Rows rows_of(const ops::Sites& sites, const Case& c) {
  return any_shape::rows_of(sites, [&](Op op, const auto& row, auto desc) {
    ops::KernelOptions options = c.kernels;
    options.forced = {{ops::op_name(op), row.name}};
    return std::ranges::all_of(ops::kTokenBuckets, [&](int64_t tokens) {
      desc.tokens = tokens;
      return row.refuse(desc, options) == nullptr;
    });
  });
}

Case base_case(const cuda::Caps& gpu) {
  Case c;
  c.kernels.gpu = gpu;
  c.stored = DType::kBF16;
  c.kernels.activations = ActFormat::kBF16;
  c.kernels.any_size = true;
  return c;
}

const std::vector<Format> kDense = {Format::kBF16, Format::kMxfp8, Format::kMxfp4, Format::kNvfp4};
const std::vector<Format> kOnDisk = {Format::kF16,    Format::kF32,      Format::kNvfp4,
                                     Format::kFp8Row, Format::kFp8Block, Format::kMxfp8,
                                     Format::kMxfp4,  Format::kInt4G32};

// A model's formats: what is encoded on load, or lies so on disk. A dense layer's out_proj and down
// are given one row by force, which both take in one format.
struct Formats {
  DenseFormats dense;
  Format on_disk = Format::kBF16;
};
std::vector<Formats> all_formats(Family family) {
  std::vector<Formats> all;
  for (const Format a : kDense)
    for (const Format b : kDense) {
      if (family != Family::kGptOss) {
        all.push_back({{.qkv = b, .out = a, .unembed = b, .mlp = a}});
        continue;
      }
      for (const Format unembed : kDense) all.push_back({{a, b, unembed}});
    }
  if (family != Family::kGptOss)
    for (const Format format : kOnDisk) all.push_back({{}, format});
  return all;
}

// Every pair that some case can be given: all formats, and sizes that fit every row, or only the
// general ones.
Pairs possible_pairs(const cuda::Caps& gpu, const std::vector<Family>& families,
                     const std::filesystem::path& directory) {
  Pairs pairs;
  Case c = base_case(gpu);
  for (const Family family : families) {
    c.shape = {.family = family, .layers = is_hybrid(family) ? 3 : 2};
    for (const Formats& formats : all_formats(family))
      for (const int64_t fits : {0, 64, 128}) {  // of so many dims a head
        if (fits == 128 && family == Family::kGptOss) continue;
        c.dense = formats.dense, c.shape.format = formats.on_disk;
        c.shape.hidden = c.shape.width = fits > 0 ? 128 : 64;
        c.shape.head_dim = fits > 0 ? fits : 16;
        c.shape.key_dim = c.shape.value_dim = fits > 0 ? fits : 16;
        for (const int64_t shared_width : {c.shape.width, int64_t{64}}) {
          if (!has_shared_expert(family) && shared_width != c.shape.width) continue;
          c.shape.shared_width = shared_width;
          const ops::Sites sites = sites_of(c, directory);
          const Neighbours neighbours = neighbours_of(sites);
          for (const ActFormat activations : {ActFormat::kBF16, ActFormat::kFp8})
            for (const bool exact : {false, true}) {
              c.kernels.activations = activations, c.kernels.exact = exact;
              for_each_forced(rows_of(sites, c), neighbours, can_meet,
                              [&](const std::string& pair, const Choice&) { pairs.insert(pair); });
            }
        }
      }
  }
  return pairs;
}

Case random_case(std::mt19937& random, const cuda::Caps& gpu, Family family) {
  Case c = base_case(gpu);
  RandomShape& s = c.shape;
  s.family = family;
  const bool fits = random() % 2 == 0;  // the rows that ask for round sizes
  const auto of = [&](std::vector<int64_t> round, std::vector<int64_t> odd) {
    return any_of(random, fits ? round : odd);
  };
  s.hidden = of({64, 128, 320}, {32, 96, 160, 224, 352});
  s.width = of({64, 128, 192}, {32, 96, 128, 224});
  s.head_dim = of({64, 64, 128, 256}, {2, 16, 18, 34, 64, 80, 128, 256, 512});
  s.kv_heads = 1 + static_cast<int64_t>(random() % 3);
  s.q_heads = s.kv_heads * any_of<int64_t>(random, {1, 2, 3, 5, fits ? 8 : 20, fits ? 12 : 16});
  // Few dims may all be near zero: then a head's norm makes its error as large as the head.
  if (family != Family::kGptOss && family != Family::kLlama)
    s.head_dim = std::max<int64_t>(s.head_dim, 16);
  if (s.head_dim > 128) s.kv_heads = 1, s.q_heads = any_of<int64_t>(random, {3, 8, 9});
  s.experts = of({1, 3, 8, 40}, {1, 2, 5, 40, 300, 1024});
  if (family != Family::kGptOss) s.experts = std::min<int64_t>(s.experts, 40);  // one by one
  if (s.experts > 100) s.hidden = 32, s.width = 32;  // weights of megabytes, not more
  s.top_k = 1 + static_cast<int64_t>(random() % std::min<int64_t>(s.experts, fits ? 8 : 32));
  s.vocab = of({64, 208}, {1, 61, 199});
  s.window = any_of<int64_t>(random, {1, 5, 33});
  s.seed = random();
  const Formats formats = any_of(random, all_formats(family));
  c.dense = formats.dense, s.format = formats.on_disk;
  if (is_hybrid(family)) {
    s.layers = 3;
    if (random() % 2 == 0) s.shared_width = of({64, 128, 192}, {32, 96, 224});
    s.key_heads = 1 + static_cast<int64_t>(random() % 3);
    s.value_heads = s.key_heads * (1 + static_cast<int64_t>(random() % 3));
    s.key_dim = of({64, 128, 128}, {8, 20, 64, 256}), s.value_dim = of({64, 128, 128}, {32, 64});
    s.taps = fits ? 4 : any_of<int64_t>(random, {2, 4, 8});
    if (s.head_dim % 4 != 0) s.head_dim = 32;
  }
  if (s.q_heads * s.head_dim % 32 != 0) {
    if (family == Family::kGptOss)
      c.dense.out = Format::kBF16;
    else
      s.head_dim = 32;
  }
  s.over_all = random() % 2 == 0;
  c.kv = any_of<DType>(random, {DType::kBF16, DType::kF8E4M3});
  c.page_size = any_of<int32_t>(random, {16, 64});
  c.kernels.activations = random() % 3 == 0 ? ActFormat::kFp8 : ActFormat::kBF16;
  c.kernels.exact = random() % 4 == 0;
  return c;
}

// Forces rows; one case in four takes what the tables give, by size. Returns what it forces of
// `missing`.
Pairs force_rows(std::mt19937& random, const Pairs& missing, const ops::Sites& sites, Case& c) {
  if (random() % 4 == 0) {
    c.kernels.any_size = false;
    c.shape.is_tied = c.shape.family != Family::kGptOss && random() % 2 == 0;
    return {};
  }
  const Neighbours neighbours = neighbours_of(sites);
  const Choice chosen = choose_rows(random, missing, rows_of(sites, c), neighbours, can_meet);
  for (const auto& [op, row] : chosen) c.kernels.forced.emplace_back(ops::op_name(op), row);
  Pairs forced = pairs_of(chosen, neighbours);
  std::erase_if(forced, [&](const std::string& pair) { return !missing.contains(pair); });
  return forced;
}

// Both store h, q, att, u, keys and values in the same formats: what differs is which way a value
// between two bf16 (or E4M3) goes. E4M3 activations, which the twins have not, cost 7.5% of
// gpt-oss's logits (docs/quality.md). States add up over a text, from inputs of five products.
double tolerance(const Case& c) {
  return (c.kernels.activations == ActFormat::kFp8 ? 0.3 : 0.03) *
         (is_hybrid(c.shape.family) ? 3 : 1);
}

// A model on the GPU.
class GpuRun {
 public:
  GpuRun(const Case& c, const std::filesystem::path& directory, const Texts& texts)
      : run_(c, context(), directory, texts,
             {.allocate = cuda::device_buffer,
              .allocate_staging = cuda::pinned_buffer,
              .copy = cuda::copy}) {}
  std::vector<std::vector<float>> all(const Steps& steps, Buffers* seen) {
    return run_.all(steps, seen);
  }

 private:
  ops::Ctx context() const {
    ops::Ctx cx;
    cx.stream = stream_.handle();
    return cx;
  }
  cuda::Stream stream_;
  Run run_;
};

void check(std::mt19937& random, const Case& c, const std::filesystem::path& directory, Seen& seen,
           Pairs& missing) {
  write_random_checkpoint(c.shape, directory);
  const Texts texts = random_texts(random, {random() % 3 == 0 ? 90 : 24, 20, 8}, c.shape.vocab);
  Case twins = c;
  twins.kernels = {};
  run_twins(twins.kernels);
  Buffers want, tapped;
  Run(twins, {}, directory, texts).all(one_step(texts), &want);
  GpuRun run(c, directory, texts);
  const Steps steps = random_steps(random, texts);
  const auto logits = run.all(steps, &tapped);
  // Of n errors of one size, theirs may be 3 of its own deviations of 1 / sqrt(2 n) larger.
  const auto bound = [&](int64_t n) {
    return tolerance(c) * (1 + 3 / std::sqrt(2.0 * static_cast<double>(n)));
  };
  compare(c, texts, want, tapped, bound, seen);
  // Without a tap kernels overlap, and may leave the choice of experts to one another.
  EXPECT_EQ(run.all(steps, nullptr), logits);
  if (c.kernels.exact) {
    EXPECT_EQ(run.all(one_step(texts), nullptr), logits);
  }

  ops::Ctx cx;
  cx.kernels = c.kernels;
  const ops::Sites sites = planned_sites(cx, directory.string(), c.dense);
  for (const std::vector<int64_t>& step : steps) {
    int64_t tokens = 0;
    for (const int64_t n : step) tokens += n;
    for (const std::string& pair : pairs_of(sites, tokens)) missing.erase(pair);
  }
}

// A share of the cases: it looks for its share of the pairs, so that shares can run side by side.
constexpr int64_t kShares = 8;
class AnyShapeGpu : public testing::TestWithParam<int64_t> {};

void check_share(int64_t share, const std::vector<Family>& families, int64_t all_cases) {
  const bool is_small = std::getenv("NIBBLE_SMALL_TESTS") != nullptr;
  const int64_t cases = is_small ? 1 : number_of("NIBBLE_ANY_SHAPES", all_cases) / kShares,
                most = 3 * cases;
  const cuda::Caps gpu = cuda::open_device();
  Pairs missing;
  const test::TempDir directory;
  for (const std::string& pair : possible_pairs(gpu, families, directory.path()))
    if (static_cast<int64_t>(std::hash<std::string>()(pair) % kShares) == share)
      missing.insert(pair);
  const size_t possible = missing.size();
  Seen seen;
  int64_t i = 0;
  for (; i < cases || (i < most && !missing.empty() && !is_small); ++i) {
    const int64_t seed = number_of("NIBBLE_SEED", 1) * 100000 + share * 1000 + i;
    std::mt19937 random(static_cast<uint32_t>(seed));
    Case c;
    for (int attempt = 0; attempt < 1000; ++attempt) {  // most of what is drawn has been seen
      c = random_case(random, gpu, any_of(random, families));
      const Pairs forced = force_rows(random, missing, sites_of(c, directory.path()), c);
      if (c.kernels.any_size ? !forced.empty() : attempt == 0) break;
    }
    SCOPED_TRACE("case " + std::to_string(i) + ": " + describe(c));
    check(random, c, directory.path(), seen, missing);
    if (testing::Test::HasFailure()) return;
  }
  print(seen);
  std::printf("%lld cases, %zu of %zu pairs\n", static_cast<long long>(i),
              possible - missing.size(), possible);
  EXPECT_LT(static_cast<double>(seen.parted), 0.2 * static_cast<double>(seen.rows));
  if (is_small) return;
  for (const std::string& pair : missing) ADD_FAILURE() << pair << " was not reached";
}

TEST_P(AnyShapeGpu, EveryPairOfRowsEqualsTheTwins) {
  check_share(GetParam(), {Family::kGptOss}, 320);
}
TEST_P(AnyShapeGpu, EveryPairOfRowsOfOtherFamiliesEqualsTheTwins) {
  check_share(GetParam(), {Family::kLlama, Family::kQwen3, Family::kQwen3Moe}, 320);
}
TEST_P(AnyShapeGpu, EveryPairOfRowsOfFamiliesWithRecurrentLayersEqualsTheTwins) {
  check_share(GetParam(),
              {Family::kQwen3Next, Family::kQwen35, Family::kQwen35Moe, Family::kNemotronH}, 320);
}
INSTANTIATE_TEST_SUITE_P(Share, AnyShapeGpu, testing::Range<int64_t>(0, kShares));

// Steps of few tokens, each the next of a text of its own: the ops `leaving` then leave their ends
// to those behind them, which no op does under a tap.
void check_left(const Case& c, const std::filesystem::path& directory,
                const std::vector<Op>& leaving) {
  ops::Ctx cx;
  cx.kernels = c.kernels;
  const ops::Sites sites = planned_sites(cx, directory.string(), c.dense);
  for (const Op op : leaving)
    EXPECT_TRUE(std::ranges::any_of(sites, [&](const ops::Site& site) {
      return site.key.op == op && site.readers_take > 0;
    })) << ops::op_name(op);

  const int64_t length = std::getenv("NIBBLE_SMALL_TESTS") != nullptr ? 4 : 40;
  std::mt19937 random(5);
  Texts texts;
  for (std::vector<int32_t>& text : texts.of = std::vector(8, std::vector<int32_t>(length)))
    for (int32_t& token : text) token = static_cast<int32_t>(random() % c.shape.vocab);
  Steps steps;
  for (int64_t i = 0; i < length; ++i) {
    constexpr int64_t kTokens[] = {8, 1, 3, 2};
    steps.emplace_back(kTokens[i % 4], 1).resize(8);
  }
  GpuRun run(c, directory, texts);
  const auto logits = run.all(steps, nullptr);
  Buffers tapped;
  EXPECT_EQ(run.all(steps, &tapped), logits);
  Case apart = c;
  apart.kernels.force("attention=cuda_bf16_spans");  // takes no heads
  EXPECT_EQ(GpuRun(apart, directory, texts).all(steps, nullptr), logits);
}

TEST(LeftUndoneGpu, OfShippedModels) {
  const std::filesystem::path models = std::filesystem::path(NIBBLE_SOURCE_DIR) / "models";
  Case c = base_case(cuda::open_device());
  c.kernels.any_size = false;
  c.shape.vocab = 3072;
  for (const char* model : {"nibble-tiny-gpt-oss", "nibble-tiny-qwen3-next"}) {
    SCOPED_TRACE(model);
    check_left(c, models / model, {Op::kNormRoute});
  }
}

TEST(LeftUndoneGpu, OfModelsWhoseHeadsAttentionTakes) {
  const test::TempDir directory;
  Case c = base_case(cuda::open_device());
  c.kernels.any_size = false;
  for (const Family family :
       {Family::kLlama, Family::kQwen3, Family::kQwen3Moe, Family::kNemotronH})
    for (const Format format : {Format::kBF16, Format::kNvfp4}) {
      c.shape = {.family = family,
                 .hidden = 128,
                 .width = 128,
                 .q_heads = 8,
                 .head_dim = 128,
                 .experts = 32,
                 .format = format};
      c.kv = format == Format::kBF16 ? DType::kF8E4M3 : DType::kBF16;
      SCOPED_TRACE(describe(c));
      write_random_checkpoint(c.shape, directory.path());
      std::vector<Op> leaving;
      if (c.kernels.gpu.sm == 90) leaving.push_back(Op::kNormQkv);
      if (family >= Family::kQwen3Moe && format == Format::kNvfp4)
        leaving.push_back(Op::kNormRoute);
      check_left(c, directory.path(), leaving);
    }
}

}  // namespace
}  // namespace nibble
