// Whole models of random odd shapes, in every setting, against the twins: whatever kernels the ops
// of a layer are given, each hands its neighbour what that one reads. Counts the pairs of rows that
// neighbours can be given on the instruction sets of this machine, and fails where one was not run.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
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

// On a CPU all rows leave and take the same.
bool can_meet(Op, const std::string&, const std::string&) { return true; }

auto fits(const Case& c) {
  return
      [&](Op, const auto& row, const auto& desc) { return row.refuse(desc, c.kernels) == nullptr; };
}

// A case that can be given a pair: by force of two rows, or by what the tables give each call.
struct Recipe {
  Case c;
  Choice rows;
};
using Possible = std::map<std::string, Recipe>;  // by pair

// Adds the pairs that a model can be given on the instruction sets of this machine, by any
// activations.
void add_possible(Case c, const std::filesystem::path& directory, Possible& pairs) {
  c.kernels.allow_ref = true;
  const ops::Sites sites = sites_of(c, directory);
  const Neighbours neighbours = neighbours_of(sites);
  const Edges edges = edges_of(sites);
  for (const cpu::Isa isa : isas_here())
    for (const ActFormat activations : kActivations) {
      c.kernels.isa = isa, c.kernels.activations = activations;
      c.stored = activations == ActFormat::kBF16 ? DType::kBF16 : DType::kF32;
      for_each_forced(
          rows_of(sites, fits(c)), neighbours, can_meet,
          [&](const std::string& pair, const Choice& rows) { pairs.try_emplace(pair, c, rows); });
      std::map<const ops::Site*, std::string> best;
      for (const ops::Site& site : sites) best[&site] = rows_of(site, fits(c)).at(0);
      for (const auto& [a, b] : edges)
        pairs.try_emplace(pair_text(a->key.op, best.at(a), b->key.op, best.at(b)), c, Choice{});
    }
}

// Every pair that some gpt-oss can be given: all formats, and sizes that fit all layouts, none, or
// each of them by itself.
Possible possible_pairs(const std::filesystem::path& directory) {
  Possible pairs;
  for (size_t n = 0, rest = 0; rest == 0; ++n) {
    rest = n;  // a digit for each setting
    const auto digit = [&](const auto& values) {
      const auto& value = values[rest % values.size()];
      rest /= values.size();
      return value;
    };
    Case c;
    for (Format* format : {&c.dense.qkv, &c.dense.out, &c.dense.unembed})
      *format = digit(kDenseFormats);
    for (int64_t* size : {&c.shape.hidden, &c.shape.width}) *size = digit(std::array{96, 128});
    c.shape.head_dim = digit(std::array{6, 32});
    c.shape.vocab = digit(std::array{61, 160});
    if (c.shape.q_heads * c.shape.head_dim % 32 != 0 && c.dense.out != Format::kBF16) continue;
    add_possible(c, directory, pairs);
  }
  return pairs;
}

Case random_case(std::mt19937& random, size_t = 0) {
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

// Forces rows, `first` among them, or takes what the tables give. Returns the case's pairs.
Pairs choose(std::mt19937& random, const Pairs& missing, bool by_force, const Choice& first,
             const std::filesystem::path& directory, Case& c) {
  ops::Sites sites = sites_of(c, directory);
  if (!by_force) {
    plan_sites(sites, c.kernels);
    return pairs_of(sites, 1);
  }
  const Neighbours neighbours = neighbours_of(sites);
  const Choice chosen =
      choose_rows(random, missing, rows_of(sites, fits(c)), neighbours, can_meet, first);
  for (const auto& [op, row] : chosen) c.kernels.forced.emplace_back(ops::op_name(op), row);
  return pairs_of(chosen, neighbours);
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
// dims, where attention weighs one by two. A norm makes the error of a head of few dims, or of what
// a state gives for one token, all of it small by chance, as large as its values: of bf16's
// roundings more.
double tolerance(const Case& c) {
  const bool norms_heads = c.shape.family == Family::kQwen3 || c.shape.family == Family::kQwen3Moe;
  const double of_states = c.kernels.activations == ActFormat::kBF16 ? 5 : 3;
  return tolerance_of_layers(c) * (is_hybrid(c.shape.family) ? of_states : norms_heads ? 1.5 : 1);
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

// Runs `cases` cases that draw(random, which) makes, of some drawn always the one that shows the
// most of `possible`, one in four without force; then what shows the pairs that are left.
// `are_all`: no case has others.
template <typename Draw>
void check_pairs(const Possible& possible, bool are_all, int64_t cases, int64_t seed,
                 const Draw& draw) {
  Pairs missing;
  for (const auto& [pair, recipe] : possible) missing.insert(pair);
  Seen seen;
  const test::TempDir directory;
  int64_t i = 0;
  for (; i < cases || !missing.empty(); ++i) {
    std::mt19937 random(static_cast<uint32_t>(number_of("NIBBLE_SEED", 1) * 100000 + seed + i));
    Case best;
    Pairs pairs;
    if (i < cases) {
      constexpr int kDrawn = 10;
      int64_t most = -1;
      for (int n = 0; n < kDrawn; ++n) {
        Case c = draw(random, i);
        Pairs drawn = choose(random, missing, random() % 4 != 0, {}, directory.path(), c);
        const int64_t fresh = std::ranges::count_if(
            drawn, [&](const std::string& pair) { return missing.contains(pair); });
        if (fresh > most) best = std::move(c), most = fresh, pairs = std::move(drawn);
      }
    } else {
      const auto& [pair, recipe] = *possible.find(*missing.begin());
      best = recipe.c;
      best.shape.seed = random();
      pairs = choose(random, missing, !recipe.rows.empty(), recipe.rows, directory.path(), best);
      ASSERT_TRUE(pairs.contains(pair)) << pair;
    }
    SCOPED_TRACE("case " + std::to_string(i) + ": " + describe(best));
    try {
      check(random, best, directory.path(), seen);
    } catch (const Error& e) {
      FAIL() << e.what();
    }
    if (testing::Test::HasFatalFailure()) return;
    ops::Ctx cx;
    cx.kernels = best.kernels;
    ASSERT_EQ(pairs, pairs_of(planned_sites(cx, directory.path(), best.dense), 1));
    for (const std::string& pair : pairs) {
      missing.erase(pair);
      EXPECT_TRUE(!are_all || possible.contains(pair)) << pair;
    }
  }
  EXPECT_LT(seen.parted, seen.rows / 10);
  print(seen);
  std::printf("%lld cases, %zu pairs\n", static_cast<long long>(i), possible.size());
}

TEST(AnyShape, EveryPairOfRowsEqualsTheTwins) {
  const Possible possible = possible_pairs(test::TempDir().path());
  EXPECT_GT(possible.size(), 100u);
  check_pairs(possible, /*are_all=*/true, number_of("NIBBLE_ANY_SHAPES", 100), 0, random_case);
}

// ---- other families ----

const std::vector<Family> kFamilies = {Family::kLlama, Family::kQwen3, Family::kQwen3Moe};
const std::vector<Format> kOnDisk = {Format::kBF16,  Format::kF16,    Format::kF32,
                                     Format::kNvfp4, Format::kFp8Row, Format::kFp8Block,
                                     Format::kMxfp8, Format::kMxfp4,  Format::kInt4G32};

bool has_blocks_of_32(Format format) {
  return format_row(format).block_elems <= 32 && format_row(format).block_elems > 1;
}

// What is encoded on load: out_proj and down are given one row by force, which both take in one
// format.
DenseFormats family_formats(Format layers, Format others) {
  return {.qkv = others, .out = layers, .unembed = others, .mlp = layers};
}

// Of each family every format on disk, what bf16 may be encoded to, and sizes that fit all layouts
// or none. A shared expert is one of the others, or not, by its width.
Possible possible_family_pairs(const std::vector<Family>& families,
                               const std::filesystem::path& directory) {
  Possible pairs;
  for (const Family family : families)
    for (const Format format : kOnDisk)
      for (const Format layers : kDenseFormats)
        for (const Format others : kDenseFormats)
          for (const int64_t size : {96, 128})
            for (const int64_t shared_width : {size, int64_t{32}}) {
              if (format != Format::kBF16 && layers != Format::kBF16) continue;  // not encoded
              if (!has_shared_expert(family) && shared_width != size) continue;
              Case c;
              RandomShape& s = c.shape;
              s.family = family, s.format = format, s.layers = 3;
              s.hidden = s.width = size, s.head_dim = s.value_dim = 32;
              s.vocab = size == 96 ? 61 : 160, s.shared_width = shared_width;
              c.dense = family_formats(layers, others);
              add_possible(c, directory, pairs);
            }
  return pairs;
}

// The first meet each family in each format.
void choose_family(std::mt19937& random, size_t i, const std::vector<Family>& families,
                   RandomShape& s) {
  const bool is_first = i < families.size() * kOnDisk.size();
  if (!is_first) i = random();
  s.family = families[i % families.size()];
  s.format = kOnDisk[i / families.size() % kOnDisk.size()];
  if (!is_first && random() % 2 == 0) s.format = Format::kBF16;  // may become what it is encoded to
}

Case random_family_case(std::mt19937& random, size_t i) {
  Case c = random_case(random);
  RandomShape& s = c.shape;
  choose_family(random, i, kFamilies, s);
  s.is_tied = random() % 3 == 0, s.over_all = random() % 2 == 0;
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

// Whatever their formats, sizes and settings.
TEST(AnyShape, PairsOfRowsOfOtherFamiliesEqualTheTwins) {
  const Possible possible = possible_family_pairs(kFamilies, test::TempDir().path());
  check_pairs(possible, /*are_all=*/true, number_of("NIBBLE_ANY_FAMILIES", 100), 50000,
              random_family_case);
}

// ---- families with recurrent layers ----

const std::vector<Family> kHybrids = {Family::kQwen3Next, Family::kQwen35, Family::kQwen35Moe,
                                      Family::kNemotronH};

Case random_hybrid_case(std::mt19937& random, size_t i) {
  Case c = random_case(random);
  RandomShape& s = c.shape;
  choose_family(random, i, kHybrids, s);
  s.layers = 3;  // two recurrent ones, with experts or an MLP between them
  s.is_tied = random() % 4 == 0, s.over_all = random() % 2 == 0;
  s.key_heads = 1 + static_cast<int64_t>(random() % 3);
  s.value_heads = s.key_heads * any_of<int64_t>(random, {1, 2, 3, 8});
  s.key_dim = any_of<int64_t>(random, {8, 20, 33, 64}), s.taps = any_of<int64_t>(random, {2, 4});
  const bool is_whole = has_blocks_of_32(s.format) || random() % 2 == 0;
  c.dense = {};
  if (is_whole) {
    if (s.head_dim % 4 != 0 || s.q_heads * s.head_dim % 32 != 0) s.head_dim = 32;
    s.value_dim = any_of<int64_t>(random, {32, 64});
    c.dense = family_formats(any_of(random, kDenseFormats), any_of(random, kDenseFormats));
  } else {  // sizes that no format with blocks has
    s.hidden = any_of<int64_t>(random, {18, 34, 50, 130, 200});
    s.width = any_of<int64_t>(random, {7, 33, 131, 150});
    s.value_dim = any_of<int64_t>(random, {3, 16, 40});
    if (s.head_dim % 4 != 0) s.head_dim = 20;
  }
  if (random() % 2 == 0)  // by itself; else one of the experts, or two of NemotronH's
    s.shared_width = is_whole ? 32 + 32 * (random() % 4) : 1 + random() % 100;
  else if (s.family == Family::kNemotronH)
    s.shared_width = s.width * static_cast<int64_t>(1 + random() % 2);
  return c;
}

// What the tables give calls of one op depends on each one's sizes; of the list is what they give
// where all sizes fit, or none.
TEST(AnyShape, PairsOfRowsOfFamiliesWithRecurrentLayersEqualTheTwins) {
  const Possible possible = possible_family_pairs(kHybrids, test::TempDir().path());
  check_pairs(possible, /*are_all=*/false, number_of("NIBBLE_ANY_HYBRIDS", 100), 70000,
              random_hybrid_case);
}

}  // namespace
}  // namespace nibble
