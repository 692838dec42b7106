// What ranks hold of a model: every cut by itself, every weight of random models of all families
// and formats, and whole steps of several ranks against the twins of one.
#include "models/shard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "dist/test_ranks.h"
#include "io/io_test.h"
#include "models/hybrid_config.h"
#include "models/nemotron_h_config.h"
#include "models/test_any_shape.h"
#include "ops/matmul_ref.h"

namespace nibble {
namespace {

using namespace any_shape;  // NOLINT

std::vector<Cut> of_ranks(int32_t size, const std::function<Cut(const Shard&)>& cut) {
  std::vector<Cut> cuts;
  for (int32_t r = 0; r < size; ++r) cuts.push_back(cut({r, size}));
  return cuts;
}

std::vector<int64_t> sizes(const std::vector<Cut>& cuts) {
  std::vector<int64_t> all;
  for (const Cut& cut : cuts) all.push_back(cut.size);
  return all;
}

void expect_joined(const std::vector<Cut>& cuts, int64_t n) {
  int64_t at = 0;
  for (const Cut& cut : cuts) {
    EXPECT_EQ(cut.all, n);
    EXPECT_EQ(cut.begin, at);
    EXPECT_GT(cut.size, 0);
    at = cut.end();
  }
  EXPECT_EQ(at, n);
}

TEST(Shard, ColumnsAreCutAtTiles) {
  const auto of = [](int64_t n, int64_t block, int32_t size) {
    const auto cuts = of_ranks(size, [&](const Shard& s) { return cut_columns(n, block, s); });
    expect_joined(cuts, n);
    return sizes(cuts);
  };
  // gpt-oss's experts: 45 tiles of 64.
  EXPECT_EQ(of(2880, 32, 2), (std::vector<int64_t>{1472, 1408}));
  EXPECT_EQ(of(2880, 32, 4), (std::vector<int64_t>{768, 704, 704, 704}));
  EXPECT_EQ(of(2880, 128, 2), (std::vector<int64_t>{1536, 1344}));  // FP8's last block is short
  EXPECT_EQ(of(256, 32, 8), (std::vector<int64_t>(8, 32)));         // too few tiles: by blocks
  EXPECT_EQ(of(33, 1, 3), (std::vector<int64_t>{16, 16, 1}));
  EXPECT_EQ(of(7, 1, 8 - 1), (std::vector<int64_t>(7, 1)));
  EXPECT_THAT(test::error_of([] {
                cut_columns(128, 32, {0, 8});
              }),
              testing::HasSubstr("4 blocks of 32 in a row of 128 are fewer than the ranks"));
}

TEST(Shard, HeadsStayWithTheKvHeadThatTheyRead) {
  for (const auto& [q, kv] : {std::pair{64, 8}, {8, 2}, {16, 2}, {24, 3}, {40, 8}, {8, 8}, {12, 1}})
    for (const int32_t size : {1, 2, 3, 4, 8}) {
      const int group = q / kv;
      std::vector<Cut> queries;
      for (int32_t r = 0; r < size; ++r) {
        const HeadCuts heads = cut_heads(q, kv, {r, size});
        queries.push_back(heads.q);
        // As attention numbers them: query head h reads KV head h / (Q / G).
        ASSERT_EQ(heads.q.size % heads.kv.size, 0);
        for (int64_t h = 0; h < heads.q.size; ++h)
          EXPECT_EQ(heads.kv.begin + h / (heads.q.size / heads.kv.size),
                    (heads.q.begin + h) / group)
              << q << " " << kv << " rank " << r << " of " << size;
      }
      expect_joined(queries, q);
    }
  EXPECT_THAT(test::error_of([] {
                cut_heads(4, 2, {0, 8});
              }),
              testing::HasSubstr("4 query heads are fewer than the ranks"));
}

// ---- weights ----

using Matrix = std::vector<std::vector<float>>;  // rows; experts' one behind the other

Matrix decoded(const Weight& w) {
  Matrix rows;
  for (int64_t e = 0; e < w.experts; ++e)
    for (int64_t n = 0; n < w.rows; ++n) {
      rows.emplace_back(w.cols);
      ops::ref::decode_row(w, e, n, rows.back().data());
      rows.back().push_back(w.bias == nullptr ? 0 : static_cast<float>(ops::ref::bias_of(w, e, n)));
    }
  return rows;
}

std::vector<Matrix> rows_of_experts(const Weight& w) {
  const Matrix all = decoded(w);
  std::vector<Matrix> experts;
  for (int64_t e = 0; e < w.experts; ++e)
    experts.emplace_back(all.begin() + e * w.rows, all.begin() + (e + 1) * w.rows);
  return experts;
}

// Rows one behind the other, expert by expert; a bias stands behind each row.
Matrix joined_by_rows(const std::vector<const Weight*>& parts) {
  Matrix all;
  for (int64_t e = 0; e < parts[0]->experts; ++e)
    for (const Weight* part : parts) {
      const Matrix rows = rows_of_experts(*part)[e];
      all.insert(all.end(), rows.begin(), rows.end());
    }
  return all;
}

// Rows of all ranks side by side; the bias is the first rank's.
Matrix joined_by_columns(const std::vector<const Weight*>& parts) {
  Matrix all = decoded(*parts[0]);
  for (auto& row : all) row.pop_back();
  for (const Weight* part : parts) {
    const Matrix more = decoded(*part);
    for (size_t n = 0; part != parts[0] && n < all.size(); ++n) {
      all[n].insert(all[n].end(), more[n].begin(), more[n].end() - 1);
      EXPECT_EQ(more[n].back(), 0) << "a bias that is added twice";
    }
  }
  const Matrix first = decoded(*parts[0]);
  for (size_t n = 0; n < all.size(); ++n) all[n].push_back(first[n].back());
  return all;
}

// q, k and v of all ranks; of a KV head that several have, each must have the same.
Matrix joined_qkv(const std::vector<const Weight*>& parts, const RandomShape& s) {
  Matrix q, kv[2];
  for (size_t r = 0; r < parts.size(); ++r) {
    const auto size = static_cast<int32_t>(parts.size());
    const HeadCuts heads = cut_heads(s.q_heads, s.kv_heads, {static_cast<int32_t>(r), size});
    const Matrix rows = decoded(*parts[r]);
    auto at = rows.begin();
    const int64_t gated = is_hybrid(s.family) && s.family != Family::kNemotronH ? 2 : 1;
    const auto take = [&](Matrix& to, const Cut& cut) {
      const Cut of = cut.times(s.head_dim * (&to == &q ? gated : 1));
      to.resize(std::max<size_t>(to.size(), of.end()));
      for (int64_t n = of.begin; n < of.end(); ++n, ++at) {
        EXPECT_TRUE(to[n].empty() || to[n] == *at);
        to[n] = *at;
      }
    };
    take(q, heads.q), take(kv[0], heads.kv), take(kv[1], heads.kv);
  }
  for (const Matrix& more : kv) q.insert(q.end(), more.begin(), more.end());
  return q;
}

// What each rank has of a matrix, or of a vector's elements as rows of one.
struct Part {
  Matrix rows;
  Cuts of;
};

// In their places; what several have must be the same, and nothing may be missing.
Matrix joined_by_places(const std::vector<Part>& parts) {
  Matrix all(parts[0].of.all());
  for (const Part& part : parts) {
    EXPECT_EQ(std::ssize(part.rows), part.of.size());
    for (size_t i = 0; i < part.rows.size(); ++i) {
      std::vector<float>& to = all.at(part.of.find(static_cast<int64_t>(i)));
      EXPECT_TRUE(to.empty() || to == part.rows[i]);
      to = part.rows[i];
    }
  }
  for (const auto& row : all) EXPECT_FALSE(row.empty());
  return all;
}

Matrix rows_of(const float* values, int64_t n, int64_t cols) {
  Matrix rows;
  for (int64_t i = 0; i < n; ++i) rows.emplace_back(values + i * cols, values + (i + 1) * cols);
  return rows;
}

// Weights of layers with a state: of `site` what ranks have, beside the whole.
class StateLayer {
 public:
  StateLayer(const ops::Site& whole, std::vector<const ops::Site*> ranks)
      : whole_(whole), ranks_(std::move(ranks)) {}
  // floats(site): some of its weights; cuts(rank): which rows of all those are.
  template <typename Floats, typename OfRank>
  void expect_join(const char* what, int64_t cols, const Floats& floats, const OfRank& cuts) const {
    SCOPED_TRACE(what);
    std::vector<Part> parts;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      const Cuts of = cuts({static_cast<int32_t>(r), static_cast<int32_t>(ranks_.size())});
      parts.push_back({rows_of(floats(*ranks_[r]), of.size(), cols), of});
    }
    EXPECT_EQ(rows_of(floats(whole_), parts[0].of.all(), cols), joined_by_places(parts));
  }

 private:
  const ops::Site& whole_;
  const std::vector<const ops::Site*> ranks_;
};

void expect_delta_joins(const ops::Site& whole, const std::vector<const ops::Site*>& ranks) {
  const auto& desc = std::get<ops::DeltaRuleDesc>(whole.problem);
  const StateLayer layer(whole, ranks);
  const auto channels = [&](const Shard& s) { return DeltaCuts(desc, s).channels; };
  const auto heads = [&](const Shard& s) { return Cuts(DeltaCuts(desc, s).heads); };
  const auto all = [&](const Shard&) { return Cuts(desc.value_dim); };
  layer.expect_join(
      "conv", desc.taps, [](const auto& s) { return s.delta.conv; }, channels);
  layer.expect_join(
      "a_log", 1, [](const auto& s) { return s.delta.a_log; }, heads);
  layer.expect_join(
      "dt_bias", 1, [](const auto& s) { return s.delta.dt_bias; }, heads);
  layer.expect_join(
      "norm", 1, [](const auto& s) { return s.delta.norm; }, all);
}

void expect_mamba_joins(const ops::Site& whole, const std::vector<const ops::Site*>& ranks) {
  const auto& desc = std::get<ops::Mamba2Desc>(whole.problem);
  const StateLayer layer(whole, ranks);
  const auto channels = [&](const Shard& s) { return MambaCuts(desc, s).channels; };
  const auto heads = [&](const Shard& s) { return Cuts(MambaCuts(desc, s).heads); };
  const auto inner = [&](const Shard& s) {
    return Cuts(MambaCuts(desc, s).heads.times(desc.head_dim));
  };
  layer.expect_join(
      "conv", desc.taps, [](const auto& s) { return s.mamba.conv; }, channels);
  layer.expect_join(
      "conv bias", 1, [](const auto& s) { return s.mamba.conv_bias; }, channels);
  layer.expect_join(
      "a_log", 1, [](const auto& s) { return s.mamba.a_log; }, heads);
  layer.expect_join(
      "d", 1, [](const auto& s) { return s.mamba.d; }, heads);
  layer.expect_join(
      "dt_bias", 1, [](const auto& s) { return s.mamba.dt_bias; }, heads);
  layer.expect_join(
      "norm", 1, [](const auto& s) { return s.mamba.norm; }, inner);
}

// Rows of in_proj and of what makes gates, which follow from the heads that a rank has.
Matrix joined_inputs(const ops::Site& site, const std::vector<const Weight*>& parts,
                     const RandomShape& s) {
  std::vector<Part> places;
  for (size_t r = 0; r < parts.size(); ++r) {
    const Shard shard{static_cast<int32_t>(r), static_cast<int32_t>(parts.size())};
    Cuts rows = 0;
    if (s.family == Family::kNemotronH) {
      rows = MambaCuts({.heads = s.value_heads,
                        .groups = s.key_heads,
                        .head_dim = s.value_dim,
                        .state_dim = s.key_dim},
                       shard)
                 .inputs;
    } else {
      const bool in_order = s.family != Family::kQwen3Next;
      const ops::DeltaRuleDesc desc{
          .key_heads = s.key_heads,
          .value_heads = s.value_heads,
          .key_dim = s.key_dim,
          .value_dim = s.value_dim,
          .inputs = in_order ? ops::DeltaInputs::kInOrder : ops::DeltaInputs::kByKeyHead};
      const DeltaCuts cuts(desc, shard);
      const bool is_gates = site.key.op == ops::Op::kOutProj;
      rows = is_gates ? cuts.gates : cuts.inputs;
      const auto behind = [&](int64_t n, int64_t begin, const Cut& cut) {
        return Cut(n, begin + cut.begin, cut.size);
      };
      if (in_order && is_gates)
        rows = {behind(2 * s.value_heads, 0, cuts.heads),
                behind(2 * s.value_heads, s.value_heads, cuts.heads)};
      if (in_order && !is_gates) {
        Cuts all{};
        for (const Cut& part : rows.parts) all.add(behind(desc.width(), 0, part));
        all.add(behind(desc.width(), desc.channels(), cuts.values));
        rows = all;
      }
    }
    places.push_back({decoded(*parts[r]), rows});
  }
  return joined_by_places(places);
}

void expect_sites_join(const ops::Sites& whole, const std::vector<const ops::Sites*>& ranks,
                       const RandomShape& shape) {
  for (const ops::Site& site : whole) {
    SCOPED_TRACE(site.label);
    std::vector<const Weight*> parts;
    std::vector<const ops::Site*> others;
    for (const ops::Sites* sites : ranks) {
      const auto same =
          std::ranges::find_if(*sites, [&](const ops::Site& s) { return s.key == site.key; });
      ASSERT_NE(same, sites->end());
      parts.push_back(&same->weight), others.push_back(&*same);
      if (site.norm.weight == nullptr) continue;
      EXPECT_EQ(std::vector(site.norm.weight, site.norm.weight + shape.hidden),
                std::vector(same->norm.weight, same->norm.weight + shape.hidden));
    }
    if (site.key.op == ops::Op::kAttention && site.sinks != nullptr) {
      std::vector<uint16_t> sinks;
      for (const ops::Sites* sites : ranks)
        for (const ops::Site& s : *sites)
          if (s.key == site.key)
            sinks.insert(sinks.end(), s.sinks,
                         s.sinks + std::get<ops::AttentionDesc>(s.problem).q_heads);
      EXPECT_EQ(sinks, std::vector(site.sinks, site.sinks + shape.q_heads));
    }
    if (site.key.op == ops::Op::kDeltaRule) expect_delta_joins(site, others);
    if (site.key.op == ops::Op::kMamba2) expect_mamba_joins(site, others);
    if (site.weight.rows == 0) continue;
    const Matrix all = decoded(site.weight);
    switch (site.key.op) {
      case ops::Op::kNormQkv:
        EXPECT_EQ(all, joined_qkv(parts, shape));
        break;
      case ops::Op::kNormLinear:
        EXPECT_EQ(all, joined_inputs(site, parts, shape));
        break;
      case ops::Op::kOutProj:
        if (site.key.name == "gates") {
          EXPECT_EQ(all, joined_inputs(site, parts, shape));
          break;
        }
        [[fallthrough]];
      case ops::Op::kMoeDown:
        EXPECT_EQ(all, joined_by_columns(parts));
        break;
      case ops::Op::kEmbed:
      case ops::Op::kNormRoute:
        for (const Weight* part : parts) EXPECT_EQ(all, decoded(*part));
        break;
      default:
        EXPECT_EQ(all, joined_by_rows(parts));
    }
  }
}

// Of a shape that may be split: heads and widths for eight ranks, whole blocks in every head.
Case random_split_case(std::mt19937& random, Family family) {
  Case c;
  RandomShape& s = c.shape;
  s.family = family;
  s.hidden = any_of<int64_t>(random, {64, 96, 128});
  s.width = any_of<int64_t>(random, {256, 288, 416});
  s.kv_heads = any_of<int64_t>(random, {1, 2, 3, 4, 8});
  s.q_heads = 8 * s.kv_heads;
  s.head_dim = 32;
  s.experts = any_of<int64_t>(random, {3, 5}), s.top_k = 2;
  s.vocab = any_of<int64_t>(random, {160, 199});
  s.seed = random();
  if (is_hybrid(family)) {
    s.key_heads = any_of<int64_t>(random, {1, 2, 8});
    s.value_heads = 8;  // of more one rank would join gates and inputs, and several would not
    s.key_dim = 24, s.value_dim = 32;
    if (family == Family::kNemotronH) s.key_heads = 8;
  }
  if (family != Family::kGptOss) {
    s.format = any_of<Format>(
        random, {Format::kBF16, Format::kF16, Format::kF32, Format::kNvfp4, Format::kFp8Row,
                 Format::kFp8Block, Format::kMxfp8, Format::kMxfp4, Format::kInt4G32});
    s.is_tied = random() % 3 == 0, s.over_all = random() % 2 == 0;
    // Heads here are smaller than FP8's blocks, and make fewer gates than the eight rows of INT4.
    if (is_hybrid(family) && (s.format == Format::kFp8Block || s.format == Format::kInt4G32))
      s.format = Format::kFp8Row;
    if (family == Family::kNemotronH) s.is_tied = false;
    if (s.format == Format::kFp8Block) {  // a head and a rank's part are whole blocks
      s.head_dim = 128, s.width = any_of<int64_t>(random, {1024, 1100});
      s.kv_heads = 1 + static_cast<int64_t>(random() % 2), s.q_heads = 8 * s.kv_heads;
    }
  }
  const std::vector<Format> dense = {Format::kBF16, Format::kMxfp8, Format::kMxfp4, Format::kNvfp4};
  for (Format* format : {&c.dense.qkv, &c.dense.out, &c.dense.unembed, &c.dense.mlp})
    *format = any_of(random, dense);
  if (s.width % 32 != 0) c.dense.mlp = Format::kBF16;
  c.kv = DType::kF32;
  c.kernels.allow_ref = true;
  return c;
}

std::unique_ptr<Model> load(const Case& c, const std::filesystem::path& directory,
                            const Shard& shard, cpu::ThreadPool& pool) {
  ops::Ctx cx;
  cx.pool = &pool;
  cx.kernels = c.kernels;
  LoadOptions options;
  options.dense = c.dense;
  options.shard = shard;
  return load_model(cx, directory, options);
}

class ShardOfFamily : public testing::TestWithParam<Family> {};

// Whatever the formats, on disk and encoded, and whichever layouts the kernels read.
TEST_P(ShardOfFamily, SlicesJoinToTheWhole) {
  const test::TempDir directory;
  cpu::ThreadPool pool(2);
  for (uint32_t i = 0; i < 3; ++i) {
    std::mt19937 random(100 * static_cast<uint32_t>(GetParam()) + i);
    Case c = random_split_case(random, GetParam());
    if (i % 2 == 0) run_twins(c.kernels);  // rows; else the layouts of fast kernels
    write_random_checkpoint(c.shape, directory.path());
    const auto whole = load(c, directory.path(), {}, pool);
    for (const ops::Site& site : sites_of(*whole)) EXPECT_NE(site.key.op, ops::Op::kAllReduce);
    for (const int32_t size : {1, 2, 3, 4, 8}) {
      SCOPED_TRACE("case " + std::to_string(i) + ", " + std::to_string(size) +
                   " ranks: " + std::string(format_name(c.shape.format)) + " " + describe(c));
      std::vector<std::unique_ptr<Model>> ranks;
      std::vector<const ops::Sites*> sites;
      int64_t bytes = 0;
      for (int32_t r = 0; r < size; ++r) {
        ranks.push_back(load(c, directory.path(), {r, size}, pool));
        sites.push_back(&sites_of(*ranks.back()));
        bytes += ranks.back()->info().weight_bytes;
        EXPECT_EQ(ranks.back()->info().parameters, whole->info().parameters);
      }
      EXPECT_GE(bytes, whole->info().weight_bytes);
      expect_sites_join(sites_of(*whole), sites, c.shape);
      if (HasFailure()) return;
    }
  }
}

// Of which each rank has some columns, in order; and what joins to nothing so simple.
constexpr std::array<std::string_view, 6> kCut = {"q",     "att",      "q_gate",
                                                  "mixed", "shared_u", "logits"};
bool is_of_rank(const std::string& buffer) {
  return buffer == "qkvz" || buffer == "gates" || buffer == "zxbcdt" || buffer == "shared_d";
}

// A rank's run over the others, and what all of them saw: buffers that all have must be alike to
// the bit, of others each has some columns.
Buffers run_ranks(const Case& c, const std::filesystem::path& directory, const Texts& texts,
                  const Steps& steps, int32_t size) {
  const auto ranks = dist::test_ranks(size);
  std::vector<Buffers> seen(size);
  dist::on_every_rank(ranks, [&](dist::TcpComm& comm) {
    ops::Ctx cx;
    cx.comm = &comm;
    Run(c, cx, directory, texts).all(steps, &seen[comm.rank()]);
  });
  Buffers all = seen[0];
  std::erase_if(all, [](const auto& buffer) { return is_of_rank(buffer.first.second); });
  for (auto& [key, rows] : all) {
    const bool is_cut = std::ranges::find(kCut, key.second) != kCut.end();
    for (int32_t r = 1; r < size; ++r)
      for (size_t t = 0; t < rows.size(); ++t) {
        const std::vector<float>& other = seen[r].at(key)[t];
        if (is_cut)
          rows[t].insert(rows[t].end(), other.begin(), other.end());
        else
          EXPECT_EQ(rows[t], other) << key.second << " of layer " << key.first << ", rank " << r;
      }
  }
  return all;
}

// A product's parts are rounded to float32 each, then added: off by half a unit of each part and of
// each sum, 2^-24 (ranks + 1) of the largest part, where one rank rounds once. Parts are up to some
// five times their sum; in the root mean square over a row that is below 5e-6 of the row, as
// float32 kernels are allowed against the twins.
constexpr double kTolerance = 5e-6;
// States divide by norms and add up over a text, as any_shape_test allows them.
constexpr double kOfStates = 3;

TEST_P(ShardOfFamily, SumsOfPartsEqualTheTwin) {
  const test::TempDir directory;
  Seen seen;
  for (uint32_t i = 0; i < 2; ++i) {
    std::mt19937 random(1000 + 100 * static_cast<uint32_t>(GetParam()) + i);
    const Case c = random_split_case(random, GetParam());
    write_random_checkpoint(c.shape, directory.path());
    const Texts texts = random_texts(random, {20, 20}, c.shape.vocab);
    Case twins = c;
    run_twins(twins.kernels);
    Buffers want;
    any_shape::Run(twins, {}, directory.path(), texts).all(one_step(texts), &want);
    std::erase_if(want, [](const auto& buffer) { return is_of_rank(buffer.first.second); });
    const double tolerance = kTolerance * (is_hybrid(c.shape.family) ? kOfStates : 1);
    for (const int32_t size : {2, 3, 4, 8}) {
      SCOPED_TRACE("case " + std::to_string(i) + ", " + std::to_string(size) +
                   " ranks: " + std::string(format_name(c.shape.format)) + " " + describe(c));
      for (const Case& by : {twins, c}) {
        const Buffers got =
            run_ranks(by, directory.path(), texts, random_steps(random, texts), size);
        compare(
            c, texts, want, got, [&](int64_t) { return tolerance; }, seen);
        if (HasFailure()) return;
      }
    }
  }
  EXPECT_LT(seen.parted, seen.rows / 10);
  print(seen);
}

INSTANTIATE_TEST_SUITE_P(Families, ShardOfFamily,
                         testing::Values(Family::kGptOss, Family::kLlama, Family::kQwen3,
                                         Family::kQwen3Moe, Family::kQwen3Next, Family::kQwen35,
                                         Family::kQwen35Moe, Family::kNemotronH));

// A Mamba2 layer's norm goes over a group, which is on one rank.
TEST(Shard, GroupsOfMamba2StayWhole) {
  const ops::Mamba2Desc all{.heads = 12, .groups = 4, .head_dim = 2, .state_dim = 3, .taps = 4};
  const MambaCuts third(all, {2, 3});
  EXPECT_EQ(third.here.groups, 1);
  EXPECT_EQ(third.here.heads, 3);
  EXPECT_EQ(third.heads, Cut(12, 9, 3));
  EXPECT_EQ(third.channels.parts, (std::vector<Cut>{{48, 18, 6}, {48, 33, 3}, {48, 45, 3}}));
  EXPECT_THAT(test::error_of([&] {
                MambaCuts(all, {0, 5});
              }),
              testing::HasSubstr("4 groups of Mamba2 heads are fewer than the ranks"));
}

// By key heads, as Qwen3-Next's inputs lie: where ranks are more, each has q and k of its key head
// and a part of its value heads.
TEST(Shard, DeltaNetsAreCutByKeyHeads) {
  ops::DeltaRuleDesc all{.key_heads = 2, .value_heads = 8, .key_dim = 3, .value_dim = 5, .taps = 4};
  const DeltaCuts half(all, {1, 2});
  EXPECT_EQ(half.inputs.parts, (std::vector<Cut>{{92, 46, 46}}));
  const DeltaCuts quarter(all, {3, 4});
  EXPECT_EQ(quarter.here.key_heads, 1);
  EXPECT_EQ(quarter.heads, Cut(8, 6, 2));
  EXPECT_EQ(quarter.channels.parts, (std::vector<Cut>{{52, 3, 3}, {52, 9, 3}, {52, 42, 10}}));
  EXPECT_EQ(quarter.inputs.parts, (std::vector<Cut>{{92, 46, 6}, {92, 62, 10}, {92, 82, 10}}));
  EXPECT_EQ(quarter.gates.parts, (std::vector<Cut>{{16, 10, 2}, {16, 14, 2}}));
}

// One rank's parts are all of it, whatever they are multiples of.
TEST(Shard, PartsThatLieTogetherAreOne) {
  const ops::DeltaRuleDesc all{.key_heads = 1, .value_heads = 3, .key_dim = 5, .value_dim = 7};
  const DeltaCuts whole(all, {});
  EXPECT_EQ(whole.channels.parts, std::vector<Cut>{all.channels()});
  EXPECT_EQ(whole.inputs.parts, std::vector<Cut>{all.width()});
  EXPECT_EQ(whole.gates.parts, std::vector<Cut>{6});
}

TEST(Shard, BlocksAreNotCut) {
  const test::TempDir directory;
  RandomShape shape{.family = Family::kLlama, .format = Format::kFp8Block};
  shape.hidden = 128, shape.width = 256, shape.q_heads = 2, shape.kv_heads = 2;
  shape.head_dim = 64;  // two of which share a block
  test::write_file(directory / "config.json", random_config(shape));
  const std::string config = directory / "config.json";
  EXPECT_EQ(test::error_of([&] { describe_model(config); }), "no error");
  EXPECT_THAT(test::error_of([&] {
                describe_model(config, {}, {0, 2});
              }),
              testing::HasSubstr("--tensor-parallel-size 2 would cut a block of "
                                 "model.layers.0.self_attn.o_proj.weight (fp8_block)"));
}

}  // namespace
}  // namespace nibble
