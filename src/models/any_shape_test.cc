// Whole models of random odd shapes, in every setting, against the twins: whatever kernels the ops
// of a layer are given, each hands its neighbour what that one reads. Counts the pairs of rows that
// neighbours can be given on the instruction sets of this machine, and fails where one was not run.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

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

namespace nibble {
namespace {

using ops::ActFormat;
using ops::Op;

// What a model is and how it is run.
struct Case {
  RandomShape shape;
  DenseFormats dense;
  DType kv = DType::kBF16;
  int32_t page_size = 16;
  ops::KernelOptions kernels;
  DType stored = DType::kF32;  // h, q, att and u
};

template <typename T>
const T& any_of(std::mt19937& random, const std::vector<T>& values) {
  return values[random() % values.size()];
}

std::vector<cpu::Isa> isas_here() {
  std::vector<cpu::Isa> here;
  for (int i = 0; i < cpu::kNumIsas; ++i)
    if (cpu::supports(cpu::detect_isa(), static_cast<cpu::Isa>(i)))
      here.push_back(static_cast<cpu::Isa>(i));
  return here;
}

const std::vector<ActFormat> kActivations = {ActFormat::kFloat, ActFormat::kBF16, ActFormat::kInt8,
                                             ActFormat::kInt8Row};
const std::vector<Format> kDenseFormats = {Format::kBF16, Format::kMxfp8, Format::kMxfp4,
                                           Format::kNvfp4};

// Sizes whose remainders by 16, 32 and 64 are all there are.
const std::vector<int64_t> kHidden = {32, 64, 96, 128, 160}, kWidth = {32, 64, 96, 128, 224};
const std::vector<int64_t> kHeadDims = {2, 6, 16, 24, 32, 64, 80, 128};
const std::vector<int64_t> kVocab = {48, 61, 160, 199};

// The rows that each op of a layer can be given, by themselves or by force. Ops outside layers are
// among them: embed stands before norm_qkv, norm_unembed after moe_down.
using Rows = std::map<Op, std::vector<std::string>>;

template <typename Desc, typename Fn>
void add_rows(Rows& rows, Op op, std::span<const ops::Kernel<Desc, Fn>> table, const Desc& desc,
              const ops::KernelOptions& options) {
  for (const auto& row : table)
    if (row.run != nullptr && row.refuse(desc, options) == nullptr) rows[op].push_back(row.name);
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

// Who reads what whom wrote.
constexpr std::pair<Op, Op> kNeighbours[] = {
    {Op::kEmbed, Op::kNormQkv},     {Op::kNormQkv, Op::kAttention},  {Op::kAttention, Op::kOutProj},
    {Op::kOutProj, Op::kNormRoute}, {Op::kNormRoute, Op::kMoeUp},    {Op::kMoeUp, Op::kMoeDown},
    {Op::kMoeDown, Op::kNormQkv},   {Op::kMoeDown, Op::kNormUnembed}};

using Pairs = std::set<std::string>;  // "moe_up=avx2_float moe_down=ref"
std::string pair_text(Op first, const std::string& a, Op second, const std::string& b) {
  return std::string(ops::op_name(first)) + "=" + a + " " + ops::op_name(second) + "=" + b;
}

// One for each op.
using Choice = std::map<Op, std::string>;
Pairs pairs_of(const Choice& rows) {
  Pairs pairs;
  for (const auto& [a, b] : kNeighbours) pairs.insert(pair_text(a, rows.at(a), b, rows.at(b)));
  return pairs;
}

Choice choice_of(const std::vector<ops::PlanEntry>& plan) {
  Choice rows;
  for (const ops::PlanEntry& entry : plan) rows[entry.site.op] = entry.kernel;
  return rows;
}

// Every pair that some case can be given: all formats and activations, and sizes that fit all
// layouts, none, or each of them by itself.
Pairs possible_pairs() {
  Pairs pairs;
  Case c;
  c.kernels.allow_ref = true;
  const std::vector<cpu::Isa> isas = isas_here();
  for (size_t n = 0, rest = 0; rest == 0; ++n) {
    rest = n;  // a digit for each setting
    const auto digit = [&](const auto& values) {
      const auto& value = values[rest % values.size()];
      rest /= values.size();
      return value;
    };
    c.kernels.isa = digit(isas);
    c.kernels.activations = digit(kActivations);
    for (Format* format : {&c.dense.qkv, &c.dense.out, &c.dense.unembed})
      *format = digit(kDenseFormats);
    for (int64_t* size : {&c.shape.hidden, &c.shape.width}) *size = digit(std::array{96, 128});
    c.shape.head_dim = digit(std::array{6, 32});
    c.shape.vocab = digit(std::array{61, 160});
    const Rows rows = rows_of(c);
    for (const auto& [a, b] : kNeighbours)
      for (const std::string& first : rows.at(a))
        for (const std::string& second : rows.at(b)) pairs.insert(pair_text(a, first, b, second));
  }
  return pairs;
}

Case random_case(std::mt19937& random) {
  Case c;
  c.shape.hidden = any_of(random, kHidden);
  c.shape.width = any_of(random, kWidth);
  c.shape.head_dim = any_of(random, kHeadDims);
  c.shape.kv_heads = 1 + static_cast<int64_t>(random() % 3);
  c.shape.q_heads = c.shape.kv_heads * any_of<int64_t>(random, {1, 2, 3, 5, 8});
  if (c.shape.head_dim % 32 != 0 && random() % 2 == 0)  // MX formats need whole blocks
    c.shape.kv_heads = 2, c.shape.q_heads = 16;
  c.shape.experts = any_of<int64_t>(random, {1, 2, 3, 5, 9, 40});
  c.shape.top_k = 1 + static_cast<int64_t>(random() % std::min<int64_t>(c.shape.experts, 9));
  c.shape.vocab = any_of(random, kVocab);
  c.shape.window = any_of<int64_t>(random, {1, 5, 33});
  c.shape.seed = random();
  for (Format* format : {&c.dense.qkv, &c.dense.out, &c.dense.unembed})
    *format = any_of(random, kDenseFormats);
  if (c.shape.q_heads * c.shape.head_dim % 32 != 0) c.dense.out = Format::kBF16;
  c.kv = any_of<DType>(random, {DType::kBF16, DType::kF32, DType::kF8E4M3});
  c.page_size = any_of<int32_t>(random, {1, 5, 16, 64});
  c.kernels.allow_ref = true;
  c.kernels.isa = any_of(random, isas_here());
  c.kernels.activations = any_of(random, kActivations);
  if (c.kernels.activations == ActFormat::kBF16) c.stored = DType::kBF16;
  return c;
}

// Chooses a row for each op and forces it: of those that its neighbour before leaves, one whose
// pair is not in `reached` yet. One case in four takes what the tables give.
Choice choose_rows(std::mt19937& random, const Pairs& reached, Case& c) {
  const Rows rows = rows_of(c);
  Choice chosen;
  if (random() % 4 == 0) {
    for (const auto& [op, names] : rows) chosen[op] = names.front();
    return chosen;
  }
  chosen[Op::kEmbed] = any_of(random, rows.at(Op::kEmbed));
  for (const auto& [before, op] : kNeighbours) {
    if (chosen.contains(op)) continue;
    std::vector<std::string> fresh;
    for (const std::string& row : rows.at(op))
      if (!reached.contains(pair_text(before, chosen[before], op, row))) fresh.push_back(row);
    chosen[op] = any_of(random, fresh.empty() ? rows.at(op) : fresh);
  }
  for (const auto& [op, row] : chosen) c.kernels.forced.emplace_back(ops::op_name(op), row);
  return chosen;
}

std::string describe(const Case& c) {
  const RandomShape& s = c.shape;
  const auto text = [](std::string_view name, auto value) {
    return " " + std::string(name) + " " + std::to_string(value);
  };
  std::string all =
      std::string(cpu::isa_name(c.kernels.isa)) + ", activations " +
      ops::act_format_name(c.kernels.activations) + ", KV " + dtype_name(c.kv) + ", dense " +
      std::string(format_name(c.dense.qkv)) + " " + std::string(format_name(c.dense.out)) + " " +
      std::string(format_name(c.dense.unembed)) + "," + text("H", s.hidden) + text("Q", s.q_heads) +
      text("G", s.kv_heads) + text("D", s.head_dim) + text("E", s.experts) + text("K", s.top_k) +
      text("F", s.width) + text("V", s.vocab) + text("window", s.window) +
      text("page", c.page_size) + text("seed", s.seed);
  for (const auto& [op, row] : c.kernels.forced) all += " " + op + "=" + row;
  return all;
}

// What the taps of a run showed: a row of each buffer for each token, in order of slot and
// position.
using Buffers = std::map<std::pair<int, std::string>, std::vector<std::vector<float>>>;

// The sequences of a case, and where their tokens stand in Buffers.
struct Texts {
  std::vector<std::vector<int32_t>> of;  // by slot
  int64_t index(int32_t slot, int64_t pos) const {
    for (int32_t s = 0; s < slot; ++s) pos += std::ssize(of[s]);
    return pos;
  }
  int64_t total() const { return index(static_cast<int32_t>(of.size()), 0); }
};

// Runs all tokens, in chunks that `cut` gives.
class Run {
 public:
  Run(const Case& c, const std::filesystem::path& directory, const Texts& texts) : texts_(texts) {
    cx_.pool = &pool_;
    cx_.kernels = c.kernels;
    cx_.activations = c.stored;
    LoadOptions options;
    options.dense = c.dense;
    model_ = load_model(cx_, directory, options);
    const auto most = static_cast<int32_t>(texts.total());
    model_->reserve(cx_, {most, most});
    cx_.tap = [this](std::string_view name, int layer, const Tensor& value) {
      take(name, layer, value);
    };
    runner_ = std::make_unique<TestRunner>(*model_, cx_, static_cast<int32_t>(texts.of.size()),
                                           most, c.kv, c.page_size);
  }

  // cut(left): how many of a sequence's tokens the next step takes.
  template <typename Cut>
  const Buffers& all(const Cut& cut) {
    std::vector<int64_t> done(texts_.of.size());
    while (true) {
      std::vector<TestChunk> chunks;
      rows_.clear();
      for (int32_t s = 0; s < std::ssize(texts_.of); ++s) {
        const std::vector<int32_t>& text = texts_.of[s];
        const int64_t n = cut(std::ssize(text) - done[s]);
        if (n == 0) continue;
        chunks.push_back({s, {text.begin() + done[s], text.begin() + done[s] + n}});
        for (int64_t i = 0; i < n; ++i) rows_.push_back(texts_.index(s, done[s]++));
      }
      if (!chunks.empty()) runner_->step(chunks);
      bool left = false;
      for (size_t s = 0; s < done.size(); ++s) left |= done[s] < std::ssize(texts_.of[s]);
      if (!left) return buffers_;
    }
  }

 private:
  void take(std::string_view name, int layer, const Tensor& value) {
    if (name == "u") return;  // in expert order
    auto& to = buffers_[{layer < 0 ? 1000 : layer, std::string(name)}];
    to.resize(texts_.total());
    const int64_t cols = value.dim(1);
    for (size_t r = 0; r < rows_.size(); ++r)
      for (int64_t i = 0; i < cols; ++i) {
        const int64_t at = static_cast<int64_t>(r) * cols + i;
        to[rows_[r]].push_back(value.dtype == DType::kI32
                                   ? static_cast<float>(value.as<int32_t>()[at])
                                   : value.as<float>()[at]);
      }
  }

  const Texts& texts_;
  cpu::ThreadPool pool_{2};
  ops::Ctx cx_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<TestRunner> runner_;
  std::vector<int64_t> rows_;  // of this step: where each stands in Buffers
  Buffers buffers_;
};

double rms(const std::vector<float>& v) {
  double sum = 0;
  for (const float x : v) sum += static_cast<double>(x) * x;
  return std::sqrt(sum / static_cast<double>(v.size()));
}

// Root mean square that a token's row of a buffer may be off by, over the largest of the buffer's
// rows. float32 sums are off by 1e-6; rounded to pages or activations, a value near the middle goes
// either way, by 2^-8 (bf16) or 2^-4 (E4M3) of itself, few of them at a time. int8 is off by 0.5% a
// product, with one step a row by 0.8%, and by three times that where outliers (swiglu's) set the
// step; two layers of four products add up to twice that. A wrong block of 32 of the widest matrix
// is off by a third.
double tolerance(const Case& c) {
  switch (c.kernels.activations) {
    case ActFormat::kInt8:
      return 0.06;
    case ActFormat::kInt8Row:
      return 0.10;
    case ActFormat::kBF16:
      return 0.015;
    default:
      return c.kv == DType::kF32 ? 5e-6 : c.kv == DType::kBF16 ? 1e-3 : 0.01;
  }
}

// Over all cases.
struct Seen {
  int64_t tokens = 0, parted = 0;            // rows of buffers, and those left out
  std::map<std::string, double> worst = {};  // by activations and KV: error over tolerance
};

// A choice of experts may go either way where two are as good as equal; what follows is another
// model. Then the weights, in order, are still the same; what comes after is left out, for the
// token and for those that see it. parted[t]: the layer in which token t's choice differs.
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

bool is_after_routing(const std::string& name) { return name == "moe_d"; }

void compare(const Case& c, const Texts& texts, const Buffers& want, const Buffers& got,
             Seen& seen) {
  const double bound = tolerance(c);
  const std::vector<int> parted = parted_layers(texts, want, got);
  double& worst =
      seen.worst[std::string(ops::act_format_name(c.kernels.activations)) + " " + dtype_name(c.kv)];
  ASSERT_EQ(want.size(), got.size());
  for (const auto& [key, rows] : want) {
    const auto& [layer, name] = key;
    if (name == "ids") continue;
    double most = 0;
    for (const auto& row : rows) most = std::max(most, rms(row));
    for (int64_t t = 0; t < texts.total(); ++t) {
      std::vector<float> off = rows[t], other = got.at(key)[t];
      ASSERT_EQ(off.size(), other.size());
      ++seen.tokens;
      if (parted[t] < layer || (parted[t] == layer && is_after_routing(name))) {
        ++seen.parted;
        continue;
      }
      if (name == "p") {
        std::sort(off.begin(), off.end());
        std::sort(other.begin(), other.end());
      }
      for (size_t i = 0; i < off.size(); ++i) off[i] -= other[i];
      const double error = rms(off) / most;
      worst = std::max(worst, error / bound);
      ASSERT_LE(error, bound) << name << " of layer " << layer << ", token " << t;
    }
  }
}

// Texts of two sequences.
Texts random_texts(std::mt19937& random, int64_t vocab) {
  Texts texts;
  for (int s = 0; s < 2; ++s) {
    std::vector<int32_t>& text = texts.of.emplace_back(1 + random() % 28);
    for (int32_t& token : text) token = static_cast<int32_t>(random() % vocab);
  }
  return texts;
}

void check(std::mt19937& random, const Case& c, const std::filesystem::path& directory,
           Seen& seen) {
  write_random_checkpoint(c.shape, directory);
  const Texts texts = random_texts(random, c.shape.vocab);
  Case twins = c;
  run_twins(twins.kernels);
  Run want(twins, directory, texts), got(c, directory, texts);
  const int64_t most = any_of<int64_t>(random, {1, 3, 9, 64});
  compare(c, texts, want.all([](int64_t left) { return left; }), got.all([&](int64_t left) {
    return std::min<int64_t>(left, static_cast<int64_t>(random() % (most + 1)));
  }),
          seen);
}

// NIBBLE_ANY_SHAPES=N runs N cases, another NIBBLE_SEED others.
int64_t number_of(const char* variable, int64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::atoll(text);
}

TEST(AnyShape, EveryPairOfRowsEqualsTheTwins) {
  const int64_t cases = number_of("NIBBLE_ANY_SHAPES", 300);
  const Pairs possible = possible_pairs();
  Pairs reached;
  Seen seen;
  const test::TempDir directory;
  for (int64_t i = 0; i < cases; ++i) {
    std::mt19937 random(static_cast<uint32_t>(number_of("NIBBLE_SEED", 1) * 100000 + i));
    // Of some drawn, the one that shows the most.
    constexpr int kDrawn = 20;
    Case best;
    int64_t most = -1;
    Pairs pairs;
    const auto is_enough = [&](int n) {
      return n >= kDrawn && (most > 0 || n >= 50 * kDrawn || reached.size() >= possible.size());
    };
    for (int n = 0; !is_enough(n); ++n) {
      Case c = random_case(random);
      Pairs drawn = pairs_of(choose_rows(random, reached, c));
      const int64_t fresh = std::ranges::count_if(
          drawn, [&](const std::string& pair) { return !reached.contains(pair); });
      if (fresh > most) best = std::move(c), most = fresh, pairs = std::move(drawn);
    }
    SCOPED_TRACE("case " + std::to_string(i) + ": " + describe(best));
    check(random, best, directory.path(), seen);
    if (HasFatalFailure()) return;
    ops::Ctx cx;
    cx.kernels = best.kernels;
    ASSERT_EQ(pairs, pairs_of(choice_of(plan_kernels(cx, directory.path(), best.dense))));
    reached.merge(pairs);
  }
  std::string missing;
  for (const std::string& pair : possible)
    if (!reached.contains(pair)) missing += "\n  " + pair;
  EXPECT_TRUE(missing.empty()) << "pairs of rows that " << cases
                               << " cases did not reach:" << missing;
  EXPECT_GT(possible.size(), 100u);
  for (const std::string& pair : reached) EXPECT_TRUE(possible.contains(pair)) << pair;
  EXPECT_LT(seen.parted, seen.tokens / 10);
  for (const auto& [setting, worst] : seen.worst)
    std::printf("%-16s %.2f of the tolerance\n", setting.c_str(), worst);
  std::printf("%zu of %zu pairs; %lld of %lld rows behind another choice of experts\n",
              reached.size(), possible.size(), static_cast<long long>(seen.parted),
              static_cast<long long>(seen.tokens));
}

}  // namespace
}  // namespace nibble
