// Scenarios of tests/engine/*.test: requests above the dashes, what each step does below. See
// tests/engine/README.md for the words.
#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <string>

namespace nibble {
namespace {

namespace fs = std::filesystem;

using Words = std::map<std::string, int32_t>;  // "pages=4" is {"pages", 4}

struct Event {
  std::string name;
  Words words;
  int32_t at(const std::string& word, int32_t otherwise) const {
    const auto found = words.find(word);
    return found == words.end() ? otherwise : found->second;
  }
};

struct Scenario {
  Words settings;
  std::vector<Event> requests, cancels;
  std::string expected;
};

Scenario read_scenario(const fs::path& file) {
  Scenario scenario;
  std::ifstream in(file);
  std::string line;
  while (std::getline(in, line) && line != "----") {
    std::istringstream words(line.substr(0, line.find('#')));
    std::string verb, word;
    if (!(words >> verb)) continue;
    Event event;
    if (verb != "given") words >> event.name;
    while (words >> word) {
      const size_t equals = word.find('=');
      CHECK(equals != std::string::npos);
      event.words[word.substr(0, equals)] = std::stoi(word.substr(equals + 1));
    }
    if (verb == "given") {
      scenario.settings.merge(event.words);
    } else if (verb == "request") {
      scenario.requests.push_back(event);
    } else {
      CHECK(verb == "cancel");
      scenario.cancels.push_back(event);
    }
  }
  while (std::getline(in, line)) scenario.expected += line + "\n";
  return scenario;
}

class Play {
 public:
  explicit Play(const Scenario& scenario)
      : scenario_(scenario),
        kv_(info(), plan()),
        scheduler_(kv_, {.max_num_seqs = setting("seqs", 4),
                         .max_tokens = setting("tokens", 16),
                         .max_score_rows = setting("score_rows", 16),
                         .chunked = setting("chunked", 1) != 0}) {}

  std::string run() {
    for (int32_t step = 1; step <= 100; ++step) {
      arrive(step);
      const std::vector<Chunk> chunks = scheduler_.plan();
      for (const auto& [id, name] : names_) {
        if (sequences_[id]->num_computed < computed_[id]) say(step, name + " preempted");
      }
      if (chunks.empty() && later(step)) continue;
      if (chunks.empty()) break;
      std::string text;
      for (const Chunk& c : chunks) text += (text.empty() ? "" : ", ") + describe(c);
      if (setting("ahead", 0) != 0)
        text += scheduler_.reserve_ahead() ? " ahead" : " no page ahead";
      say(step, text);
      finish(step, chunks);
    }
    if (kv_.usage() != 0 || kv_.states().pool().num_used() != 0 ||
        scheduler_.num_running() + scheduler_.num_waiting() != 0) {
      text_ += "pages, states or sequences are left\n";
    }
    return text_;
  }

 private:
  int32_t setting(const std::string& word, int32_t otherwise) const {
    return Event{"", scenario_.settings}.at(word, otherwise);
  }

  ModelInfo info() const {
    ModelInfo info;
    info.num_layers = 1;
    info.groups = {{.layers = {0}, .num_kv_heads = 1, .head_dim = 1}};
    if (setting("window", 0) > 0) {
      info.num_layers = 2;
      info.groups.push_back(info.groups[0]);
      info.groups[1].window = setting("window", 0);
      info.groups[1].layers = {1};
    }
    if (setting("states", 0) > 0) {
      info.groups.push_back({.layers = {info.num_layers++}, .recurrent = {1, 1, 1, 1, 2}});
    }
    return info;
  }

  KvPlan plan() const {
    KvPlan plan{.options = {.page_size = setting("page", 4),
                            .max_num_seqs = setting("seqs", 4),
                            .prefix_cache = setting("cache", 0) != 0},
                .max_len = 1000,
                .group_pages = {setting("pages", 100)},
                .state_slots = setting("states", 0)};
    if (setting("window", 0) > 0) plan.group_pages.push_back(setting("window_pages", 100));
    if (setting("states", 0) > 0) plan.group_pages.push_back(0);
    return plan;
  }

  bool later(int32_t step) const {
    return std::any_of(scenario_.requests.begin(), scenario_.requests.end(),
                       [&](const Event& e) { return e.at("at", 1) > step; });
  }

  void arrive(int32_t step) {
    for (const Event& e : scenario_.requests) {
      if (e.at("at", 1) != step) continue;
      std::unique_ptr<Sequence> first = sequence_of(e, e.name);
      for (int32_t i = 1; i < e.at("n", 1); ++i) {
        first->forks.push_back(sequence_of(e, e.name + std::to_string(i)));
      }
      scheduler_.add(std::move(first));
    }
    for (const Event& e : scenario_.cancels) {
      if (e.at("at", 1) != step) continue;
      const auto named = std::find_if(names_.begin(), names_.end(),
                                      [&](const auto& n) { return n.second == e.name; });
      CHECK(named != names_.end());
      remove(step, named->first, " canceled");
    }
    while (const auto sequence = scheduler_.remove_expired(time_of(step))) {
      ended(step, sequence->id, " is too late");
    }
  }

  std::unique_ptr<Sequence> sequence_of(const Event& e, const std::string& name) {
    Request request;
    request.prompt.assign(e.at("prompt", 1), 0);
    request.max_tokens = e.at("output", 1);
    request.prompt_logprobs = e.at("score", 0) - 1;
    request.priority = e.at("priority", 0);
    if (e.at("deadline", 0) > 0) request.deadline = time_of(e.at("deadline", 0));
    auto sequence = std::make_unique<Sequence>(std::move(request), 0);
    sequence->id = next_id_++;
    sequence->times.submitted = time_of(e.at("at", 1) - e.at("waited", 0));
    names_[sequence->id] = name;
    sequences_[sequence->id] = sequence.get();
    return sequence;
  }

  static SteadyTime time_of(int32_t step) { return SteadyTime{} + std::chrono::seconds(step); }

  // "a 4+8": tokens [4, 12) of a; "a 4+8!": and the next one is sampled; "a 4+8=8": and 8 rows are
  // scored.
  std::string describe(const Chunk& c) const {
    std::string text =
        names_.at(c.sequence->id) + " " + std::to_string(c.begin) + "+" + std::to_string(c.length);
    if (!c.sequence->is_scored()) return text + "=" + std::to_string(c.num_out);
    return text + (c.num_out > 0 ? "!" : "");
  }

  void finish(int32_t step, const std::vector<Chunk>& chunks) {
    scheduler_.commit();
    for (const Chunk& c : chunks) {
      Sequence& sequence = *c.sequence;
      computed_[sequence.id] = sequence.num_computed;
      if (!sequence.is_scored()) sequence.num_scored += c.num_out;
      if (sequence.num_left() > 0) continue;
      if (sequence.num_output() < sequence.request.max_tokens) sequence.append(0);
      if (sequence.num_output() == sequence.request.max_tokens) remove(step, sequence.id, " ends");
    }
    for (const auto& [id, name] : names_) computed_[id] = sequences_[id]->num_computed;
  }

  void remove(int32_t step, RequestId id, const std::string& how) {
    CHECK(scheduler_.remove(id) != nullptr);
    ended(step, id, how);
  }

  void ended(int32_t step, RequestId id, const std::string& how) {
    const std::string name = names_.at(id);
    names_.erase(id);
    sequences_.erase(id);
    say(step, name + how);
  }

  void say(int32_t step, const std::string& what) {
    text_ += std::to_string(step) + ": " + what + "\n";
  }

  const Scenario& scenario_;
  KvCache kv_;
  Scheduler scheduler_;
  RequestId next_id_ = 0;
  std::map<RequestId, std::string> names_;
  std::map<RequestId, Sequence*> sequences_;
  std::map<RequestId, int32_t> computed_;
  std::string text_;
};

TEST(Scheduler, Scenarios) {
  int num_scenarios = 0;
  for (const auto& entry : fs::directory_iterator(fs::path(NIBBLE_SOURCE_DIR) / "tests/engine")) {
    if (entry.path().extension() != ".test") continue;
    ++num_scenarios;
    const Scenario scenario = read_scenario(entry.path());
    EXPECT_EQ(Play(scenario).run(), scenario.expected) << entry.path();
  }
  EXPECT_GE(num_scenarios, 8);
}

}  // namespace
}  // namespace nibble
