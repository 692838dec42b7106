// Whole models of random odd shapes on a GPU against the twins on the CPU: whatever kernels the ops
// of a layer are given, each hands its neighbour what that one reads. Counts the pairs of rows that
// neighbours can be given by force, and fails where one was not run.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "cuda/device.h"
#include "cuda/memory.h"
#include "cuda/stream.h"
#include "io/io_test.h"
#include "models/random_checkpoint.h"
#include "models/test_runner.h"
#include "ops/attention/attention.h"
#include "ops/embed/embed.h"
#include "ops/moe_down/moe_down.h"
#include "ops/moe_up/moe_up.h"
#include "ops/norm_qkv/norm_qkv.h"
#include "ops/norm_route/norm_route.h"
#include "ops/norm_unembed/norm_unembed.h"
#include "ops/out_proj/out_proj.h"
#include "ops/refuse.h"

namespace nibble {
namespace {

using ops::ActFormat;
using ops::Op;

struct Case {
  RandomShape shape;
  DenseFormats dense;
  DType kv = DType::kBF16;
  int32_t page_size = 16;
  ops::KernelOptions kernels;
};

template <typename T>
const T& any_of(std::mt19937& random, const std::vector<T>& values) {
  return values[random() % values.size()];
}

using Choice = std::map<Op, std::string>;             // a row for each op
using Rows = std::map<Op, std::vector<std::string>>;  // that can be forced
using Pairs = std::set<std::string>;                  // "moe_up=cuda_any moe_down=sm90_w4a16_gemm"

constexpr std::pair<Op, Op> kNeighbours[] = {
    {Op::kEmbed, Op::kNormQkv},     {Op::kNormQkv, Op::kAttention},  {Op::kAttention, Op::kOutProj},
    {Op::kOutProj, Op::kNormRoute}, {Op::kNormRoute, Op::kMoeUp},    {Op::kMoeUp, Op::kMoeDown},
    {Op::kMoeDown, Op::kNormQkv},   {Op::kMoeDown, Op::kNormUnembed}};

std::string pair_text(Op first, const std::string& a, Op second, const std::string& b) {
  return std::string(ops::op_name(first)) + "=" + a + " " + ops::op_name(second) + "=" + b;
}

// moe_up leaves E4M3 for moe_down: both or neither.
bool can_meet(Op first, const std::string& a, const std::string& b) {
  return first != Op::kMoeUp || ops::is_experts_fp8(a) == ops::is_experts_fp8(b);
}

// Rows that serve steps of every size.
template <typename Desc, typename Fn>
void add_rows(Rows& rows, Op op, std::span<const ops::Kernel<Desc, Fn>> table, const Desc& desc,
              ops::KernelOptions options) {
  options.forced.assign(1, {});
  for (const auto& row : table) {
    if (row.run == nullptr) continue;
    options.forced[0] = {ops::op_name(op), row.name};
    try {
      ops::SitePlan({op, 0}, table, desc, options);
      rows[op].push_back(row.name);
    } catch (const Error&) {
    }
  }
}

Rows rows_of(const Case& c) {
  const RandomShape& s = c.shape;
  Rows rows;
  add_rows(rows, Op::kEmbed, ops::embed_kernels(), {s.vocab, s.hidden}, c.kernels);
  add_rows(rows, Op::kNormQkv, ops::norm_qkv_kernels(),
           {s.hidden, s.q_heads, s.kv_heads, s.head_dim, c.dense.qkv}, c.kernels);
  add_rows(rows, Op::kAttention, ops::attention_kernels(), {s.q_heads, s.kv_heads, s.head_dim},
           c.kernels);
  add_rows(rows, Op::kOutProj, ops::out_proj_kernels(),
           {s.hidden, s.q_heads * s.head_dim, c.dense.out}, c.kernels);
  add_rows(rows, Op::kNormRoute, ops::norm_route_kernels(), {s.hidden, s.experts, s.top_k},
           c.kernels);
  add_rows(rows, Op::kMoeUp, ops::moe_up_kernels(), {s.hidden, s.width, s.experts, s.top_k},
           c.kernels);
  add_rows(rows, Op::kMoeDown, ops::moe_down_kernels(), {s.hidden, s.width, s.experts, s.top_k},
           c.kernels);
  add_rows(rows, Op::kNormUnembed, ops::norm_unembed_kernels(),
           {s.hidden, s.vocab, c.dense.unembed}, c.kernels);
  return rows;
}

Case base_case(const cuda::Caps& gpu) {
  Case c;
  c.kernels.gpu = gpu;
  c.kernels.activations = ActFormat::kBF16;
  c.kernels.any_size = true;
  return c;
}

const std::vector<Format> kDense = {Format::kBF16, Format::kMxfp8, Format::kMxfp4};

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
  s.head_dim = of({64}, {2, 16, 18, 34, 64, 80, 128, 256, 512});
  s.kv_heads = 1 + static_cast<int64_t>(random() % 3);
  s.q_heads = s.kv_heads * any_of<int64_t>(random, {1, 2, 3, fits ? 8 : 20});
  if (s.head_dim > 128) s.kv_heads = 1, s.q_heads = 3;
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

// Of the rows that steps of `tokens` tokens are given in a layer and around it.
Pairs pairs_of(const std::vector<ops::PlanEntry>& plan, int64_t tokens) {
  Choice rows;
  for (const ops::PlanEntry& entry : plan)
    if (entry.min_tokens <= tokens && tokens <= entry.max_tokens)
      rows[entry.site.op] = entry.kernel;
  Pairs pairs;
  for (const auto& [a, b] : kNeighbours) pairs.insert(pair_text(a, rows.at(a), b, rows.at(b)));
  return pairs;
}

std::string describe(const Case& c) {
  const RandomShape& s = c.shape;
  std::string all = std::string(ops::act_format_name(c.kernels.activations)) + ", KV " +
                    dtype_name(c.kv) + ", dense " + std::string(format_name(c.dense.qkv)) + " " +
                    std::string(format_name(c.dense.out)) + " " +
                    std::string(format_name(c.dense.unembed)) + (c.kernels.exact ? ", exact" : "");
  const std::pair<const char*, int64_t> sizes[] = {
      {"H", s.hidden},      {"Q", s.q_heads},     {"G", s.kv_heads}, {"D", s.head_dim},
      {"E", s.experts},     {"K", s.top_k},       {"F", s.width},    {"V", s.vocab},
      {"window", s.window}, {"page", c.page_size}};
  for (const auto& [name, size] : sizes)
    all += std::string(" ") + name + " " + std::to_string(size);
  for (const auto& [op, row] : c.kernels.forced) all += " " + op + "=" + row;
  return all;
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
    for (int l = 0; l < info.num_layers; ++l) {
      Tensor side[2];
      for (Tensor& t : side) {
        t = make_tensor(nullptr, kv, {pages, info.num_kv_heads, page_size, info.head_dim});
        pages_.push_back(cuda::device_buffer(t.size_bytes()));
        t.data = pages_.back().data();
        cuda::fill(t.data, 0xff, t.size_bytes());  // NaN until written
      }
      layers_.push_back({side[0], side[1], on_gpu, per_slot, page_size});
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

// What the taps of a run showed: a row of each buffer for each token, by slot and position.
using Buffers = std::map<std::pair<int, std::string>, std::vector<std::vector<float>>>;

struct Texts {
  std::vector<std::vector<int32_t>> of;  // by slot
  int64_t index(int32_t slot, int64_t pos) const {
    for (int32_t s = 0; s < slot; ++s) pos += std::ssize(of[s]);
    return pos;
  }
  int64_t total() const { return index(static_cast<int32_t>(of.size()), 0); }
};

// Steps: of each, how many tokens every sequence takes.
using Steps = std::vector<std::vector<int64_t>>;

Steps random_steps(std::mt19937& random, const Texts& texts) {
  std::vector<int64_t> left;
  for (const auto& text : texts.of) left.push_back(std::ssize(text));
  const int64_t most = any_of<int64_t>(random, {1, 4, 20, 100});
  Steps steps;
  while (std::ranges::any_of(left, [](int64_t n) { return n > 0; })) {
    std::vector<int64_t>& step = steps.emplace_back();
    for (int64_t& n : left) {
      step.push_back(std::min<int64_t>(n, static_cast<int64_t>(random() % (most + 1))));
      n -= step.back();
    }
    if (std::ranges::all_of(step, [](int64_t n) { return n == 0; })) steps.pop_back();
  }
  return steps;
}

// A model on its device.
class Run {
 public:
  Run(const Case& c, const std::filesystem::path& directory, const Texts& texts) : texts_(texts) {
    cx_.pool = &pool_;
    cx_.kernels = c.kernels;
    cx_.activations = DType::kBF16;
    LoadOptions options;
    options.dense = c.dense;
    if (cx_.on_gpu()) {
      stream_ = std::make_unique<cuda::Stream>();
      cx_.stream = stream_->handle();
      options.memory = {.allocate = cuda::device_buffer,
                        .allocate_staging = cuda::pinned_buffer,
                        .copy = cuda::copy};
    }
    model_ = load_model(cx_, directory, options);
    const auto most = static_cast<int32_t>(texts.total());
    model_->reserve(cx_, {most, most});
  }
  // All tokens; what the taps show where they are `seen`. Logits, by Texts::index.
  std::vector<std::vector<float>> all(const Case& c, const Steps& steps, Buffers* seen) {
    const auto slots = static_cast<int32_t>(texts_.of.size());
    const auto most = static_cast<int32_t>(texts_.total());
    std::vector<int64_t> done(slots), rows;
    std::vector<std::vector<float>> logits(texts_.total());
    cx_.tap = {};
    if (seen != nullptr)
      cx_.tap = [&](std::string_view name, int layer, const Tensor& value) {
        take(*seen, rows, name, layer, value);
      };
    const auto run = [&](auto& runner) {
      for (const std::vector<int64_t>& step : steps) {
        std::vector<TestChunk> chunks;
        rows.clear();
        for (int32_t s = 0; s < slots; ++s) {
          if (step[s] == 0) continue;
          const auto from = texts_.of[s].begin() + done[s];
          chunks.push_back({s, {from, from + step[s]}});
          for (int64_t i = 0; i < step[s]; ++i) rows.push_back(texts_.index(s, done[s]++));
        }
        const auto got = runner.step(chunks);
        for (size_t r = 0; r < rows.size(); ++r) logits[rows[r]] = got[r];
      }
    };
    if (cx_.on_gpu()) {
      GpuRunner runner(*model_, cx_, slots, most, c.kv, c.page_size);
      run(runner);
    } else {
      TestRunner runner(*model_, cx_, slots, most, c.kv, c.page_size);
      run(runner);
    }
    return logits;
  }

 private:
  void take(Buffers& seen, const std::vector<int64_t>& rows, std::string_view name, int layer,
            const Tensor& value) const {
    if (name == "u") return;  // in expert order, and E4M3 between some rows
    auto& to = seen[{layer < 0 ? 1000 : layer, std::string(name)}];
    to.resize(texts_.total());
    const int64_t cols = value.dim(1);
    for (size_t r = 0; r < rows.size(); ++r)
      for (int64_t i = 0; i < cols; ++i) {
        const int64_t at = static_cast<int64_t>(r) * cols + i;
        to[rows[r]].push_back(value.dtype == DType::kI32
                                  ? static_cast<float>(value.as<int32_t>()[at])
                                  : value.as<float>()[at]);
      }
  }

  const Texts& texts_;
  cpu::ThreadPool pool_{2};
  std::unique_ptr<cuda::Stream> stream_;
  ops::Ctx cx_;
  std::unique_ptr<Model> model_;
};

double rms(const std::vector<float>& v) {
  double sum = 0;
  for (const float x : v) sum += static_cast<double>(x) * x;
  return std::sqrt(sum / static_cast<double>(v.size()));
}

// A choice of experts may go either way where two are as good as equal; what follows is another
// model, for the token and for those that see it. parted[t]: the layer where that happened.
std::vector<int> parted_layers(const Texts& texts, const Buffers& want, const Buffers& got) {
  std::vector<int> parted(texts.total(), 10000);
  for (const auto& [key, ids] : want) {
    if (key.second != "ids") continue;
    for (int64_t t = 0; t < texts.total(); ++t) {
      std::vector<float> a = ids[t], b = got.at(key)[t];
      std::sort(a.begin(), a.end());
      std::sort(b.begin(), b.end());
      if (a != b) parted[t] = std::min(parted[t], key.first);
    }
  }
  for (int32_t s = 0; s < std::ssize(texts.of); ++s)
    for (int64_t t = texts.index(s, 1); t < texts.index(s + 1, 0); ++t)
      parted[t] = std::min(parted[t], parted[t - 1]);
  return parted;
}

// Both store h, q, att, u, keys and values in the same formats: what differs is which way a value
// between two bf16 (or E4M3) goes. E4M3 activations, which the twins have not, cost 7.5% of
// gpt-oss's logits (docs/quality.md).
double tolerance(const Case& c) { return c.kernels.activations == ActFormat::kFp8 ? 0.3 : 0.03; }

struct Seen {
  int64_t rows = 0, parted = 0;  // of buffers, and those left out
  double worst[2] = {};          // error over tolerance: of bf16, of fp8 activations
};

void compare(const Case& c, const Texts& texts, const Buffers& want, const Buffers& got,
             Seen& seen) {
  const double bound = tolerance(c);
  const std::vector<int> parted = parted_layers(texts, want, got);
  double& worst = seen.worst[c.kernels.activations == ActFormat::kFp8];
  ASSERT_EQ(want.size(), got.size());
  for (const auto& [key, rows] : want) {
    const auto& [layer, name] = key;
    if (name == "ids") continue;
    double most = 0;
    for (const auto& row : rows) most = std::max(most, rms(row));
    for (int64_t t = 0; t < texts.total(); ++t) {
      std::vector<float> off = rows[t], other = got.at(key)[t];
      ASSERT_EQ(off.size(), other.size());
      ++seen.rows;
      if (parted[t] < layer || (parted[t] == layer && (name == "moe_d" || name == "p"))) {
        ++seen.parted;
        continue;
      }
      if (name == "p") {
        std::sort(off.begin(), off.end());
        std::sort(other.begin(), other.end());
      }
      for (size_t i = 0; i < off.size(); ++i) off[i] -= other[i];
      // Of n errors of one size, theirs may be 3 of its own deviations of 1 / sqrt(2 n) larger.
      const double few = 1 + 3 / std::sqrt(2.0 * static_cast<double>(off.size()));
      const double error = rms(off) / most;
      worst = std::max(worst, error / (bound * few));
      ASSERT_LE(error, bound * few) << name << " of layer " << layer << ", token " << t;
    }
  }
}

void check(std::mt19937& random, const Case& c, const std::filesystem::path& directory, Seen& seen,
           Pairs& reached) {
  write_random_checkpoint(c.shape, directory);
  Texts texts;
  for (int s = 0; s < 3; ++s) {
    std::vector<int32_t>& text = texts.of.emplace_back(1 + random() % (s == 0 ? 90 : 20));
    for (int32_t& token : text) token = static_cast<int32_t>(random() % c.shape.vocab);
  }
  Case twins = c;
  twins.kernels = {};
  twins.kernels.allow_ref = true;
  for (int op = 0; op < ops::kNumOps; ++op)
    twins.kernels.force(std::string(ops::op_name(static_cast<Op>(op))) + "=ref");
  std::vector<int64_t> whole;
  for (const auto& text : texts.of) whole.push_back(std::ssize(text));
  Buffers want, tapped;
  Run(twins, directory, texts).all(twins, {whole}, &want);
  Run run(c, directory, texts);
  const Steps steps = random_steps(random, texts);
  const auto logits = run.all(c, steps, &tapped);
  compare(c, texts, want, tapped, seen);
  // Without a tap kernels overlap, and may leave the choice of experts to one another.
  EXPECT_EQ(run.all(c, steps, nullptr), logits);
  if (c.kernels.exact) {
    EXPECT_EQ(run.all(c, {whole}, nullptr), logits);
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

// NIBBLE_ANY_SHAPES=N runs N cases, another NIBBLE_SEED others.
int64_t number_of(const char* variable, int64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::atoll(text);
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
  std::printf(
      "%lld rows of buffers, %lld after another choice of experts; error over tolerance "
      "%.3f with bf16, %.3f with fp8 activations; %zu pairs of rows\n",
      static_cast<long long>(seen.rows), static_cast<long long>(seen.parted), seen.worst[0],
      seen.worst[1], reached.size());
  EXPECT_LT(static_cast<double>(seen.parted), 0.2 * static_cast<double>(seen.rows));
  if (cases < 400) return;
  for (const std::string& pair : possible) EXPECT_TRUE(reached.contains(pair)) << pair;
}

}  // namespace
}  // namespace nibble
