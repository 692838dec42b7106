// For tests: whole models of random odd shapes, the rows that their ops can be given, and what
// tells two runs of one apart.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "dist/comm.h"
#include "models/random_checkpoint.h"
#include "models/step_work.h"
#include "models/test_runner.h"
#include "ops/site.h"

namespace nibble::any_shape {

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

inline bool has_shared_expert(Family family) {
  return is_hybrid(family) && family != Family::kQwen35;
}

// ---- rows, and pairs of them

using Rows = std::map<Op, std::vector<std::string>>;  // that each op can be given, some by force
using Choice = std::map<Op, std::string>;             // one for each op
using Pairs = std::set<std::string>;                  // "moe_up=avx2_float moe_down=ref"

// The calls of a case's model, by its config alone, which is left in `directory`.
inline ops::Sites sites_of(const Case& c, const std::filesystem::path& directory) {
  std::filesystem::remove(directory / "model.safetensors");
  std::ofstream(directory / "config.json") << random_config(c.shape);
  if (c.shape.format != Format::kF16 && c.shape.format != Format::kF32)
    return list_sites(directory.string(), c.dense);
  // Of these a config says nothing, and nothing in them is encoded.
  ops::Sites sites = list_sites(directory.string(), {});
  for (ops::Site& site : sites)
    std::visit(
        [&](auto& desc) {
          if constexpr (requires { desc.format; }) desc.format = c.shape.format;
        },
        site.problem);
  return sites;
}

// Who reads what whom wrote, call by call. Not the residual stream and the angles, which are
// float32 whoever writes them.
using Edges = std::vector<std::pair<const ops::Site*, const ops::Site*>>;
inline Edges edges_of(const ops::Sites& sites) {
  Edges edges;
  std::map<std::string, const ops::Site*> writers;  // by buffer; pages and slots are a layer's own
  for (const ops::Site& site : sites) {
    const auto key = [&](const std::string& buffer) {
      return buffer == "kv" ? buffer + std::to_string(site.key.layer) : buffer;
    };
    std::set<const ops::Site*> before;
    for (const std::string& buffer : site.reads) {
      const auto writer = writers.find(key(buffer));
      if (buffer != "x" && buffer != "y" && buffer != "cos_sin" && writer != writers.end())
        before.insert(writer->second);
    }
    for (const ops::Site* writer : before) edges.emplace_back(writer, &site);
    for (const std::string& buffer : site.writes) writers[key(buffer)] = &site;
  }
  return edges;
}

using Neighbours = std::set<std::pair<Op, Op>>;
inline Neighbours neighbours_of(const ops::Sites& sites) {
  Neighbours neighbours;
  for (const auto& [a, b] : edges_of(sites)) neighbours.emplace(a->key.op, b->key.op);
  return neighbours;
}

inline std::string pair_text(Op first, const std::string& a, Op second, const std::string& b) {
  return std::string(ops::op_name(first)) + "=" + a + " " + ops::op_name(second) + "=" + b;
}

inline Pairs pairs_of(const Choice& rows, const Neighbours& neighbours) {
  Pairs pairs;
  for (const auto& [a, b] : neighbours) pairs.insert(pair_text(a, rows.at(a), b, rows.at(b)));
  return pairs;
}

// Of the rows that steps of `tokens` tokens are given, once planned.
inline Pairs pairs_of(const ops::Sites& planned, int64_t tokens) {
  const auto row = [&](const ops::Site& site) {
    return std::ranges::find_if(
               site.plan.entries(),
               [&](const ops::PlanEntry& entry) { return tokens <= entry.max_tokens; })
        ->kernel;
  };
  Pairs pairs;
  for (const auto& [a, b] : edges_of(planned))
    pairs.insert(pair_text(a->key.op, row(*a), b->key.op, row(*b)));
  return pairs;
}

// fits(op, row, desc): whether a call can be given a row. Those that it can, best first.
template <typename Fits>
std::vector<std::string> rows_of(const ops::Site& site, const Fits& fits) {
  std::vector<std::string> rows;
  std::visit(
      [&](const auto& desc) {
        for (const auto& row : ops::kernels_of(desc))
          if (row.run != nullptr && (!site.in_rows || row.layout == Layout::kRows) &&
              fits(site.key.op, row, desc))
            rows.emplace_back(row.name);
      },
      site.problem);
  return rows;
}

// Where an op is called several times, by all its calls.
template <typename Fits>
Rows rows_of(const ops::Sites& sites, const Fits& fits) {
  Rows rows;
  for (const ops::Site& site : sites) {
    const std::vector<std::string> here = rows_of(site, fits);
    const auto [of_op, is_first] = rows.try_emplace(site.key.op, here);
    if (!is_first)
      std::erase_if(of_op->second, [&](const std::string& name) {
        return std::ranges::find(here, name) == here.end();
      });
  }
  return rows;
}

// add(pair, its rows) for each that can be forced. can_meet(first, its row, the next's row):
// whether it can.
template <typename CanMeet, typename Add>
void for_each_forced(const Rows& rows, const Neighbours& neighbours, const CanMeet& can_meet,
                     const Add& add) {
  for (const auto& [a, b] : neighbours)
    for (const std::string& first : rows.at(a))
      for (const std::string& second : rows.at(b))
        if (can_meet(a, first, second))
          add(pair_text(a, first, b, second), Choice{{a, first}, {b, second}});
}

// A row for each op, to be forced: of those that it can be given, one that makes the most `missing`
// pairs with the neighbours chosen already, before it or behind (a layer's last op stands before
// the next one's first). Where none is `chosen` to begin with and few are missing, one of them is
// what the others are chosen around.
template <typename CanMeet>
Choice choose_rows(std::mt19937& random, const Pairs& missing, const Rows& rows,
                   const Neighbours& neighbours, const CanMeet& can_meet, Choice chosen = {}) {
  if (constexpr size_t kFew = 100; chosen.empty() && missing.size() < kFew) {
    std::vector<Choice> fresh;
    for_each_forced(rows, neighbours, can_meet, [&](const std::string& pair, const Choice& of) {
      if (missing.contains(pair)) fresh.push_back(of);
    });
    if (!fresh.empty()) chosen = any_of(random, fresh);
  }
  const auto choose = [&](Op op) {
    if (chosen.contains(op)) return;
    std::vector<std::string> best;
    int64_t most = 0;
    for (const std::string& row : rows.at(op)) {
      int64_t fresh = 0;
      bool fits = true;
      for (const auto& [a, b] : neighbours) {
        if (a == op && chosen.contains(b)) {
          fits &= can_meet(a, row, chosen[b]);
          fresh += missing.count(pair_text(a, row, b, chosen[b]));
        } else if (b == op && chosen.contains(a)) {
          fits &= can_meet(a, chosen[a], row);
          fresh += missing.count(pair_text(a, chosen[a], b, row));
        }
      }
      if (!fits) continue;
      if (fresh > most) best.clear(), most = fresh;
      if (fresh == most) best.push_back(row);
    }
    chosen[op] = any_of(random, best);
  };
  for (const auto& [before, op] : neighbours) choose(before), choose(op);
  return chosen;
}

inline std::string family_text(const RandomShape& s) {
  constexpr const char* kNames[] = {"gpt-oss",    "Llama",   "Qwen3",       "Qwen3-MoE",
                                    "Qwen3-Next", "Qwen3.5", "Qwen3.5-MoE", "NemotronH"};
  const std::string name = kNames[static_cast<int>(s.family)];
  if (s.family == Family::kGptOss) return name;
  return name + " in " + std::string(format_name(s.format)) + (s.is_tied ? ", tied" : "") +
         (s.over_all ? ", over all or with biases" : "");
}

inline std::string describe(const Case& c) {
  const RandomShape& s = c.shape;
  std::string all = family_text(s) + ", " + cpu::isa_name(c.kernels.isa) + ", activations " +
                    ops::act_format_name(c.kernels.activations) + ", KV " + dtype_name(c.kv) +
                    ", dense " + std::string(format_name(c.dense.qkv)) + " " +
                    std::string(format_name(c.dense.out)) + " " +
                    std::string(format_name(c.dense.unembed)) + " " +
                    std::string(format_name(c.dense.mlp)) + (c.kernels.exact ? ", exact" : "");
  const std::pair<const char*, int64_t> sizes[] = {{"H", s.hidden},
                                                   {"Q", s.q_heads},
                                                   {"G", s.kv_heads},
                                                   {"D", s.head_dim},
                                                   {"E", s.experts},
                                                   {"K", s.top_k},
                                                   {"F", s.width},
                                                   {"V", s.vocab},
                                                   {"window", s.window},
                                                   {"HK", s.key_heads},
                                                   {"HV", s.value_heads},
                                                   {"DK", s.key_dim},
                                                   {"DV", s.value_dim},
                                                   {"taps", s.taps},
                                                   {"shared F", s.shared_width},
                                                   {"page", c.page_size},
                                                   {"seed", static_cast<int64_t>(s.seed)}};
  for (const auto& [name, size] : sizes)
    all += std::string(" ") + name + " " + std::to_string(size);
  for (const auto& [op, row] : c.kernels.forced) all += " " + op + "=" + row;
  return all;
}

// ---- runs

// The sequences of a case, and where their tokens stand in Buffers.
struct Texts {
  std::vector<std::vector<int32_t>> of;  // by slot
  int64_t index(int32_t slot, int64_t pos) const {
    for (int32_t s = 0; s < slot; ++s) pos += std::ssize(of[s]);
    return pos;
  }
  int64_t total() const { return index(static_cast<int32_t>(of.size()), 0); }
};

inline Texts random_texts(std::mt19937& random, const std::vector<int64_t>& longest,
                          int64_t vocab) {
  Texts texts;
  for (const int64_t most : longest) {
    std::vector<int32_t>& text = texts.of.emplace_back(1 + random() % most);
    for (int32_t& token : text) token = static_cast<int32_t>(random() % vocab);
  }
  return texts;
}

// Of each step, how many tokens every sequence takes.
using Steps = std::vector<std::vector<int64_t>>;

inline Steps one_step(const Texts& texts) {
  Steps steps(1);
  for (const auto& text : texts.of) steps[0].push_back(std::ssize(text));
  return steps;
}

inline Steps random_steps(std::mt19937& random, const Texts& texts) {
  std::vector<int64_t> left = one_step(texts)[0];
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

// What the taps of a run showed: a row of each buffer for each token, in order of slot and
// position.
using Buffers = std::map<std::pair<int, std::string>, std::vector<std::vector<float>>>;

// A model on its device, which is `cx`'s.
class Run {
 public:
  Run(const Case& c, ops::Ctx cx, const std::filesystem::path& directory, const Texts& texts,
      const WeightMemory& memory = {})
      : case_(c), texts_(texts), cx_(std::move(cx)), copy_(memory.copy) {
    cx_.pool = &pool_;
    cx_.kernels = c.kernels;
    cx_.activations = c.stored;
    LoadOptions options;
    options.dense = c.dense;
    options.memory = memory;
    if (cx_.comm != nullptr) options.shard = {cx_.comm->rank(), cx_.comm->size()};
    model_ = load_model(cx_, directory, options);
    const auto most = static_cast<int32_t>(texts.total());
    model_->reserve(cx_, {most, most});
  }
  // All tokens; what the taps show where they are `seen`. Logits, by Texts::index.
  std::vector<std::vector<float>> all(const Steps& steps, Buffers* seen) {
    const auto slots = static_cast<int32_t>(texts_.of.size());
    std::vector<int64_t> done(slots), rows;
    std::vector<std::vector<float>> logits(texts_.total());
    cx_.tap = {};
    if (seen != nullptr)
      cx_.tap = [&](std::string_view name, int layer, const Tensor& value) {
        take(*seen, rows, name, layer, value);
      };
    TestRunner runner(*model_, cx_, slots, static_cast<int32_t>(texts_.total()), case_.kv,
                      case_.page_size, copy_);
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

  const Case& case_;
  const Texts& texts_;
  cpu::ThreadPool pool_{2};
  ops::Ctx cx_;
  const TestRunner::Copy copy_;
  std::unique_ptr<Model> model_;
};

// ---- what tells runs apart

inline double rms(const std::vector<float>& v) {
  double sum = 0;
  for (const float x : v) sum += static_cast<double>(x) * x;
  return std::sqrt(sum / static_cast<double>(v.size()));
}

// A choice of experts may go either way where two are as good as equal; what follows is another
// model. Then the weights, in order, are still the same; what comes after is left out, for the
// token and for those that see it. parted[t]: the layer in which token t's choice differs.
inline std::vector<int> parted_layers(const Texts& texts, const Buffers& want, const Buffers& got) {
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

// Over all cases.
struct Seen {
  int64_t rows = 0, parted = 0;              // of buffers, and those left out
  std::map<std::string, double> worst = {};  // by activations and KV: error over bound
};

// bound(columns): the root mean square that a token's row of a buffer may be off by, over the
// largest of the buffer's rows. Where activations or pages are E4M3, a softmax between two keys
// that are nearly as good may turn to the other for one token, and a small row be rounded
// otherwise: it may be off by three times the bound, a wrong one being off by about 1.4, and all
// rows of a buffer together are held to it.
template <typename Bound>
void compare(const Case& c, const Texts& texts, const Buffers& want, const Buffers& got,
             const Bound& bound, Seen& seen) {
  const bool any_e4m3 = c.kernels.activations == ActFormat::kFp8 || c.kv == DType::kF8E4M3;
  const double alone = any_e4m3 ? 3 : 1;
  const std::vector<int> parted = parted_layers(texts, want, got);
  double& worst =
      seen.worst[std::string(ops::act_format_name(c.kernels.activations)) + " " + dtype_name(c.kv)];
  ASSERT_EQ(want.size(), got.size());
  for (const auto& [key, rows] : want) {
    const auto& [layer, name] = key;
    if (name == "ids") continue;
    double most = 0, squares = 0;
    int64_t compared = 0;
    for (const auto& row : rows) most = std::max(most, rms(row));
    for (int64_t t = 0; t < texts.total(); ++t) {
      std::vector<float> off = rows[t], other = got.at(key)[t];
      ASSERT_EQ(off.size(), other.size());
      ++seen.rows;
      const bool is_behind = name == "moe_d" || name == "mixer_d";  // in some models
      if (parted[t] < layer || (parted[t] == layer && is_behind)) {
        ++seen.parted;
        continue;
      }
      if (name == "p") {
        std::sort(off.begin(), off.end());
        std::sort(other.begin(), other.end());
      }
      for (size_t i = 0; i < off.size(); ++i) off[i] -= other[i];
      const double error = rms(off) / most, allowed = bound(std::ssize(off));
      worst = std::max(worst, error / allowed);
      squares += error * error;
      ++compared;
      ASSERT_LE(error, alone * allowed) << name << " of layer " << layer << ", token " << t;
    }
    if (compared == 0) continue;
    const auto columns = std::ssize(rows.front());
    ASSERT_LE(std::sqrt(squares / static_cast<double>(compared)), bound(columns))
        << name << " of layer " << layer << ", all tokens";
  }
}

inline void print(const Seen& seen) {
  for (const auto& [setting, worst] : seen.worst)
    std::printf("%-16s %.2f of the tolerance\n", setting.c_str(), worst);
  std::printf("%lld of %lld rows behind another choice of experts\n",
              static_cast<long long>(seen.parted), static_cast<long long>(seen.rows));
}

// NIBBLE_ANY_SHAPES=N runs N cases, another NIBBLE_SEED others.
inline int64_t number_of(const char* variable, int64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::atoll(text);
}

}  // namespace nibble::any_shape
