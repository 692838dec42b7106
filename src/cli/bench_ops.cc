// nibble bench ops: every kernel that runs here, by itself, on the shapes of gpt-oss-20b with
// random weights: the bytes it must move, the time that takes at the read bandwidth measured in the
// same run (its floor), and the share of the floor that it reaches.
#include "cli/bench_ops.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "cli/engine_setup.h"
#include "cli/json.h"
#include "cli/text_table.h"
#include "cli/version.h"
#include "cpu/isa.h"
#include "cpu/read_bandwidth.h"
#include "cpu/thread_pool.h"
#include "cpu/topology.h"
#include "formats/bf16.h"
#include "ops/attention/attention.h"
#include "ops/moe_down/moe_down.h"
#include "ops/moe_up/moe_up.h"
#include "ops/norm_qkv/norm_qkv.h"
#include "ops/norm_route/norm_route.h"
#include "ops/norm_unembed/norm_unembed.h"
#include "ops/out_proj/out_proj.h"
#include "tensor/buffer.h"

namespace nibble::cli {
namespace {

struct OpsFlags {
  std::vector<int64_t> tokens = {1, 8, 64, 512};
  std::vector<int64_t> contexts = {4096};
  std::string only;  // of "op/kernel"
  int threads = 0;
  std::string cpu_isa = "auto";
  bool json = false;
};

constexpr int64_t kHidden = 2880, kWidth = 2880, kExperts = 32, kChosen = 4, kVocab = 201088;
constexpr int64_t kQHeads = 64, kKvHeads = 8, kHeadDim = 64, kQWidth = kQHeads * kHeadDim;
constexpr int32_t kPage = 16;
// Weights that are cycled through, so that none is found in a cache.
constexpr int64_t kColdBytes = int64_t{384} << 20;
constexpr double kLeastSeconds = 0.3;
constexpr int kLeastRuns = 5;

struct Reached {
  std::string op, kernel, weights;
  int64_t tokens = 0, bytes = 0, flops = 0;
  double seconds = 0;
};

class Noise {
 public:
  uint64_t next() {
    state_ += 0x9e3779b97f4a7c15u;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    return z ^ (z >> 27);
  }
  float unit() { return static_cast<float>(next() >> 40) * 0x1p-23f - 1; }  // [-1, 1)

 private:
  uint64_t state_ = 1;
};

// Random matrices of one shape and layout, as many as leave the caches cold.
class ColdWeights {
 public:
  ColdWeights(Noise& noise, Format format, Layout layout, int64_t experts, int64_t rows,
              int64_t cols) {
    w_ = {.format = format, .layout = layout, .experts = experts, .rows = rows, .cols = cols};
    code_bytes_ = experts * rows * w_.row_code_bytes();
    scale_bytes_ = experts * rows * w_.row_scale_bytes();
    count_ = std::max<int64_t>(1, kColdBytes / code_bytes_);
    codes_ = Buffer(count_ * code_bytes_);
    scales_ = Buffer(count_ * scale_bytes_);
    auto* words = static_cast<uint64_t*>(codes_.data());
    // bf16: exponents around 2^-6; E4M3: no NaN.
    const uint64_t keep = format == Format::kBF16    ? 0x80ff80ff80ff80ffu
                          : format == Format::kMxfp8 ? 0xbfbfbfbfbfbfbfbfu
                                                     : ~uint64_t{0};
    const uint64_t set = format == Format::kBF16 ? 0x3c003c003c003c00u : 0;
    for (int64_t i = 0; i < codes_.size_bytes() / 8; ++i) words[i] = (noise.next() & keep) | set;
    auto* scales = static_cast<uint8_t*>(scales_.data());
    for (int64_t i = 0; i < scales_.size_bytes(); ++i)
      scales[i] = static_cast<uint8_t>(118 + noise.next() % 3);
  }
  const Weight& next() {
    const int64_t i = turn_++ % count_;
    w_.codes = static_cast<const uint8_t*>(codes_.data()) + i * code_bytes_;
    w_.scales = scale_bytes_ == 0 ? nullptr
                                  : static_cast<const uint8_t*>(scales_.data()) + i * scale_bytes_;
    return w_;
  }

 private:
  Weight w_;
  int64_t code_bytes_ = 0, scale_bytes_ = 0, count_ = 1, turn_ = 0;
  Buffer codes_, scales_;
};

class OpsBench {
 public:
  OpsBench(const OpsFlags& flags, cpu::ThreadPool& pool) : flags_(flags) {
    cx_.pool = &pool;
    options_.isa = cpu::force_isa(flags.cpu_isa);
  }

  std::vector<Reached> run() {
    for (const int64_t tokens : flags_.tokens) {
      norm_route(tokens);
      moe_up(tokens);
      moe_down(tokens);
      for (const Format format : {Format::kBF16, Format::kMxfp8, Format::kMxfp4}) {
        norm_qkv(tokens, format);
        out_proj(tokens, format);
        if (tokens <= 8) norm_unembed(tokens, format);
      }
      for (const int64_t context : flags_.contexts) attention(tokens, context);
    }
    return std::move(reached_);
  }

 private:
  float* floats(int64_t n) {
    buffers_.emplace_back(n * static_cast<int64_t>(sizeof(float)));
    auto* data = static_cast<float*>(buffers_.back().data());
    for (int64_t i = 0; i < n; ++i) data[i] = noise_.unit();
    return data;
  }
  Tensor matrix(int64_t rows, int64_t cols) {
    return make_tensor(floats(rows * cols), DType::kF32, {rows, cols});
  }

  // Median seconds of run(), which returns the bytes that it had to move.
  void measure(Reached row, int64_t scratch_bytes, const std::function<int64_t()>& run) {
    const Buffer scratch(scratch_bytes);
    cx_.scratch = {static_cast<std::byte*>(scratch.data()), static_cast<size_t>(scratch_bytes)};
    run();
    std::vector<double> seconds;
    double sum = 0;
    int64_t bytes = 0;
    while (sum < kLeastSeconds || seconds.size() < kLeastRuns) {
      const auto start = std::chrono::steady_clock::now();
      bytes += run();
      seconds.push_back(
          std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
      sum += seconds.back();
    }
    std::nth_element(seconds.begin(), seconds.begin() + seconds.size() / 2, seconds.end());
    row.seconds = seconds[seconds.size() / 2];
    row.bytes = bytes / static_cast<int64_t>(seconds.size());
    reached_.push_back(std::move(row));
  }

  // Calls bench(kernel) for each row of the op's table that serves `desc` here and is asked for,
  // with the first format of activations that it takes.
  template <typename Desc, typename Fn, typename Bench>
  void each_kernel(const std::string& op, std::span<const ops::Kernel<Desc, Fn>> table,
                   const Desc& desc, const Bench& bench) {
    std::vector<const char*> done = {"ref"};
    for (const auto act :
         {ops::ActFormat::kInt8Row, ops::ActFormat::kInt8, ops::ActFormat::kFloat}) {
      options_.activations = act;
      for (const auto& row : table) {
        const auto same = [&](const char* name) { return std::string(name) == row.name; };
        if (row.run == nullptr || row.refuse(desc, options_) != nullptr ||
            std::any_of(done.begin(), done.end(), same))
          continue;
        done.push_back(row.name);
        if ((op + "/" + row.name).find(flags_.only) == std::string::npos) continue;
        bench(row);
        buffers_.clear();
      }
    }
  }

  // Random choices; every run its own, so that a decode does not find its experts in the cache.
  struct Choices {
    Choices(Noise& noise, int64_t tokens)
        : ids(tokens * kChosen),
          counts(kExperts),
          offsets(kExperts + 1),
          slot(ids),
          token(ids),
          p(ids.size(), 0.25f) {
      view = {static_cast<int32_t>(tokens),
              kExperts,
              kChosen,
              ids.data(),
              p.data(),
              counts.data(),
              offsets.data(),
              slot.data(),
              token.data()};
      shuffle(noise);
    }
    void shuffle(Noise& noise) {
      std::vector<int32_t> all(kExperts);
      for (size_t t = 0; t < ids.size(); t += kChosen) {
        std::iota(all.begin(), all.end(), 0);
        for (int64_t k = 0; k < kChosen; ++k) {
          std::swap(all[k], all[k + noise.next() % (kExperts - k)]);
          ids[t + k] = all[k];
        }
      }
      sort_by_expert(view);
    }
    int64_t distinct() const { return kExperts - std::count(counts.begin(), counts.end(), 0); }
    std::vector<int32_t> ids, counts, offsets, slot, token;
    std::vector<float> p;
    Routing view;
  };

  void norm_route(int64_t tokens) {
    const ops::NormRouteDesc desc{kHidden, kExperts, kChosen, Format::kBF16, tokens};
    each_kernel("norm_route", ops::norm_route_kernels(), desc, [&](const ops::NormRouteKernel& k) {
      ColdWeights w(noise_, desc.format, k.layout, 1, kExperts, kHidden);
      const Tensor x = matrix(tokens, kHidden), d = matrix(tokens, kHidden),
                   y = matrix(tokens, kHidden), h = matrix(tokens, kHidden);
      const std::vector<uint16_t> ones(kHidden, bf16_from_float(1));
      Choices choices(noise_, tokens);
      measure({"norm_route", k.name, "bf16", tokens, 0, flops(desc, tokens)},
              scratch_bytes(desc, tokens, cx_.threads()), [&] {
                k.run(cx_, y, h, choices.view, x, d, {ones.data(), 1e-5f}, w.next());
                return bytes(desc, tokens);
              });
    });
  }

  void moe_up(int64_t tokens) {
    const ops::MoeUpDesc desc{kHidden, kWidth, kExperts, kChosen, Format::kMxfp4, tokens};
    each_kernel("moe_up", ops::moe_up_kernels(), desc, [&](const ops::MoeUpKernel& k) {
      ColdWeights w(noise_, desc.format, k.layout, kExperts, 2 * kWidth, kHidden);
      const Tensor h = matrix(tokens, kHidden), u = matrix(tokens * kChosen, kWidth);
      Choices choices(noise_, tokens);
      measure({"moe_up", k.name, "mxfp4", tokens, 0, flops(desc, tokens)},
              scratch_bytes(desc, tokens, cx_.threads()), [&] {
                choices.shuffle(noise_);
                k.run(cx_, u, h, choices.view, w.next(), 7);
                return bytes(desc, tokens, choices.distinct());
              });
    });
  }

  void moe_down(int64_t tokens) {
    const ops::MoeDownDesc desc{kHidden, kWidth, kExperts, kChosen, Format::kMxfp4, tokens};
    each_kernel("moe_down", ops::moe_down_kernels(), desc, [&](const ops::MoeDownKernel& k) {
      ColdWeights w(noise_, desc.format, k.layout, kExperts, kHidden, kWidth);
      const Tensor d = matrix(tokens, kHidden), u = matrix(tokens * kChosen, kWidth);
      Choices choices(noise_, tokens);
      measure({"moe_down", k.name, "mxfp4", tokens, 0, flops(desc, tokens)},
              scratch_bytes(desc, tokens, cx_.threads()), [&] {
                choices.shuffle(noise_);
                k.run(cx_, d, u, choices.view, w.next());
                return bytes(desc, tokens, choices.distinct());
              });
    });
  }

  void out_proj(int64_t tokens, Format format) {
    const ops::OutProjDesc desc{kHidden, kQWidth, format, tokens};
    each_kernel("out_proj", ops::out_proj_kernels(), desc, [&](const ops::OutProjKernel& k) {
      ColdWeights w(noise_, format, k.layout, 1, kHidden, kQWidth);
      const Tensor d = matrix(tokens, kHidden), att = matrix(tokens, kQWidth);
      const Step step{.num_tokens = static_cast<int32_t>(tokens)};
      measure(
          {"out_proj", k.name, std::string(format_name(format)), tokens, 0, flops(desc, tokens)},
          scratch_bytes(desc, tokens, cx_.threads()), [&] {
            k.run(cx_, d, att, w.next(), step);
            return bytes(desc, tokens);
          });
    });
  }

  // bf16 pages of one sequence, with a step of its tokens from `context` on.
  struct Sequence {
    Sequence(Noise& noise, int64_t tokens, int64_t context)
        : pages((context + tokens + kPage - 1) / kPage),
          data(2 * pages * kPage * kKvHeads * kHeadDim * 2),
          table(pages),
          positions(tokens),
          span{0, static_cast<int32_t>(tokens), static_cast<int32_t>(context), 0} {
      auto* bits = static_cast<uint16_t*>(data.data());
      for (int64_t i = 0; i < data.size_bytes() / 2; ++i) bits[i] = bf16_from_float(noise.unit());
      std::iota(table.begin(), table.end(), 0);
      std::iota(positions.begin(), positions.end(), static_cast<int32_t>(context));
      const auto side = [&](int64_t i) {
        return make_tensor(bits + i * data.size_bytes() / 4, DType::kBF16,
                           {pages, kKvHeads, kPage, kHeadDim});
      };
      kv = {side(0), side(1), table.data(), static_cast<int32_t>(pages), kPage};
      step = {.num_tokens = static_cast<int32_t>(tokens),
              .num_spans = 1,
              .positions = positions.data(),
              .spans = &span};
    }
    int64_t pages;
    Buffer data;
    std::vector<int32_t> table, positions;
    Span span;
    KvLayer kv;
    Step step;
  };

  void norm_qkv(int64_t tokens, Format format) {
    const ops::NormQkvDesc desc{kHidden, kQHeads, kKvHeads, kHeadDim, format, tokens};
    each_kernel("norm_qkv", ops::norm_qkv_kernels(), desc, [&](const ops::NormQkvKernel& k) {
      const int64_t rows = kQWidth + 2 * kKvHeads * kHeadDim;
      ColdWeights w(noise_, format, k.layout, 1, rows, kHidden);
      const Tensor x = matrix(tokens, kHidden), d = matrix(tokens, kHidden),
                   y = matrix(tokens, kHidden), h = matrix(tokens, kHidden),
                   q = matrix(tokens, kQWidth), angles = matrix(tokens, kHeadDim);
      const std::vector<uint16_t> ones(kHidden, bf16_from_float(1));
      const Sequence s(noise_, tokens, 0);
      measure(
          {"norm_qkv", k.name, std::string(format_name(format)), tokens, 0, flops(desc, tokens)},
          scratch_bytes(desc, tokens, cx_.threads()), [&] {
            k.run(cx_, {q, h, y}, s.kv, x, d, {ones.data(), 1e-5f}, w.next(), angles, s.step);
            return bytes(desc, tokens);
          });
    });
  }

  void norm_unembed(int64_t tokens, Format format) {
    const ops::NormUnembedDesc desc{kHidden, kVocab, format, tokens};
    each_kernel("norm_unembed", ops::norm_unembed_kernels(), desc,
                [&](const ops::NormUnembedKernel& k) {
                  ColdWeights w(noise_, format, k.layout, 1, kVocab, kHidden);
                  const Tensor x = matrix(tokens, kHidden), d = matrix(tokens, kHidden),
                               h = matrix(tokens, kHidden), logits = matrix(tokens, kVocab);
                  const std::vector<uint16_t> ones(kHidden, bf16_from_float(1));
                  std::vector<int32_t> out_rows(tokens);
                  std::iota(out_rows.begin(), out_rows.end(), 0);
                  const Step step{.num_tokens = static_cast<int32_t>(tokens),
                                  .num_out = static_cast<int32_t>(tokens),
                                  .out_rows = out_rows.data()};
                  measure({"norm_unembed", k.name, std::string(format_name(format)), tokens, 0,
                           flops(desc, tokens)},
                          scratch_bytes(desc, tokens, cx_.threads()), [&] {
                            k.run(cx_, logits, h, x, d, {ones.data(), 1e-5f}, w.next(), step);
                            return bytes(desc, tokens);
                          });
                });
  }

  void attention(int64_t tokens, int64_t context) {
    const ops::AttentionDesc desc{kQHeads, kKvHeads, kHeadDim, 0, tokens};
    each_kernel("attention", ops::attention_kernels(), desc, [&](const ops::AttentionKernel& k) {
      const Tensor q = matrix(tokens, kQWidth), att = matrix(tokens, kQWidth);
      const Sequence s(noise_, tokens, context);
      measure({"attention @" + std::to_string(context), k.name, "bf16 kv", tokens, 0,
               flops(desc, tokens, context)},
              scratch_bytes(desc, cx_.threads()), [&] {
                k.run(cx_, att, q, s.kv, {.scale = 0.125f}, s.step);
                return bytes(desc, tokens, context, 2);
              });
    });
  }

  const OpsFlags& flags_;
  ops::Ctx cx_;
  ops::KernelOptions options_;
  Noise noise_;
  std::vector<Buffer> buffers_;
  std::vector<Reached> reached_;
};

void bench_ops(const OpsFlags& flags) {
  const int threads = flags.threads > 0 ? flags.threads : cpu::read_cores().usable();
  cpu::ThreadPool pool(threads);
  const double bandwidth = cpu::measure_read_bandwidth(pool, int64_t{1} << 30, 5).median;
  const std::vector<Reached> rows = OpsBench(flags, pool).run();
  const std::string device =
      cpu::cpu_model_name() + ", " + std::to_string(threads) + " threads, " + flags.cpu_isa;
  if (flags.json) {
    Json out = {{"commit", commit_text()},
                {"device", device},
                {"read_bandwidth", bandwidth},
                {"rows", Json::array()}};
    for (const Reached& r : rows)
      out["rows"].push_back(
          {{"op", r.op},
           {"kernel", r.kernel},
           {"weights", r.weights},
           {"tokens", r.tokens},
           {"seconds", r.seconds},
           {"bytes", r.bytes},
           {"flops", r.flops},
           {"floor_seconds", static_cast<double>(r.bytes) / bandwidth},
           {"percent_of_floor", 100 * static_cast<double>(r.bytes) / bandwidth / r.seconds}});
    return print_json(out);
  }
  std::printf("gpt-oss-20b's shapes, random; %s; memory reads at %.1f GB/s\n\n", device.c_str(),
              bandwidth / 1e9);
  TextTable table(
      {"op", "kernel", "weights", ">tokens", ">MB", ">floor us", ">us", ">of floor", ">GFLOP/s"});
  for (const Reached& r : rows) {
    const double bytes = static_cast<double>(r.bytes), floor = bytes / bandwidth;
    table.add({r.op, r.kernel, r.weights, std::to_string(r.tokens), fixed_digits(bytes / 1e6, 1),
               fixed_digits(floor * 1e6, 0), fixed_digits(r.seconds * 1e6, 0),
               fixed_digits(100 * floor / r.seconds, 1) + "%",
               fixed_digits(static_cast<double>(r.flops) / r.seconds / 1e9, 0)});
  }
  std::printf("%s", table.plain().c_str());
}

}  // namespace

void add_bench_ops(CLI::App& bench) {
  auto flags = std::make_shared<OpsFlags>();
  CLI::App* command = bench.add_subcommand(
      "ops", "Measure each kernel by itself: bytes, floor, share of the floor");
  command->add_option("--tokens", flags->tokens, "of a step, separated by commas")
      ->delimiter(',')
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_option("--contexts", flags->contexts, "of attention")
      ->delimiter(',')
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_option("--only", flags->only,
                      "what has this in its op/kernel: \"attention/\", \"vnni\", \"moe_up/amx\"");
  command->add_option("--threads", flags->threads, "0: as many as the cgroup grants")
      ->check(CLI::Range(0, 1024));
  command->add_option("--cpu-isa", flags->cpu_isa, "as if this were the best the CPU has")
      ->capture_default_str();
  command->add_flag("--json", flags->json, "print JSON");
  command->callback([flags] { bench_ops(*flags); });
}

}  // namespace nibble::cli
