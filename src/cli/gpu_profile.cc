#include "cli/gpu_profile.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <functional>
#include <string>
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

// An event before each op, the last one named "end". Where a step is recorded as a graph, the
// events fire whenever it runs.
class Marks {
 public:
  explicit Marks(cuda::StreamHandle stream) : stream_(stream) {}

  // For Engine::set_on_op().
  void add(std::string name) {
    if (!marks_.empty() && marks_.back().name == "end") marks_.clear();  // another kind of step
    marks_.emplace_back();
    marks_.back().name = std::move(name);
    marks_.back().event.record(stream_);
  }
  // Of the step that ran last: adds to each op what it took, divided by `steps`.
  void add_to(std::vector<StepProfile::Row>& rows, int steps) const {
    for (StepProfile::Row& row : rows) row.launches = 0;
    for (size_t i = 0; i + 1 < marks_.size(); ++i) {
      auto row = std::ranges::find(rows, marks_[i].name, &StepProfile::Row::op);
      if (row == rows.end()) row = rows.insert(row, {.op = marks_[i].name});
      ++row->launches;
      row->alone_us += 1e3 * marks_[i + 1].event.ms_since(marks_[i].event) / steps;
    }
  }
  double span_us() const { return 1e3 * marks_.back().event.ms_since(marks_.front().event); }

 private:
  struct Mark {
    std::string name;
    cuda::Event event{cuda::Event::Kind::kTiming};
  };
  cuda::StreamHandle stream_;
  std::deque<Mark> marks_;
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
                         bool by_site) {
  // "moe_up" of "moe_up.3".
  const auto row_of = [&](const std::string& label) {
    return by_site ? label : label.substr(0, label.find_first_of("/."));
  };
  StepProfile profile;
  Marks marks(stream);
  const Steps n = steps_of(what);
  int steps = 0;
  engine.set_on_op([&](const char* label) { marks.add(row_of(label)); });
  run_steps(engine, what, n.warm_up + n.counted, [&] {
    if (++steps > n.warm_up) marks.add_to(profile.rows, n.counted);
  });
  const std::string first = profile.rows.front().op;
  bool is_first = true;  // of its step
  engine.set_on_op([&](const char* label) {
    const std::string name = row_of(label);
    if ((name == first && is_first) || name == "end") marks.add(name);
    is_first = name == "end";
  });
  steps = 0;
  run_steps(engine, what, n.warm_up + n.counted, [&] {
    if (++steps > n.warm_up) profile.gpu_us += marks.span_us() / n.counted;
  });
  engine.set_on_op({});
  profile.step_us = step_us_without(engine, what, "");
  for (StepProfile::Row& row : profile.rows)
    row.saved_us = profile.step_us - step_us_without(engine, what, row.op);
  return profile;
}

}  // namespace nibble::cli
