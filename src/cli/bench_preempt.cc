// nibble bench preempt: a pool of requests is answered with room for all of them, then asked for
// again and again by many clients at once with a KV cache that holds too few: sequences give up
// their pages and are computed anew. Under --exact every answer must be the first one, id for id.
#include "cli/bench_preempt.h"

#include <CLI/App.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "cli/engine_setup.h"
#include "cli/json.h"
#include "cli/text_table.h"
#include "cli/version.h"
#include "cpu/isa.h"
#include "cpu/topology.h"
#include "engine/engine.h"
#include "io/memory.h"

namespace nibble::cli {
namespace {

using Clock = std::chrono::steady_clock;

struct PreemptFlags {
  EngineFlags engine;
  int32_t clients = 95;
  double minutes = 8;
  int32_t pool = 64;      // requests that differ
  int64_t kv_tokens = 0;  // positions that the KV cache holds; 0: from the requests
  bool json = false;
};

constexpr double kFull = 0.99;        // of the pages: what counts as full
constexpr int32_t kSampledEvery = 8;  // every so many requests are drawn, the others greedy

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// One of the pool. Prompts and answers are of all lengths up to half of `longest` tokens.
Request make_request(int32_t which, int32_t vocab, int32_t longest) {
  std::mt19937_64 random(static_cast<uint64_t>(which) + 1);
  const auto up_to = [&](int32_t most) {
    return std::uniform_int_distribution<int32_t>(std::max(1, most / 16), most)(random);
  };
  Request request;
  request.prompt.resize(static_cast<size_t>(up_to(longest / 2)));
  std::uniform_int_distribution<int32_t> any_id(0, vocab - 1);
  for (int32_t& id : request.prompt) id = any_id(random);
  request.max_tokens = up_to(longest / 2);
  request.sampling.seed = static_cast<uint64_t>(which);
  request.sampling.temperature = which % kSampledEvery == kSampledEvery - 1 ? 1.0f : 0.0f;
  return request;
}

using Ids = std::vector<int32_t>;

// Requests of the pool under way in one engine, whose steps are made here.
class Clients {
 public:
  struct Answer {
    int32_t which;
    Ids ids;
    FinishReason finish = FinishReason::kNone;
    std::string error;
  };

  Clients(Engine& engine, int32_t longest) : engine_(engine), longest_(longest) {}

  void ask(int32_t which) {
    auto answer = std::make_shared<Answer>(Answer{.which = which, .ids = {}, .error = {}});
    Request request = make_request(which, engine_.model().info().vocab_size, longest_);
    request.on_output = [this, answer](const Output& output) {
      if (output.id >= 0) answer->ids.push_back(output.id);
      if (output.finish == FinishReason::kNone) return;
      answer->finish = output.finish;
      answer->error = output.error;
      ended_.push_back(answer);
    };
    const auto id = engine_.submit(std::move(request));
    if (!id) throw Error(ErrorKind::kUsage, "bench preempt: " + id.error());
    ids_.push_back(*id);
    answers_.push_back(answer);
  }

  // One step; what ended in it.
  std::vector<std::shared_ptr<Answer>> step() {
    ended_.clear();
    engine_.step();
    for (const auto& answer : ended_)
      if (answer->finish == FinishReason::kError)
        throw Error(ErrorKind::kUnsupported, answer->error);
    return ended_;
  }

  // Answers that have only begun.
  std::vector<std::shared_ptr<Answer>> under_way() const {
    auto begun = answers_;
    std::erase_if(begun, [](const auto& a) { return a->finish != FinishReason::kNone; });
    return begun;
  }

  void end_all() {
    for (const RequestId id : ids_) engine_.cancel(id);
    while (engine_.step()) {
    }
  }

 private:
  Engine& engine_;
  int32_t longest_;
  std::vector<std::shared_ptr<Answer>> ended_;
  std::vector<RequestId> ids_;
  std::vector<std::shared_ptr<Answer>> answers_;
};

// Every answer of the pool, none of them preempted.
std::vector<Ids> answer_with_room(Engine& engine, int32_t pool, int32_t longest) {
  std::vector<Ids> answers(static_cast<size_t>(pool));
  Clients clients(engine, longest);
  for (int32_t which = 0; which < pool; ++which) clients.ask(which);
  for (int32_t ended = 0; ended < pool;)
    for (const auto& answer : clients.step()) {
      answers[static_cast<size_t>(answer->which)] = answer->ids;
      ++ended;
    }
  if (engine.stats().num_preemptions > 0) {
    throw Error(ErrorKind::kMemory,
                "bench preempt: the memory does not hold --max-num-seqs sequences of "
                "--max-model-len tokens at once, so there is nothing to compare with");
  }
  return answers;
}

struct Load {
  double seconds = 0;
  int64_t steps = 0, new_tokens = 0, prompt_tokens = 0;
  int64_t answers = 0, begun_answers = 0, other_answers = 0;
  int64_t preemptions = 0;
  // Means are over the steps from the first one on that left the cache full.
  double fill_seconds = 0;
  int64_t counted_steps = 0;
  double mean_running = 0, mean_waiting = 0, mean_usage = 0, most_usage = 0, full_steps = 0;
  int32_t most_running = 0, most_waiting = 0;
  std::string first_other;  // which answer differed, and where
};

// Of an answer under way, what there is of it.
void compare(const Clients::Answer& answer, const Ids& want, Load& load) {
  const bool is_whole = answer.finish != FinishReason::kNone;
  ++(is_whole ? load.answers : load.begun_answers);
  if (is_whole ? answer.ids == want
               : answer.ids.size() <= want.size() &&
                     std::equal(answer.ids.begin(), answer.ids.end(), want.begin()))
    return;
  if (load.other_answers++ > 0) return;
  const auto [a, b] = std::ranges::mismatch(answer.ids, want);
  load.first_other = "request " + std::to_string(answer.which) + " from new token " +
                     std::to_string(a - answer.ids.begin()) + " of " + std::to_string(want.size());
}

// `num_clients` clients at once, each of which asks again once it has its answer.
Load press(Engine& engine, const std::vector<Ids>& want, int32_t num_clients, int32_t longest,
           double seconds) {
  Load load;
  Clients clients(engine, longest);
  const auto pool = static_cast<int32_t>(want.size());
  int32_t next = 0;
  for (; next < num_clients; ++next) clients.ask(next % pool);
  const auto start = Clock::now();
  for (; seconds_since(start) < seconds; ++load.steps) {
    for (const auto& answer : clients.step()) {
      compare(*answer, want[static_cast<size_t>(answer->which)], load);
      clients.ask(next++ % pool);
    }
    const EngineStats stats = engine.stats();
    load.most_usage = std::max(load.most_usage, stats.kv_usage);
    load.most_running = std::max(load.most_running, stats.num_running);
    load.most_waiting = std::max(load.most_waiting, stats.num_waiting);
    if (load.most_usage < kFull) {
      load.fill_seconds = seconds_since(start);
      continue;
    }
    ++load.counted_steps;
    load.mean_running += stats.num_running;
    load.mean_waiting += stats.num_waiting;
    load.mean_usage += stats.kv_usage;
    load.full_steps += stats.kv_usage >= kFull;
  }
  load.seconds = seconds_since(start);
  for (const auto& answer : clients.under_way())
    compare(*answer, want[static_cast<size_t>(answer->which)], load);
  const EngineStats stats = engine.stats();
  load.new_tokens = stats.generation_tokens;
  load.prompt_tokens = stats.prompt_tokens;
  load.preemptions = stats.num_preemptions;
  for (double* sum : {&load.mean_running, &load.mean_waiting, &load.mean_usage, &load.full_steps})
    *sum /= static_cast<double>(std::max<int64_t>(1, load.counted_steps));
  clients.end_all();
  return load;
}

// The fewest bytes of pages that hold `tokens` positions.
int64_t kv_bytes_of(const ModelInfo& info, EngineOptions options, int64_t tokens) {
  int64_t low = Engine::kv_bytes_for(info, options, options.max_model_len, 1);
  int64_t high = options.kv_bytes;
  while (high - low > (int64_t{64} << 10)) {
    options.kv_bytes = low + (high - low) / 2;
    (Engine::kv_plan_for(info, options).tokens < tokens ? low : high) = options.kv_bytes;
  }
  return high;
}

Json result_json(const PreemptFlags& flags, const std::string& device, int64_t kv_tokens,
                 const Load& load) {
  return {{"command", command_line()},
          {"commit", commit_text()},
          {"device", device},
          {"model", flags.engine.model},
          {"load_format", flags.engine.load_format},
          {"exact", flags.engine.exact},
          {"clients", flags.clients},
          {"pool", flags.pool},
          {"kv_tokens", kv_tokens},
          {"seconds", load.seconds},
          {"steps", load.steps},
          {"fill_seconds", load.fill_seconds},
          {"counted_steps", load.counted_steps},
          {"answers", load.answers},
          {"begun_answers", load.begun_answers},
          {"other_answers", load.other_answers},
          {"preemptions", load.preemptions},
          {"prompt_tokens", load.prompt_tokens},
          {"new_tokens", load.new_tokens},
          {"new_tokens_per_second", static_cast<double>(load.new_tokens) / load.seconds},
          {"running", {{"mean", load.mean_running}, {"most", load.most_running}}},
          {"waiting", {{"mean", load.mean_waiting}, {"most", load.most_waiting}}},
          {"kv_usage",
           {{"mean", load.mean_usage},
            {"most", load.most_usage},
            {"steps_at_least_0.99", load.full_steps}}}};
}

void print_load(const Load& load, int64_t kv_tokens) {
  std::printf(
      "%lld answers in %.0f s and %lld begun, %lld preemptions, %lld answers differ; %s new tokens "
      "(%.0f a "
      "second), %s prompt tokens computed\n"
      "running %.1f (most %d), waiting %.1f (most %d); a KV cache of %s tokens, full after %.0f s, "
      "then used to %.1f%% (most %.2f%%, %.0f%% of steps at 99%% or more)\n",
      static_cast<long long>(load.answers), load.seconds,
      static_cast<long long>(load.begun_answers), static_cast<long long>(load.preemptions),
      static_cast<long long>(load.other_answers), with_commas(load.new_tokens).c_str(),
      static_cast<double>(load.new_tokens) / load.seconds, with_commas(load.prompt_tokens).c_str(),
      load.mean_running, load.most_running, load.mean_waiting, load.most_waiting,
      with_commas(kv_tokens).c_str(), load.fill_seconds, 100 * load.mean_usage,
      100 * load.most_usage, 100 * load.full_steps);
}

void bench_preempt(PreemptFlags flags) {
  if (flags.engine.model.empty()) throw Error(ErrorKind::kUsage, "say which MODEL to run");
  const int32_t longest = flags.engine.max_model_len;
  const bool prefix_caching = std::exchange(flags.engine.prefix_caching, false);
  LoadedEngine loaded = load_engine(flags.engine, {.quiet = flags.json});
  const std::vector<Ids> want = answer_with_room(*loaded.engine, flags.pool, longest);

  loaded.engine.reset();
  EngineOptions options = loaded.engine_options;
  options.prefix_caching = prefix_caching;
  // A sequence's mean length while it runs is a prompt and half an answer: 25/64 of the longest.
  const int64_t wanted = int64_t{options.max_num_seqs} * longest * 25 / 64;
  options.kv_bytes =
      kv_bytes_of(loaded.model->info(), options, flags.kv_tokens > 0 ? flags.kv_tokens : wanted);
  Engine engine(*loaded.model, loaded.cx, options);
  const Load load = press(engine, want, flags.clients, longest, 60 * flags.minutes);

  const std::string device =
      loaded.cx.on_gpu() ? loaded.cx.kernels.gpu.name
                         : cpu::cpu_model_name() + ", " + cpu::isa_name(loaded.cx.kernels.isa);
  if (flags.json) {
    print_json(result_json(flags, device, engine.kv_tokens(), load));
  } else {
    print_load(load, engine.kv_tokens());
  }
  if (load.preemptions == 0)
    throw Error(ErrorKind::kUsage, "bench preempt: nothing was preempted; give fewer --kv-tokens");
  if (load.other_answers > 0 && flags.engine.exact)
    throw Error(ErrorKind::kUnsupported, "answers differ under --exact: " + load.first_other);
}

}  // namespace

void add_bench_preempt(CLI::App& bench) {
  auto flags = std::make_shared<PreemptFlags>();
  flags->engine.max_num_seqs = 55;
  flags->engine.max_model_len = 2048;
  flags->engine.exact = true;
  CLI::App* command = bench.add_subcommand(
      "preempt",
      "More requests than the KV cache holds: is every answer the one it is with room for all?");
  command->add_option("MODEL", flags->engine.model, "directory, config.json or repo id");
  command->add_option("--clients", flags->clients, "requests at once, running and waiting")
      ->check(CLI::Range(2, 100'000))
      ->capture_default_str();
  command->add_option("--minutes", flags->minutes, "of load, after the answers with room for all")
      ->check(CLI::Range(0.01, 100'000.0))
      ->capture_default_str();
  command
      ->add_option("--pool", flags->pool, "requests that differ; every eighth is drawn by a seed")
      ->check(CLI::Range(1, 100'000))
      ->capture_default_str();
  command
      ->add_option("--kv-tokens", flags->kv_tokens,
                   "that the KV cache holds; 0: what --max-num-seqs sequences need on average")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_flag("--json", flags->json, "print JSON");
  add_engine_flags(*command, flags->engine);
  command->callback([flags] { bench_preempt(*flags); });
}

}  // namespace nibble::cli
