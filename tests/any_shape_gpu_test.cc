// Whole models of random odd shapes on a GPU against the twins on the CPU: whatever kernels the ops
// of a layer are given, each hands its neighbour what that one reads. Counts the pairs of rows that
// neighbours can be given by force, and fails where one was not run.
#include <gtest/gtest.h>

#include <algorithm>
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

// Rows that serve steps of every size.
Rows rows_of(const Case& c) {
  return any_shape::rows_of(c, [&](Op op, const auto& table, const auto& row, const auto& desc) {
    ops::KernelOptions options = c.kernels;
    options.forced = {{ops::op_name(op), row.name}};
    try {
      ops::SitePlan({op, 0}, table, desc, options);
      return true;
    } catch (const Error&) {
      return false;
    }
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

// Every pair that some case can be given: all formats, and sizes that fit every row, or only the
// general ones.
Pairs possible_pairs(const cuda::Caps& gpu) {
  Pairs pairs;
  for (const ActFormat activations : {ActFormat::kBF16, ActFormat::kFp8})
    for (const bool exact : {false, true})
      for (const bool fits : {false, true})
        for (const Format qkv : kDense)
          for (const Format out : kDense)
            for (const Format unembed : kDense) {
              Case c = base_case(gpu);
              c.kernels.activations = activations, c.kernels.exact = exact;
              c.dense = {qkv, out, unembed};
              if (fits) c.shape.hidden = c.shape.width = 128, c.shape.head_dim = 64;
              const Rows rows = rows_of(c);
              for (const auto& [a, b] : kNeighbours)
                for (const std::string& first : rows.at(a))
                  for (const std::string& second : rows.at(b))
                    if (can_meet(a, first, second)) pairs.insert(pair_text(a, first, b, second));
            }
  return pairs;
}

Case random_case(std::mt19937& random, const cuda::Caps& gpu) {
  Case c = base_case(gpu);
  RandomShape& s = c.shape;
  const bool fits = random() % 2 == 0;  // the rows that ask for round sizes
  const auto of = [&](std::vector<int64_t> round, std::vector<int64_t> odd) {
    return any_of(random, fits ? round : odd);
  };
  s.hidden = of({64, 128, 320}, {32, 96, 160, 224, 352});
  s.width = of({64, 128, 192}, {32, 96, 128, 224});
  s.head_dim = of({64, 64, 128, 256}, {2, 16, 18, 34, 64, 80, 128, 256, 512});
  s.kv_heads = 1 + static_cast<int64_t>(random() % 3);
  s.q_heads = s.kv_heads * any_of<int64_t>(random, {1, 2, 3, 5, fits ? 8 : 20, fits ? 12 : 16});
  if (s.head_dim > 128) s.kv_heads = 1, s.q_heads = any_of<int64_t>(random, {3, 8, 9});
  s.experts = of({1, 3, 8, 40}, {1, 2, 5, 40, 300, 1024});
  if (s.experts > 100) s.hidden = 32, s.width = 32;  // weights of megabytes, not more
  s.top_k = 1 + static_cast<int64_t>(random() % std::min<int64_t>(s.experts, fits ? 8 : 32));
  s.vocab = of({64, 208}, {1, 61, 199});
  s.window = any_of<int64_t>(random, {1, 5, 33});
  s.seed = random();
  for (Format* format : {&c.dense.qkv, &c.dense.out, &c.dense.unembed})
    *format = any_of(random, kDense);
  if (s.q_heads * s.head_dim % 32 != 0) c.dense.out = Format::kBF16;
  c.kv = any_of<DType>(random, {DType::kBF16, DType::kF8E4M3});
  c.page_size = any_of<int32_t>(random, {16, 64});
  c.kernels.activations = random() % 3 == 0 ? ActFormat::kFp8 : ActFormat::kBF16;
  c.kernels.exact = random() % 4 == 0;
  return c;
}

// Forces a row of each op: of those that its neighbour before leaves, one whose pair is not in
// `seen` yet. One case in four takes what the tables give, by size.
void force_rows(std::mt19937& random, const Pairs& seen, Case& c) {
  if (random() % 4 == 0) {
    c.kernels.any_size = false;
    return;
  }
  const Rows rows = rows_of(c);
  Choice chosen;
  for (const auto& [before, op] : kNeighbours) {
    if (chosen.contains(op)) continue;
    if (!chosen.contains(before)) chosen[before] = any_of(random, rows.at(before));
    std::vector<std::string> all, fresh;
    for (const std::string& row : rows.at(op)) {
      if (!can_meet(before, chosen[before], row)) continue;
      all.push_back(row);
      if (!seen.contains(pair_text(before, chosen[before], op, row))) fresh.push_back(row);
    }
    if (op == Op::kMoeUp && random() % 2 == 0)  // leave some room for fresh pairs with moe_down
      fresh.clear();
    chosen[op] = any_of(random, fresh.empty() ? all : fresh);
  }
  for (const auto& [op, row] : chosen) c.kernels.forced.emplace_back(ops::op_name(op), row);
}

// Whether all pairs that the case forces are in `seen`.
bool forces_only(const Case& c, const Pairs& seen) {
  const auto row = [&](Op op) {
    for (const auto& [name, kernel] : c.kernels.forced)
      if (name == ops::op_name(op)) return kernel;
    return std::string();
  };
  return std::ranges::all_of(kNeighbours, [&](const auto& pair) {
    return seen.contains(pair_text(pair.first, row(pair.first), pair.second, row(pair.second)));
  });
}

// Pages and steps on the GPU, as TestRunner has them on the CPU.
class GpuRunner {
 public:
  GpuRunner(Model& model, ops::Ctx& cx, int32_t slots, int32_t max_len, DType kv, int32_t page_size)
      : model_(model), cx_(cx), lengths_(slots, 0) {
    const ModelInfo& info = model.info();
    const int32_t per_slot = (max_len + page_size - 1) / page_size, pages = slots * per_slot;
    std::vector<int32_t> table;
    for (int32_t i = 0; i < pages; ++i) table.push_back(i);
    std::shuffle(table.begin(), table.end(), std::mt19937(7));
    const auto* on_gpu = put(table);
    layers_.resize(info.num_layers);
    for (const LayerGroup& group : info.groups) {
      for (const int32_t l : group.layers) {
        Tensor side[2];
        for (Tensor& t : side) {
          t = make_tensor(nullptr, kv, {pages, group.num_kv_heads, page_size, group.head_dim});
          pages_.push_back(cuda::device_buffer(t.size_bytes()));
          t.data = pages_.back().data();
          cuda::fill(t.data, 0xff, t.size_bytes());  // NaN until written
        }
        layers_[l] = {side[0], side[1], on_gpu, per_slot, page_size};
      }
    }
  }
  // Logits of all tokens, [T][V].
  std::vector<std::vector<float>> step(const std::vector<TestChunk>& chunks) {
    std::vector<int32_t> tokens, positions, out_rows;
    std::vector<Span> spans;
    int32_t longest = 0;
    for (const TestChunk& chunk : chunks) {
      const auto len = static_cast<int32_t>(chunk.tokens.size());
      spans.push_back({static_cast<int32_t>(tokens.size()), len, lengths_[chunk.slot], chunk.slot});
      for (const int32_t token : chunk.tokens) {
        out_rows.push_back(static_cast<int32_t>(tokens.size()));
        tokens.push_back(token);
        positions.push_back(lengths_[chunk.slot]++);
      }
      longest = std::max(longest, lengths_[chunk.slot]);
    }
    const Step step{.num_tokens = static_cast<int32_t>(tokens.size()),
                    .num_spans = static_cast<int32_t>(spans.size()),
                    .num_out = static_cast<int32_t>(out_rows.size()),
                    .max_context = longest,
                    .tokens = put(tokens),
                    .positions = put(positions),
                    .spans = put(spans),
                    .out_rows = put(out_rows)};
    const Tensor logits = model_.forward(cx_, step, SeqState{layers_.data()});
    Buffer memory;
    const Tensor host = cx_.on_host(logits, memory);
    std::vector<std::vector<float>> rows;
    for (int64_t r = 0; r < host.dim(0); ++r)
      rows.emplace_back(host.as<float>() + r * host.dim(1),
                        host.as<float>() + (r + 1) * host.dim(1));
    return rows;
  }

 private:
  template <typename T>
  const T* put(const std::vector<T>& from) {
    const auto bytes = static_cast<int64_t>(from.size() * sizeof(T));
    pages_.push_back(cuda::device_buffer(bytes));
    cuda::copy(pages_.back().data(), from.data(), bytes);
    return static_cast<const T*>(pages_.back().data());
  }

  Model& model_;
  ops::Ctx& cx_;
  std::vector<int32_t> lengths_;
  std::vector<Buffer> pages_;
  std::vector<KvLayer> layers_;
};

// Both store h, q, att, u, keys and values in the same formats: what differs is which way a value
// between two bf16 (or E4M3) goes. E4M3 activations, which the twins have not, cost 7.5% of
// gpt-oss's logits (docs/quality.md).
double tolerance(const Case& c) { return c.kernels.activations == ActFormat::kFp8 ? 0.3 : 0.03; }

// A model on the GPU.
class GpuRun {
 public:
  GpuRun(const Case& c, const std::filesystem::path& directory, const Texts& texts)
      : run_(c, context(), directory, texts,
             {.allocate = cuda::device_buffer,
              .allocate_staging = cuda::pinned_buffer,
              .copy = cuda::copy}) {}
  std::vector<std::vector<float>> all(const Steps& steps, Buffers* seen) {
    return run_.all<GpuRunner>(steps, seen);
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
           Pairs& reached) {
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
  const auto plan = plan_kernels(cx, directory.string(), c.dense);
  for (const std::vector<int64_t>& step : steps) {
    int64_t tokens = 0;
    for (const int64_t n : step) tokens += n;
    reached.merge(pairs_of(plan, tokens));
  }
}

TEST(AnyShapeGpu, EveryPairOfRowsEqualsTheTwins) {
  const bool is_small = std::getenv("NIBBLE_SMALL_TESTS") != nullptr;
  const int64_t cases = number_of("NIBBLE_ANY_SHAPES", is_small ? 3 : 400);
  const cuda::Caps gpu = cuda::open_device();
  const Pairs possible = possible_pairs(gpu);
  Pairs reached;
  Seen seen;
  const test::TempDir directory;
  for (int64_t i = 0; i < cases; ++i) {
    std::mt19937 random(static_cast<uint32_t>(number_of("NIBBLE_SEED", 1) * 100000 + i));
    Case c;
    for (int attempt = 0; attempt < 1000; ++attempt) {  // most of what is drawn has been seen
      c = random_case(random, gpu);
      force_rows(random, reached, c);
      if (c.kernels.any_size ? !forces_only(c, reached) : attempt == 0) break;
    }
    SCOPED_TRACE("case " + std::to_string(i) + ": " + describe(c));
    check(random, c, directory.path(), seen, reached);
    if (HasFailure()) return;
  }
  print(seen);
  std::printf("%zu of %zu pairs\n", reached.size(), possible.size());
  EXPECT_LT(static_cast<double>(seen.parted), 0.2 * static_cast<double>(seen.rows));
  if (cases < 400) return;
  for (const std::string& pair : possible) EXPECT_TRUE(reached.contains(pair)) << pair;
}

}  // namespace
}  // namespace nibble
