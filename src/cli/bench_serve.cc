// nibble bench serve: load on any OpenAI server, so that servers are compared by one tool.
#include <CLI/App.hpp>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "cli/cli.h"
#include "cli/json.h"
#include "cli/load_run.h"
#include "cli/text_table.h"
#include "cli/version.h"

namespace nibble::cli {
namespace {

// Not a flag: results hold the command line.
constexpr const char* kKeyVariable = "NIBBLE_API_KEY";

struct BenchServeFlags {
  LoadPlan plan;
  std::string base_url = "http://127.0.0.1:8000/v1";
  std::string endpoint = "chat";
  std::string goodput;
  std::string label;  // of the server, for the result
  int64_t timeout_s = 600;
  bool json = false;
};

struct Figure {
  std::string name;
  double value;
  const char* unit;
};

std::vector<Figure> figures_of(const LoadSummary& s, bool has_goal) {
  const auto per_s = [&](int64_t n) { return static_cast<double>(n) / s.seconds; };
  std::vector<Figure> figures = {{"new tokens", per_s(s.new_tokens), "tokens/s"},
                                 {"all tokens", per_s(s.prompt_tokens + s.new_tokens), "tokens/s"},
                                 {"requests", per_s(s.ok), "requests/s"}};
  if (has_goal) figures.push_back({"goodput", per_s(s.good), "requests/s"});
  const auto add = [&](const char* what, const std::vector<double>& values) {
    for (const int percent : {50, 90, 99}) {
      figures.push_back(
          {what + (" p" + std::to_string(percent)), percentile(values, percent), "ms"});
    }
  };
  add("ttft", s.ttft_ms);
  add("itl", s.itl_ms);
  add("tpot", s.tpot_ms);
  add("e2e", s.e2e_ms);
  return figures;
}

// "serve c8" or "serve 2.5/s".
std::string name_of(const LoadPlan& plan) {
  if (plan.rate == 0) return "serve c" + std::to_string(plan.concurrency);
  char text[32];
  std::snprintf(text, sizeof text, "serve %g/s", plan.rate);
  return text;
}

Json result_json(const BenchServeFlags& flags, const LoadSummary& s,
                 const std::vector<Figure>& figures) {
  const LoadPlan& plan = flags.plan;
  Json out = {{"command", command_line()},
              {"commit", commit_text()},
              {"device", nullptr},
              {"server", flags.label.empty() ? flags.base_url : flags.label},
              {"model", plan.model},
              {"endpoint", flags.endpoint},
              {"seconds", s.seconds},
              {"ok", s.ok},
              {"failed", s.failed},
              {"rejected", s.rejected},
              {"prompt_tokens", s.prompt_tokens},
              {"cached_tokens", s.cached_tokens},
              {"new_tokens", s.new_tokens},
              {"counted_by_server", s.counted_by_server},
              {"rows", Json::array()}};
  for (const Figure& figure : figures) {
    const Json value = std::isfinite(figure.value) ? Json(figure.value) : Json(nullptr);
    out["rows"].push_back({{"test", name_of(plan) + " " + figure.name},
                           {"dense", nullptr},
                           {"activations", nullptr},
                           {"kv", nullptr},
                           {"prompt", s.ok > 0 ? s.prompt_tokens / s.ok : 0},
                           {"new_tokens", plan.new_tokens},
                           {"streams", plan.rate > 0 ? Json(nullptr) : Json(plan.concurrency)},
                           {"value", value},
                           {"unit", figure.unit},
                           {"floor", nullptr},
                           {"peer", nullptr},
                           {"peer_value", nullptr},
                           {"ratio", nullptr},
                           {"goal", nullptr}});
  }
  return out;
}

void print_text(const LoadPlan& plan, const LoadSummary& s, const std::vector<Figure>& figures) {
  std::printf(
      "%s: %lld answered, %lld rejected, %lld failed in %.1f s; %s prompt tokens (%s cached), "
      "%s new tokens%s\n\n",
      name_of(plan).c_str(), static_cast<long long>(s.ok), static_cast<long long>(s.rejected),
      static_cast<long long>(s.failed), s.seconds, with_commas(s.prompt_tokens).c_str(),
      with_commas(s.cached_tokens).c_str(), with_commas(s.new_tokens).c_str(),
      s.counted_by_server ? "" : " (counted by chunks: the server gives no usage)");
  TextTable table({"what", ">value", "unit"});
  for (const Figure& figure : figures) {
    table.add({figure.name, std::isfinite(figure.value) ? fixed_digits(figure.value, 2) : "-",
               figure.unit});
  }
  std::printf("%s", table.plain().c_str());
}

void bench_serve(BenchServeFlags flags) {
  LoadPlan& plan = flags.plan;
  const Goal goal = parse_goal(flags.goodput);
  plan.target = parse_target(flags.base_url);
  if (const char* key = std::getenv(kKeyVariable)) plan.target.api_key = key;
  plan.chat = flags.endpoint == "chat";
  plan.timeout = std::chrono::seconds(flags.timeout_s);
  if (plan.model.empty()) plan.model = first_model(plan.target);
  const LoadSummary summary = summarize(run_load(plan), goal);
  if (!summary.first_error.empty()) {
    std::fprintf(stderr, "nibble: the first of %lld failures: %s\n",
                 static_cast<long long>(summary.failed), summary.first_error.c_str());
  }
  if (summary.ok == 0) {
    throw Error(ErrorKind::kUnsupported,
                "no request was answered, " + std::to_string(summary.rejected) + " were rejected");
  }
  const std::vector<Figure> figures = figures_of(summary, !flags.goodput.empty());
  if (flags.json) return print_json(result_json(flags, summary, figures));
  print_text(plan, summary, figures);
}

}  // namespace

void add_bench_serve(CLI::App& bench) {
  auto flags = std::make_shared<BenchServeFlags>();
  CLI::App* command = bench.add_subcommand(
      "serve",
      "Load on any OpenAI server: throughput, latency percentiles, goodput. NIBBLE_API_KEY in the "
      "environment is sent as its key");
  const auto add = [&](const char* name, auto& value, const char* text) {
    return command->add_option(name, value, text)->capture_default_str();
  };
  LoadPlan& plan = flags->plan;
  add("--base-url", flags->base_url, "of the API, as clients take it");
  add("--model", plan.model, "empty: the first that the server names");
  add("--endpoint", flags->endpoint, "chat or completions")
      ->check(CLI::IsMember({"chat", "completions"}));
  add("--requests", plan.requests, "in all")->check(CLI::Range(1, 10'000'000));
  add("--rate", plan.rate, "requests a second at random, however many are under way (open loop)")
      ->check(CLI::Range(0.0, 1e6));
  add("--concurrency", plan.concurrency, "without --rate: clients that ask again once answered")
      ->check(CLI::Range(1, 10'000));
  add("--prompt-words", plan.prompt_words, "words of each prompt")->check(CLI::Range(1, 1'000'000));
  add("--shared-words", plan.shared_words, "of them, those that all prompts start with")
      ->check(CLI::NonNegativeNumber);
  add("--new-tokens", plan.new_tokens, "of each answer")->check(CLI::PositiveNumber);
  command->add_flag("--ignore-eos,!--no-ignore-eos", plan.ignore_eos,
                    "have every answer of full length (vLLM's extension)");
  add("--seed", plan.seed, "of prompts and times");
  add("--goodput", flags->goodput, "ttft:MS,tpot:MS,e2e:MS: count the answers within them");
  add("--timeout", flags->timeout_s, "seconds for each request")->check(CLI::Range(1, 86'400));
  add("--label", flags->label, "what the server is, for the result");
  command->add_flag("--json", flags->json, "the result in the schema of bench/results");
  command->callback([flags] { bench_serve(*flags); });
}

}  // namespace nibble::cli
