#include "ops/site.h"

#include <gtest/gtest.h>

#include "dist/test_ranks.h"

namespace nibble::ops {
namespace {

Site site(const SiteKey& key, Problem problem, std::vector<std::string> reads,
          std::vector<std::string> writes) {
  return {key, site_label(key), std::move(problem), std::move(reads), std::move(writes)};
}

// A layer of experts beside a second projection, which gpt-oss has not.
Sites layer(int64_t experts) {
  constexpr int64_t kHidden = 128, kWidth = 64, kTopK = 2;
  Sites sites;
  sites.push_back(site({Op::kNormRoute, 0}, NormRouteDesc{kHidden, experts, kTopK}, {"y", "d"},
                       {"x", "h", "routing"}));
  sites.push_back(
      site({Op::kMoeUp, 0}, MoeUpDesc{kHidden, kWidth, experts, kTopK}, {"h", "routing"}, {"u"}));
  sites.push_back(site({Op::kOutProj, 0}, OutProjDesc{kHidden, kHidden}, {"h"}, {"d"}));
  sites.push_back(site({Op::kOutProj, 0, "second"}, OutProjDesc{kHidden, kWidth}, {"h"}, {"d"}));
  sites.push_back(site({Op::kMoeDown, 0}, MoeDownDesc{kHidden, kWidth, experts, kTopK},
                       {"u", "routing"}, {"d"}));
  sites.push_back(site({Op::kNormRoute, 1}, NormRouteDesc{kHidden, experts, kTopK}, {"y", "d"},
                       {"x", "h", "routing"}));
  return sites;
}

KernelOptions on_h200() {
  KernelOptions options;
  options.gpu = cuda::h200();
  options.activations = ActFormat::kBF16;
  return options;
}

TEST(Site, ReadersEndWhereABufferIsWrittenAgain) {
  Sites sites = layer(32);
  const auto labels = [&](size_t writer, const char* buffer) {
    std::vector<std::string> all;
    for (const Site* reader : readers_of(sites, sites[writer], buffer))
      all.push_back(reader->label);
    return all;
  };
  using Labels = std::vector<std::string>;
  EXPECT_EQ(labels(0, "routing"), (Labels{"moe_up.0", "moe_down.0"}));
  EXPECT_EQ(labels(0, "h"), (Labels{"moe_up.0", "out_proj.0", "out_proj/second.0"}));
  EXPECT_EQ(labels(2, "d"), Labels{});  // the second writes it before anyone reads
  EXPECT_EQ(labels(4, "d"), Labels{"norm_route.1"});
}

TEST(Site, AKindMayOccurTwiceInALayer) {
  Sites sites = layer(32);
  plan_sites(sites, on_h200());
  EXPECT_STREQ(sites[2].plan.row<OutProjKernel>(1).name, "cuda_bf16_decode");
  EXPECT_STREQ(sites[3].plan.row<OutProjKernel>(1).name, "cuda_bf16_decode");
  int entries = 0;
  for (const PlanEntry& entry : plan_entries(sites)) entries += entry.site == sites[3].key;
  EXPECT_EQ(entries, 3);  // of few tokens, of some and of many
}

// norm_route leaves the choice only where all that read the routing can make it.
TEST(Site, TheChoiceIsLeftToReadersThatAllMakeIt) {
  Sites sites = layer(32);
  plan_sites(sites, on_h200());
  EXPECT_EQ(sites[0].readers_take, 4);
  EXPECT_EQ(sites[5].readers_take, 0);  // nobody reads it
  KernelOptions forced = on_h200();
  forced.force("moe_down=sm90_w4a16_gemm");
  forced.any_size = true;
  plan_sites(sites, forced);
  EXPECT_EQ(sites[0].readers_take, 0);
}

// Of few tokens, where their experts are met token by token.
TEST(Site, TheChoiceOfFewTokensIsLeft) {
  for (const Format format : {Format::kMxfp4, Format::kNvfp4}) {
    Sites sites = layer(32);
    std::get<MoeUpDesc>(sites[1].problem).format = format;
    for (Site& site : sites)
      if (auto* const down = std::get_if<MoeDownDesc>(&site.problem)) down->format = format;
    plan_sites(sites, on_h200());
    EXPECT_EQ(sites[0].readers_take, 4);
    KernelOptions gb10;
    gb10.gpu = cuda::gb10();
    plan_sites(sites, gb10);
    EXPECT_EQ(sites[0].readers_take, 1);
  }
}

// A sum in blocks is left to the one norm that reads it, in steps whose rows keep that apart.
TEST(Site, SumsOfManyTokensAreLeftToTheNormBehind) {
  constexpr int64_t kNever = INT64_MAX;
  KernelOptions options = on_h200();
  options.has_peer_memory = true;
  const auto left_from = [&](int64_t hidden, const Problem& reader, bool has_other_reader = false) {
    Sites sites;
    sites.push_back(site({Op::kAllReduce, 0}, AllReduceDesc{hidden, 2}, {"d"}, {"d"}));
    sites.push_back(site({op_of(reader), 0}, reader, {"y", "d"}, {"x", "h", "q", "routing"}));
    if (has_other_reader)
      sites.push_back(site({Op::kOutProj, 0, "other"}, OutProjDesc{hidden, hidden}, {"d"}, {"h"}));
    plan_sites(sites, options);
    return sites[0].left_from;
  };
  const auto route = [](int64_t hidden) { return NormRouteDesc{hidden, 128, 4}; };
  EXPECT_EQ(left_from(2880, route(2880)), 33);  // from the first bucket on whose sums go in blocks
  EXPECT_EQ(left_from(2880, route(2880), /*has_other_reader=*/true), kNever);
  EXPECT_EQ(left_from(2884, route(2884)), kNever);
  EXPECT_EQ(left_from(16384, route(16384)), kNever);
  // Of few tokens the product may norm by itself.
  const NormQkvDesc qkv{.hidden = 4096, .q_heads = 32, .kv_heads = 8, .head_dim = 128};
  EXPECT_EQ(left_from(4096, qkv), 33);
  EXPECT_EQ(left_from(4096, NormLinearDesc{4096, 12288}), 33);
  EXPECT_EQ(left_from(4096, MlpUpDesc{4096, 14336}), 65);
  EXPECT_EQ(left_from(4096, MlpUpDesc{4096, 14336, Format::kNvfp4}), 65);
  EXPECT_EQ(left_from(4096, MlpUpDesc{4096, 14336, Format::kMxfp8}), 33);
  EXPECT_EQ(left_from(4096, NormUnembedDesc{4096, 128256}), kNever);
  EXPECT_EQ(left_from(4096, OutProjDesc{4096, 4096}), kNever);
  options.has_peer_memory = false;
  options.has_nccl = true;
  EXPECT_EQ(left_from(2880, route(2880)), kNever);
}

// Of those, a dense BF16 product of a prompt's tokens sends its rows itself, and experts leave the
// norm what combine() would add up.
TEST(Site, ProductsDoTheirPartOfSumsThatAreLeft) {
  constexpr int64_t kNever = INT64_MAX;
  const auto product_of = [&](int64_t hidden, const Problem& product, const Problem& behind,
                              const KernelOptions& options) {
    Sites sites;
    sites.push_back(site({op_of(product), 0}, product, {"u"}, {"d"}));
    sites.push_back(site({Op::kAllReduce, 0}, AllReduceDesc{hidden, 2}, {"d"}, {"d"}));
    sites.push_back(site({Op::kNormLinear, 0}, NormLinearDesc{hidden, 12288}, {"y", "d"}, {"x"}));
    sites.push_back(site({op_of(behind), 1}, behind, {"x"}, {"att"}));
    plan_sites(sites, options);
    EXPECT_EQ(sites[0].sent_from, sites[1].sent_from);
    EXPECT_EQ(left_choices_bytes(sites, 600),
              sites[0].choices_left_from > 600 ? 0 : 2 * 600 * 4 * hidden + 128);
    return sites[0];
  };
  const AttentionDesc mixer{32, 8, 128};
  const OutProjDesc bf16{2880, 2048}, nvfp4{2880, 2048, Format::kNvfp4};
  EXPECT_EQ(product_of(2880, bf16, mixer, on_h200()).sent_from, 1024);
  EXPECT_EQ(product_of(1024, OutProjDesc{1024, 2048}, mixer, on_h200()).sent_from, 2049);
  EXPECT_EQ(product_of(2880, nvfp4, mixer, on_h200()).sent_from, kNever);
  const MoeDownDesc experts{2880, 2880, 128, 4};
  MoeDownDesc more = experts;
  more.adds = true;
  EXPECT_EQ(product_of(2880, experts, mixer, on_h200()).sent_from, kNever);
  EXPECT_EQ(product_of(2880, experts, mixer, on_h200()).choices_left_from, 513);
  EXPECT_EQ(product_of(2880, more, mixer, on_h200()).choices_left_from, kNever);
  EXPECT_EQ(product_of(2880, bf16, mixer, on_h200()).choices_left_from, kNever);
  // Behind the last mixer some rows' sum alone may be wanted.
  EXPECT_EQ(product_of(2880, bf16, OutputGateDesc{}, on_h200()).sent_from, kNever);
  EXPECT_EQ(product_of(2880, experts, OutputGateDesc{}, on_h200()).choices_left_from, kNever);
  KernelOptions exact = on_h200();
  exact.exact = true;
  EXPECT_EQ(product_of(2880, bf16, mixer, exact).sent_from, kNever);
  EXPECT_EQ(product_of(2880, experts, mixer, exact).choices_left_from, kNever);
}

// A sum that one rank would make before the norm is made so by all, and one that the product of one
// rank would not send is sent by none.
TEST(Site, RanksLeaveTheSumsThatAllWould) {
  using Froms = std::vector<int64_t>;
  std::vector<Froms> left(3), sent(3);
  dist::on_every_rank(dist::test_ranks(3), [&](dist::TcpComm& comm) {
    Sites sites;
    sites.push_back(site({Op::kOutProj, 0}, OutProjDesc{2880, 2048}, {"att"}, {"d"}));
    for (const int64_t from : {int64_t{33}, int64_t{17 * (comm.rank() + 1)},
                               comm.rank() == 1 ? INT64_MAX : int64_t{33}}) {
      sites.push_back(site({Op::kAllReduce, 0}, AllReduceDesc{2880, 3}, {"d"}, {"d"}));
      sites.back().left_from = from;
      sites.back().sent_from = 1000 + 100 * comm.rank();
    }
    sites.push_back(site({Op::kNormRoute, 0}, NormRouteDesc{2880, 128, 4}, {"y", "d"}, {"x"}));
    agree_on_left_sums(sites, comm);
    for (const Site& s : sites) left[comm.rank()].push_back(s.left_from);
    for (const Site& s : sites) sent[comm.rank()].push_back(s.sent_from);
  });
  for (const Froms& all : left) EXPECT_EQ(all, (Froms{INT64_MAX, 33, 51, INT64_MAX, INT64_MAX}));
  for (const Froms& all : sent) EXPECT_EQ(all, (Froms{1200, 1200, 1200, INT64_MAX, INT64_MAX}));
}

// norm_qkv leaves heads of 128 dims to attention that takes them, in steps of few tokens.
TEST(Site, HeadsAreLeftToAttentionThatTakesThem) {
  const NormQkvDesc heads{.hidden = 4096,
                          .q_heads = 32,
                          .kv_heads = 8,
                          .head_dim = 128,
                          .format = Format::kNvfp4,
                          .norms_heads = true};
  const auto taken = [](const NormQkvDesc& desc, const KernelOptions& options) {
    Sites sites;
    sites.push_back({.key = {Op::kNormQkv, 0}, .problem = desc, .writes = {"q", "kv"}});
    sites.push_back({.key = {Op::kAttention, 0},
                     .problem = AttentionDesc{desc.q_heads, desc.kv_heads, desc.head_dim},
                     .reads = {"q", "kv"},
                     .writes = {"att"}});
    plan_sites(sites, options);
    EXPECT_EQ(left_floats(sites, 4), std::min(4, sites[0].readers_take) * rows_of(desc));
    return sites[0].readers_take;
  };
  EXPECT_EQ(taken(heads, on_h200()), 8);
  KernelOptions other = on_h200();
  other.exact = true;
  EXPECT_EQ(taken(heads, other), 0);
  other = on_h200();
  other.force("attention=cuda_bf16_spans");
  EXPECT_EQ(taken(heads, other), 0);
  NormQkvDesc gated = heads, partly = heads, wide = heads;
  gated.has_gates = true, partly.rotary_dim = 64, wide.head_dim = 256;
  for (const NormQkvDesc& desc : {gated, partly, wide}) EXPECT_EQ(taken(desc, on_h200()), 0);
}

// What a loaded weight holds refuses rows, and others of the same layout run in their place.
TEST(Site, RowsRefuseWeightsByTheirFacts) {
  Sites sites = layer(32);
  std::get<MoeUpDesc>(sites[1].problem).act = {.limit = 7};
  plan_sites(sites, on_h200());
  EXPECT_STREQ(sites[1].plan.row<MoeUpKernel>(128).name, "sm90_w4a16_narrow");
  std::get<MoeUpDesc>(sites[1].problem).facts.fits_e5m2 = false;
  sites[1].weight.layout = sites[1].plan.layout();
  const uint8_t codes = 0;
  sites[1].weight.codes = &codes;
  plan_sites(sites, on_h200());
  EXPECT_STREQ(sites[1].plan.row<MoeUpKernel>(128).name, "cuda_w4a16_batch");
  KernelOptions fp8 = on_h200();
  fp8.activations = ActFormat::kFp8;
  plan_sites(sites, fp8);
  EXPECT_STREQ(sites[1].plan.row<MoeUpKernel>(8192).name, "sm90_w4a8_gemm");
  std::get<MoeUpDesc>(sites[1].problem).act = {};  // not clamped
  plan_sites(sites, fp8);
  EXPECT_STREQ(sites[1].plan.row<MoeUpKernel>(8192).name, "sm90_w4a16_gemm");
  std::get<MoeUpDesc>(sites[1].problem).act = {.limit = 7};
  plan_sites(sites, fp8);
  EXPECT_STREQ(sites[1].plan.row<MoeUpKernel>(8192).name, "sm90_w4a8_gemm");
  std::get<MoeUpDesc>(sites[1].problem).facts.fits_e4m3 = false;
  plan_sites(sites, fp8);
  EXPECT_STREQ(sites[1].plan.row<MoeUpKernel>(8192).name, "sm90_w4a16_gemm");
}

TEST(Site, NamesTheKernelsOfEveryOp) {
  for (int op = 0; op < kNumOps; ++op) {
    const std::vector<std::string> names = kernel_names(static_cast<Op>(op));
    ASSERT_FALSE(names.empty());
    EXPECT_EQ(names.back(), "ref");
  }
  EXPECT_EQ(kernel_names(Op::kEmbed)[0], "cuda_bf16");
}

TEST(Site, ProfilesLeaveOutASiteOrAnOp) {
  const Sites sites = layer(32);
  Ctx cx;
  std::string told;
  cx.on_op = [&](const char* label) { told = label; };
  EXPECT_TRUE(cx.begin(sites[3]));
  EXPECT_EQ(told, "out_proj/second.0");
  EXPECT_EQ(cx.last_op(), told);
  cx.left_out = "out_proj.0";
  EXPECT_FALSE(cx.begin(sites[2]));
  EXPECT_TRUE(cx.begin(sites[3]));
  cx.left_out = "out_proj";
  EXPECT_FALSE(cx.begin(sites[3]));
  EXPECT_TRUE(cx.begin(sites[4]));
}

TEST(SiteDeathTest, ARowWithoutAKernelCannotRun) {
  constexpr EmbedKernel kRows[] = {
      {"elsewhere", [](const EmbedDesc&, const KernelOptions&) -> const char* { return nullptr; },
       nullptr}};
  Site embed = site({Op::kEmbed}, EmbedDesc{}, {}, {"x"});
  embed.plan = SitePlan(embed.key, std::span<const EmbedKernel>(kRows), EmbedDesc{}, {});
  EXPECT_EQ(embed.plan.entries()[0].kernel, "elsewhere");
  Ctx cx;
  EXPECT_DEATH(ops::embed(cx, embed, {}, {}, {}), "CHECK");
}

}  // namespace
}  // namespace nibble::ops
