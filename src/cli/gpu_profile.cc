#include "cli/gpu_profile.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

namespace nibble::cli {
namespace {

struct Steps {
  int warm_up, counted;
};
// The first steps are those that record the graph, and that wait for a step begun ahead of them.
// Of a prompt the last step is looked at, whose time is taken to be the prompt's.
Steps steps_of(const BenchCase& what) {
  constexpr Steps kDecode = {4, 24};
  static_assert(2 * kDecode.warm_up + kDecode.counted <= kProfiledTokens);
  return what.decodes() ? kDecode : Steps{1, 3};
}

void run_steps(Engine& engine, const BenchCase& what, int steps,
               const std::function<void()>& after_step) {
  if (what.decodes()) return run_decode_steps(engine, what, steps, after_step);
  for (int i = 0; i < steps; ++i) {
    run_case(engine, what, 1);
    after_step();
  }
}

// What runs for the next step, behind the one before: passes of a head, states once more.
bool is_between_steps(std::string_view label) {
  return label.starts_with("draft/") || label.starts_with("replay/");
}

// An event before each op, the last one named "end". Where a step is recorded as a graph, its
// events fire whenever it runs.
class Marks {
 public:
  explicit Marks(cuda::StreamHandle stream) : stream_(stream) {}

  // For Engine::set_on_op(): of the row `name`.
  void add(std::string_view label, std::string name) {
    const bool is_between = is_between_steps(label);
    if (!is_between && !step_.empty() && marks_[step_.back()].name == "end")
      step_.clear();  // another kind
    (is_between ? between_ : step_).push_back(marks_.size());
    marks_.emplace_back(std::move(name)).event.record(stream_);
  }
  void begin_step() {
    // What ran before the last step, of which nobody asked.
    between_.erase(between_.begin(), between_.begin() + static_cast<std::ptrdiff_t>(num_before_));
    num_before_ = between_.size();
  }
  // Of the step that ran last: adds to each op what it took, divided by `steps`.
  void add_to(std::vector<StepProfile::Row>& rows, int steps) {
    for (StepProfile::Row& row : rows) row.launches = 0;
    const Order order = take();
    for (size_t i = 0; i + 1 < order.size(); ++i) {
      const Mark& mark = marks_[order[i]];
      auto row = std::ranges::find(rows, mark.name, &StepProfile::Row::op);
      if (row == rows.end()) row = rows.insert(row, {.op = mark.name});
      ++row->launches;
      row->alone_us += 1e3 * marks_[order[i + 1]].event.ms_since(mark.event) / steps;
    }
  }
  double span_us() {
    const Order order = take();
    return 1e3 * marks_[order.back()].event.ms_since(marks_[order.front()].event);
  }

 private:
  struct Mark {
    std::string name;
    cuda::Event event{cuda::Event::Kind::kTiming};
  };
  using Order = std::vector<size_t>;  // of marks_
  // All but what runs for the next step already.
  Order take() {
    const auto next = between_.begin() + static_cast<std::ptrdiff_t>(std::exchange(num_before_, 0));
    Order all(between_.begin(), next);
    between_.erase(between_.begin(), next);
    all.insert(all.end(), step_.begin(), step_.end());
    return all;
  }

  cuda::StreamHandle stream_;
  std::deque<Mark> marks_;  // all that ever were: a graph may still fire any of them
  Order between_, step_;
  size_t num_before_ = 0;  // of between_, before the step that runs
};

// Microseconds from step to step without that op ("": with all): of the middle one, as now and then
// one records a graph.
double step_us_without(Engine& engine, const BenchCase& what, const std::string& op) {
  using Clock = std::chrono::steady_clock;
  const Steps n = steps_of(what);
  Clock::time_point last;
  std::vector<double> us;
  int steps = 0;
  run_steps(engine, what, 2 * n.warm_up + n.counted, [&] {
    if (++steps == n.warm_up) engine.set_left_out(op);
    const Clock::time_point now = Clock::now();
    if (steps > 2 * n.warm_up)
      us.push_back(std::chrono::duration<double, std::micro>(now - last).count());
    last = now;
  });
  engine.set_left_out("");
  std::ranges::nth_element(us, us.begin() + n.counted / 2);
  return us[n.counted / 2];
}

}  // namespace

StepProfile profile_step(Engine& engine, cuda::StreamHandle stream, const BenchCase& what,
                         bool by_site, bool leave_out) {
  // "moe_up" of "moe_up.3".
  const auto row_of = [&](const std::string& label) {
    return by_site ? label : label.substr(0, label.find_first_of("/."));
  };
  StepProfile profile;
  Marks marks(stream);
  const Steps n = steps_of(what);
  int steps = 0;
  constexpr std::string_view kStep = "step";
  engine.set_on_op([&](const char* label) {
    label == kStep ? marks.begin_step() : marks.add(label, row_of(label));
  });
  run_steps(engine, what, n.warm_up + n.counted, [&] {
    if (++steps > n.warm_up) marks.add_to(profile.rows, n.counted);
  });
  bool is_first = true;  // of its step, or of what runs before it
  engine.set_on_op([&](const char* label) {
    if (label == kStep) return is_first = true, marks.begin_step();
    const std::string name = row_of(label);
    if (is_first || name == "end") marks.add(label, name);
    is_first = name == "end";
  });
  steps = 0;
  run_steps(engine, what, n.warm_up + n.counted, [&] {
    if (const double us = marks.span_us(); ++steps > n.warm_up) profile.gpu_us += us / n.counted;
  });
  engine.set_on_op({});
  profile.step_us = step_us_without(engine, what, "");
  if (!leave_out) return profile;
  for (StepProfile::Row& row : profile.rows)
    row.saved_us = profile.step_us - step_us_without(engine, what, row.op);
  return profile;
}

}  // namespace nibble::cli
