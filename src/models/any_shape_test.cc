// Whole models of random odd shapes, in every setting, against the twins: whatever kernels the ops
// of a layer are given, each hands its neighbour what that one reads. Counts the pairs of rows that
// neighbours can be given on the instruction sets of this machine, and fails where one was not run.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <string>
#include <vector>

#include "io/io_test.h"
#include "models/test_any_shape.h"

namespace nibble {
namespace {

using namespace any_shape;  // NOLINT

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

Rows rows_of(const Case& c) {
  return any_shape::rows_of(c, [&](Op, const auto&, const auto& row, const auto& desc) {
    return row.refuse(desc, c.kernels) == nullptr;
  });
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
    for (const auto& [a, b] : neighbours_of(c.shape.family))
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

// Chooses a row for each op and forces it: of those that it can be given, one that makes the most
// `missing` pairs with the neighbours chosen already, before it or behind (a layer's last op stands
// before the next one's first); where few are missing, one of them is what the others are chosen
// around. One case in four takes what the tables give.
Choice choose_rows(std::mt19937& random, const Pairs& missing, Case& c) {
  const Rows rows = rows_of(c);
  const Neighbours neighbours = neighbours_of(c.shape.family);
  Choice chosen;
  if (random() % 4 == 0) {
    for (const auto& [op, names] : rows) chosen[op] = names.front();
    return chosen;
  }
  const auto choose = [&](Op op) {
    if (chosen.contains(op)) return;
    std::vector<std::string> best;
    int64_t most = 0;
    for (const std::string& row : rows.at(op)) {
      int64_t fresh = 0;
      for (const auto& [a, b] : neighbours) {
        if (a == op && chosen.contains(b)) fresh += missing.count(pair_text(a, row, b, chosen[b]));
        if (b == op && chosen.contains(a)) fresh += missing.count(pair_text(a, chosen[a], b, row));
      }
      if (fresh > most) best.clear(), most = fresh;
      if (fresh == most) best.push_back(row);
    }
    chosen[op] = any_of(random, best);
  };
  if (constexpr size_t kFew = 100; missing.size() < kFew) {
    std::vector<Choice> fresh;
    for (const auto& [a, b] : neighbours)
      for (const std::string& first : rows.at(a))
        for (const std::string& second : rows.at(b))
          if (missing.contains(pair_text(a, first, b, second)))
            fresh.push_back({{a, first}, {b, second}});
    if (!fresh.empty()) chosen = any_of(random, fresh);
  }
  for (const auto& [before, op] : neighbours) choose(before), choose(op);
  for (const auto& [op, row] : chosen) c.kernels.forced.emplace_back(ops::op_name(op), row);
  return chosen;
}

// Root mean square that a token's row of a buffer may be off by, over the largest of the buffer's
// rows. float32 sums are off by 1e-6; rounded to pages or activations, a value near the middle goes
// either way, by 2^-8 (bf16) or 2^-4 (E4M3) of itself, few of them at a time. int8 is off by 0.5% a
// product, with one step a row by 0.8%, and by three times that where outliers (swiglu's) set the
// step; two layers of four products add up to twice that. E4M3's codes are 2^-3 of a value apart:
// of keys and values that int8 has moved by 0.5%, one in twelve goes to the next code, which is off
// by as much as twenty of its kind. A wrong block of 32 of the widest matrix is off by a third.
double tolerance_of_layers(const Case& c) {
  const bool is_int8 =
      c.kernels.activations == ActFormat::kInt8 || c.kernels.activations == ActFormat::kInt8Row;
  if (is_int8 && c.kv == DType::kF8E4M3) return 0.12;
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

// A delta net multiplies what five products make (q, k, v, gates and z), and norms heads of few
// dims, where attention weighs one by two. A norm makes the error of a head of few dims, all of
// them small by chance, as large as its values.
double tolerance(const Case& c) {
  const bool norms_heads = c.shape.family == Family::kQwen3 || c.shape.family == Family::kQwen3Moe;
  return tolerance_of_layers(c) * (is_hybrid(c.shape.family) ? 3 : norms_heads ? 1.5 : 1);
}

void check(std::mt19937& random, const Case& c, const std::filesystem::path& directory,
           Seen& seen) {
  write_random_checkpoint(c.shape, directory);
  const Texts texts = random_texts(random, {28, 28}, c.shape.vocab);
  Case twins = c;
  run_twins(twins.kernels);
  Buffers want, got;
  Run(twins, {}, directory, texts).all(one_step(texts), &want);
  Run(c, {}, directory, texts).all(random_steps(random, texts), &got);
  compare(
      c, texts, want, got, [&](int64_t) { return tolerance(c); }, seen);
}

TEST(AnyShape, EveryPairOfRowsEqualsTheTwins) {
  const int64_t cases = number_of("NIBBLE_ANY_SHAPES", 300);
  const Pairs possible = possible_pairs();
  Pairs missing = possible, reached;
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
      Pairs drawn = pairs_of(choose_rows(random, missing, c), c.shape.family);
      const int64_t fresh = std::ranges::count_if(
          drawn, [&](const std::string& pair) { return !reached.contains(pair); });
      if (fresh > most) best = std::move(c), most = fresh, pairs = std::move(drawn);
    }
    SCOPED_TRACE("case " + std::to_string(i) + ": " + describe(best));
    check(random, best, directory.path(), seen);
    if (HasFatalFailure()) return;
    ops::Ctx cx;
    cx.kernels = best.kernels;
    ASSERT_EQ(pairs, pairs_of(plan_kernels(cx, directory.path(), best.dense), 1));
    for (const std::string& pair : pairs) missing.erase(pair);
    reached.merge(pairs);
  }
  for (const std::string& pair : missing) ADD_FAILURE() << pair << " was not reached";
  EXPECT_GT(possible.size(), 100u);
  for (const std::string& pair : reached) EXPECT_TRUE(possible.contains(pair)) << pair;
  EXPECT_LT(seen.parted, seen.rows / 10);
  print(seen);
  std::printf("%zu of %zu pairs\n", reached.size(), possible.size());
}

// ---- other families ----

const std::vector<Family> kFamilies = {Family::kLlama, Family::kQwen3, Family::kQwen3Moe};
const std::vector<Format> kOnDisk = {Format::kBF16,   Format::kF16,      Format::kNvfp4,
                                     Format::kFp8Row, Format::kFp8Block, Format::kMxfp8,
                                     Format::kMxfp4,  Format::kInt4G32};

bool has_blocks_of_32(Format format) {
  return format_row(format).block_elems <= 32 && format_row(format).block_elems > 1;
}

// What is encoded on load: a dense layer's out_proj and down are given one row by force, which both
// take in one format.
DenseFormats family_formats(Format layers, Format others) {
  return {.qkv = others, .out = layers, .unembed = others, .mlp = layers};
}

Pairs possible_family_pairs() {
  Pairs pairs;
  Case c;
  c.kernels.allow_ref = true;
  const auto add = [&] {
    const Rows rows = rows_of(c);
    for (const auto& [a, b] : neighbours_of(c.shape.family))
      for (const std::string& first : rows.at(a))
        for (const std::string& second : rows.at(b)) pairs.insert(pair_text(a, first, b, second));
  };
  for (const cpu::Isa isa : isas_here())
    for (const ActFormat activations : kActivations)
      for (const Family family : kFamilies)
        for (const Format format : kOnDisk)
          for (const Format layers : kDenseFormats)
            for (const Format others : kDenseFormats)
              for (const int64_t size : {96, 128}) {
                c.kernels.isa = isa, c.kernels.activations = activations;
                c.shape.family = family, c.shape.format = format;
                c.dense = family_formats(layers, others);
                c.shape.hidden = c.shape.width = size, c.shape.head_dim = 32;
                c.shape.vocab = size == 96 ? 61 : 160;
                add();
              }
  return pairs;
}

Case random_family_case(std::mt19937& random) {
  Case c = random_case(random);
  RandomShape& s = c.shape;
  s.family = any_of(random, kFamilies);
  s.format = any_of(random, kOnDisk);
  s.over_all = random() % 2 == 0;
  // Few dims may all be near zero: then a head's norm makes its error as large as the head.
  if (s.family != Family::kLlama) s.head_dim = std::max<int64_t>(s.head_dim, 16);
  if (has_blocks_of_32(s.format) && s.q_heads * s.head_dim % 32 != 0) s.head_dim = 32;
  if (!has_blocks_of_32(s.format) && random() % 4 == 0) {  // sizes that no format with blocks has
    s.hidden = any_of<int64_t>(random, {18, 34, 50, 130, 200});
    s.width = any_of<int64_t>(random, {7, 33, 131, 150});
  }
  const bool is_whole = s.hidden % 32 == 0 && s.width % 32 == 0 && s.q_heads * s.head_dim % 32 == 0;
  c.dense = {};
  if (is_whole)
    c.dense = family_formats(any_of(random, kDenseFormats), any_of(random, kDenseFormats));
  return c;
}

// Whatever their formats, sizes and settings; more cases than were asked for where a pair is left.
TEST(AnyShape, PairsOfRowsOfOtherFamiliesEqualTheTwins) {
  const int64_t cases = number_of("NIBBLE_ANY_FAMILIES", 300);
  Pairs missing = possible_family_pairs();
  const size_t possible = missing.size();
  Seen seen;
  std::set<std::string> met;  // "Qwen3 nvfp4"
  const test::TempDir directory;
  for (int64_t i = 0; i < cases || (i < 3 * cases && !missing.empty()); ++i) {
    std::mt19937 random(static_cast<uint32_t>(number_of("NIBBLE_SEED", 1) * 100000 + 50000 + i));
    constexpr int kDrawn = 20;  // of them the one that forces the most that is missing
    Case best;
    int64_t most = -1;
    for (int n = 0; n < (most > 0 || missing.empty() ? kDrawn : 200 * kDrawn); ++n) {
      Case c = random_family_case(random);
      const Pairs drawn = pairs_of(choose_rows(random, missing, c), c.shape.family);
      const int64_t fresh =
          c.kernels.forced.empty() ? 0 : std::ranges::count_if(drawn, [&](const std::string& pair) {
            return missing.contains(pair);
          });
      if (fresh > most) best = std::move(c), most = fresh;
    }
    if (best.kernels.forced.empty()) best.shape.is_tied = i % 2 == 0;
    SCOPED_TRACE("case " + std::to_string(i) + ": " + describe(best));
    check(random, best, directory.path(), seen);
    if (HasFatalFailure()) return;
    met.insert(family_text(best.shape));
    ops::Ctx cx;
    cx.kernels = best.kernels;
    for (const std::string& pair : pairs_of(plan_kernels(cx, directory.path(), best.dense), 1))
      missing.erase(pair);
  }
  EXPECT_GE(met.size(), kFamilies.size() * kOnDisk.size());  // each family in each format
  EXPECT_LT(seen.parted, seen.rows / 10);
  print(seen);
  std::printf("%zu of %zu pairs\n", possible - missing.size(), possible);
  for (const std::string& pair : missing) ADD_FAILURE() << pair << " was not reached";
}

// ---- families with recurrent layers ----

const std::vector<Family> kHybrids = {Family::kQwen3Next, Family::kQwen35, Family::kQwen35Moe};

// The i-th of cases that meet each family in each format in turn.
Case random_hybrid_case(std::mt19937& random, size_t i) {
  Case c = random_case(random);
  RandomShape& s = c.shape;
  s.family = kHybrids[i % kHybrids.size()];
  s.format = kOnDisk[i / kHybrids.size() % kOnDisk.size()];
  s.is_tied = random() % 3 == 0, s.over_all = random() % 2 == 0;
  const bool has_blocks = has_blocks_of_32(s.format);
  if (has_blocks && s.q_heads * s.head_dim % 32 != 0) s.head_dim = 32;
  if (!has_blocks && random() % 2 == 0) {  // sizes that no format with blocks has
    s.hidden = any_of<int64_t>(random, {18, 34, 50, 130, 200});
    s.width = any_of<int64_t>(random, {7, 33, 131, 150});
  }
  s.key_heads = 1 + static_cast<int64_t>(random() % 3);
  s.value_heads = s.key_heads * (1 + static_cast<int64_t>(random() % 3));
  s.key_dim = any_of<int64_t>(random, {8, 20, 33, 64}), s.taps = any_of<int64_t>(random, {2, 4});
  s.value_dim = has_blocks ? 32 : any_of<int64_t>(random, {3, 16, 40, 64});
  if (s.head_dim % 4 != 0) s.head_dim = has_blocks ? 32 : 20;
  const bool is_whole = s.hidden % 32 == 0 && s.width % 32 == 0 &&
                        s.q_heads * s.head_dim % 32 == 0 && s.value_heads * s.value_dim % 32 == 0;
  c.dense.mlp = any_of(random, kDenseFormats);
  if (!is_whole) c.dense = {};
  return c;
}

// Every op of each is run by what its table gives.
TEST(AnyShape, FamiliesWithRecurrentLayersEqualTheTwins) {
  const auto cases = static_cast<size_t>(number_of("NIBBLE_ANY_HYBRIDS", 48));
  Seen seen;
  const test::TempDir directory;
  for (size_t i = 0; i < cases; ++i) {
    std::mt19937 random(static_cast<uint32_t>(number_of("NIBBLE_SEED", 1) * 100000 + 70000 + i));
    const Case c = random_hybrid_case(random, i);
    SCOPED_TRACE("case " + std::to_string(i) + ": " + describe(c));
    check(random, c, directory.path(), seen);
    if (HasFatalFailure()) return;
  }
  EXPECT_LT(seen.parted, seen.rows / 10);
  print(seen);
}

}  // namespace
}  // namespace nibble
