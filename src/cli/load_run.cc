#include "cli/load_run.h"

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "base/error.h"

namespace nibble::cli {
namespace {

namespace asio = boost::asio;
using Clock = std::chrono::steady_clock;

// Words that most vocabularies have as one token each.
constexpr const char* kWords[] = {
    "time",     "year",  "people", "way",     "day",    "man",     "thing",    "woman", "life",
    "child",    "world", "school", "state",   "family", "group",   "country",  "hand",  "part",
    "place",    "case",  "week",   "company", "system", "program", "question", "work",  "number",
    "night",    "point", "home",   "water",   "room",   "mother",  "area",     "money", "story",
    "fact",     "month", "lot",    "right",   "study",  "book",    "eye",      "job",   "word",
    "business", "issue", "side",   "kind",    "head"};

std::string words(std::mt19937_64& random, int32_t n) {
  std::uniform_int_distribution<size_t> any(0, std::size(kWords) - 1);
  std::string text;
  for (int32_t i = 0; i < n; ++i) text += (i == 0 ? "" : " ") + std::string(kWords[any(random)]);
  return text;
}

class Load {
 public:
  explicit Load(const LoadPlan& plan) : plan_(plan) {
    result_.exchanges.resize(static_cast<size_t>(plan.requests));
  }

  LoadResult run() {
    const auto start = Clock::now();
    if (plan_.rate > 0) {
      asio::co_spawn(io_, open_loop(), asio::detached);
    } else {
      for (int32_t c = 0; c < plan_.concurrency; ++c) {
        asio::co_spawn(io_, closed_loop(), asio::detached);
      }
    }
    io_.run();
    result_.seconds = std::chrono::duration<double>(Clock::now() - start).count();
    return std::move(result_);
  }

 private:
  asio::awaitable<void> one(int64_t index, LoadTime due) {
    result_.exchanges[static_cast<size_t>(index)] =
        co_await ask(plan_.target, plan_.chat ? "/chat/completions" : "/completions",
                     request_body(plan_, index), due, plan_.timeout);
  }

  asio::awaitable<void> closed_loop() {
    while (next_ < plan_.requests) co_await one(next_++, Clock::now());
  }

  // Requests are due when they are due, however slow the server: waiting counts.
  asio::awaitable<void> open_loop() {
    std::mt19937_64 random(plan_.seed);
    std::exponential_distribution<double> gap_s(plan_.rate);
    asio::steady_timer timer(io_);
    LoadTime due = Clock::now();
    while (next_ < plan_.requests) {
      timer.expires_at(due);
      co_await timer.async_wait(asio::use_awaitable);
      asio::co_spawn(io_, one(next_++, due), asio::detached);
      due +=
          std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(gap_s(random)));
    }
  }

  const LoadPlan& plan_;
  asio::io_context io_;
  int64_t next_ = 0;
  LoadResult result_;
};

bool is_good(const Exchange& e, const Goal& goal, double tpot_ms) {
  const auto within = [](const std::optional<double>& limit, double value) {
    return !limit || value <= *limit;
  };
  return within(goal.ttft_ms, 1e3 * e.ttft_s()) && within(goal.tpot_ms, tpot_ms) &&
         within(goal.e2e_ms, 1e3 * e.end_s);
}

}  // namespace

std::string request_body(const LoadPlan& plan, int64_t index) {
  std::mt19937_64 shared(plan.seed);
  std::mt19937_64 own(plan.seed * 1'000'003 + static_cast<uint64_t>(index) + 1);
  const int32_t shared_words = std::min(plan.shared_words, plan.prompt_words);
  std::string prompt = words(shared, shared_words);
  if (shared_words > 0) prompt += ' ';
  prompt += words(own, plan.prompt_words - shared_words);
  nlohmann::json body = {{"model", plan.model},
                         {"stream", true},
                         {"stream_options", {{"include_usage", true}}},
                         {"temperature", 0},
                         {"max_tokens", plan.new_tokens}};
  if (plan.ignore_eos) body["ignore_eos"] = true;
  if (plan.chat) {
    body["messages"] = {{{"role", "user"}, {"content", prompt}}};
  } else {
    body["prompt"] = prompt;
  }
  return body.dump();
}

LoadResult run_load(const LoadPlan& plan) { return Load(plan).run(); }

Goal parse_goal(const std::string& text) {
  Goal goal;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    const size_t colon = part.find(':');
    const std::string name = part.substr(0, colon);
    std::optional<double>* const limit = name == "ttft"   ? &goal.ttft_ms
                                         : name == "tpot" ? &goal.tpot_ms
                                         : name == "e2e"  ? &goal.e2e_ms
                                                          : nullptr;
    double ms = 0;
    char rest = 0;
    const bool is_number = colon != std::string::npos &&
                           std::sscanf(part.c_str() + colon + 1, "%lf%c", &ms, &rest) == 1;
    if (limit == nullptr || !is_number || !(ms > 0)) {
      throw Error(ErrorKind::kUsage,
                  "--goodput " + part + ": it must be ttft:MS, tpot:MS or e2e:MS, by commas");
    }
    *limit = ms;
  }
  return goal;
}

double percentile(std::vector<double> values, double percent) {
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  std::ranges::sort(values);
  const double rank = percent / 100 * static_cast<double>(values.size() - 1);
  const auto below = static_cast<size_t>(rank);
  const size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (rank - static_cast<double>(below)) * (values[above] - values[below]);
}

LoadSummary summarize(const LoadResult& result, const Goal& goal) {
  LoadSummary s{.seconds = result.seconds};
  for (const Exchange& e : result.exchanges) {
    if (!e.ok()) {
      const bool was_rejected = e.status == 429 || e.status == 503;
      ++(was_rejected ? s.rejected : s.failed);
      if (!was_rejected && s.first_error.empty()) s.first_error = e.error;
      continue;
    }
    ++s.ok;
    s.prompt_tokens += e.prompt_tokens;
    s.cached_tokens += e.cached_tokens;
    s.new_tokens += e.new_tokens;
    s.counted_by_server &= e.has_usage;
    s.e2e_ms.push_back(1e3 * e.end_s);
    if (e.chunks_s.empty()) continue;
    s.ttft_ms.push_back(1e3 * e.ttft_s());
    for (size_t i = 1; i < e.chunks_s.size(); ++i) {
      s.itl_ms.push_back(1e3 * (e.chunks_s[i] - e.chunks_s[i - 1]));
    }
    double tpot_ms = 0;
    if (e.new_tokens > 1) {
      tpot_ms =
          1e3 * (e.chunks_s.back() - e.chunks_s.front()) / static_cast<double>(e.new_tokens - 1);
      s.tpot_ms.push_back(tpot_ms);
    }
    s.good += is_good(e, goal, tpot_ms);
  }
  return s;
}

}  // namespace nibble::cli
