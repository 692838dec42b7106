#include "engine/gpu_steps.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/error.h"
#include "base/log.h"
#include "cuda/memory.h"
#include "dist/comm.h"

namespace nibble {
namespace {

int64_t mask_bytes(const ModelInfo& info) {
  return (info.vocab_size + 31) / 32 * static_cast<int64_t>(sizeof(uint32_t));
}
int64_t ids_bytes(const StepLimits& limits) {
  return limits.max_out * static_cast<int64_t>(sizeof(int32_t));
}

int64_t whole_bytes(const ModelInfo& info, const StepLimits& limits) {
  if (info.logits.is_whole()) return 0;
  return ops::WholeLogits::bytes(info.vocab_size, limits.max_out);
}

// A step whose ranks all live takes no longer.
constexpr std::chrono::seconds kLongestStep{60};

int64_t spans_bytes(int32_t max_num_seqs) {
  return max_num_seqs * static_cast<int64_t>(sizeof(Span));
}

}  // namespace

GpuSteps::GpuSteps(Model& model, ops::Ctx& cx, GpuPages& pages, SeqState kv,
                   const StepLimits& limits, int32_t max_num_seqs,
                   std::span<const int32_t> masked_ids, bool graphs)
    : model_(model),
      cx_(cx),
      pages_(pages),
      kv_(kv),
      max_out_(limits.max_out),
      use_graphs_(graphs),
      block_(cuda::device_buffer(StepBlock::bytes(limits, max_num_seqs))),
      never_(cx.allocate(mask_bytes(model.info()))),
      ids_(cx.allocate(ids_bytes(limits))),
      greedy_(cuda::pinned_buffer(2 * max_out_ * static_cast<int64_t>(sizeof(ops::Greedy)))),
      spans_(cuda::pinned_buffer(spans_bytes(max_num_seqs))),
      replayed_(cx.allocate(spans_bytes(max_num_seqs))) {
  const Cut& cut = model.info().logits;
  if (!cut.is_whole())
    whole_ = std::make_unique<ops::WholeLogits>(cx, ops::VocabCut{cut.all, cut.begin, cut.size},
                                                limits.max_out);
  for (RowHere& here : here_)
    here.logits =
        cuda::pinned_buffer(model.info().vocab_size * static_cast<int64_t>(sizeof(float)));
  wanted_.reserve(max_out_);
  std::vector<uint32_t> never(never_.size_bytes() / sizeof(uint32_t));
  for (const int32_t id : masked_ids) never[id / 32] |= uint32_t{1} << (id % 32);
  cuda::copy(never_.data(), never.data(), never_.size_bytes());
}

GpuSteps::~GpuSteps() {
  try {
    cuda::wait(cx_.stream);
  } catch (const std::exception& e) {
    LOG_ERROR("%s", e.what());
  }
}

int64_t GpuSteps::device_bytes(const ModelInfo& info, const StepLimits& limits,
                               int32_t max_num_seqs) {
  return StepBlock::bytes(limits, max_num_seqs) + mask_bytes(info) + ids_bytes(limits) +
         whole_bytes(info, limits) + spans_bytes(max_num_seqs);
}

bool GpuSteps::feeds_next(const Step& step) const {
  return step.num_tokens == step.num_spans && step.num_tokens == step.num_out && use_graphs_ &&
         !cx_.tap;
}

void GpuSteps::launch(const StepBlock& block, bool is_fed, const DraftedTokens& drafted) {
  const Step host = block.step();
  CHECK(!is_fed || (use_graphs_ && host.num_tokens == host.num_out));
  if (cx_.on_op) cx_.on_op("step");
  pages_.flush();
  cuda::copy_async(block_.data(), block.data(), block.used_bytes(), cx_.stream);
  Step step = block.step_at(block_.data());
  if (drafted.n > 0)
    ops::copy_ids(cx_, const_cast<int32_t*>(step.tokens), drafted.ids, drafted.copies, drafted.n);
  if (is_fed) step.tokens = found_ids();
  const ops::Draw* const draws = block.draws_at(block_.data());
  const auto run = [&] { return this->run(step, draws); };
  const Like like{.tokens = step.num_tokens,
                  .spans = step.num_spans,
                  .max_context = step.max_context,
                  .is_replay = false,
                  .is_fed = is_fed,
                  .draws = draws != nullptr};
  const bool only_decodes = step.num_tokens == step.num_out;
  logits_ = only_decodes ? launch_like(like, run) : run();
  for (RowHere& here : here_) here.row = RowHere::kNone;
  wanted_.clear();
  done_[block.turn()].record(cx_.stream);
}

Tensor GpuSteps::launch_like(const Like& like, const std::function<Tensor()>& run) {
  if (!use_graphs_ || cx_.tap || like.tokens > kMaxGraphTokens) return run();
  const bool is_rare = like.tokens > kFewTokens || like.tokens > like.spans;
  if (is_rare && !graphs_.has(like) && !std::exchange(came_.use(like), true)) {
    was_first_ = true;
    return run();
  }
  // A graph that goes and still runs is freed when it ends (cuGraphExecDestroy).
  Recorded& kept = graphs_.use(like);
  if (!kept.graph) {
    was_first_ = true;
    kept.graph = cuda::Graph(cx_.stream, [&] { kept.logits = run(); });
  }
  kept.graph.launch(cx_.stream);
  return kept.logits;
}

Tensor GpuSteps::run(const Step& step, const ops::Draw* draws) {
  Tensor logits = model_.forward(cx_, step, kv_);
  // Ranks look each at its own columns, and tell each other what is likeliest in them.
  const bool are_apart = whole_ != nullptr && whole_->are_apart();
  if (are_apart)
    whole_->keep(cx_, logits);
  else if (whole_ != nullptr)
    logits = whole_->gather(cx_, logits);
  if (history_ != nullptr) history_->keep(cx_, step);
  if (cx_.on_op) cx_.on_op("sample");
  const ops::GreedyOut out{
      .rows = static_cast<ops::Greedy*>(greedy_.data()),
      .stride = max_out_,
      .turn = StepBlock::turn_at(block_.data()),
      .ids = static_cast<int32_t*>(ids_.data()),
      .first_id = are_apart ? static_cast<int32_t>(model_.info().logits.begin) : 0};
  const auto* const never = static_cast<const uint32_t*>(never_.data());
  if (cx_.left_out != "sample") {
    ops::sample_greedy(cx_, out, logits, never);
    if (are_apart) ops::join_greedy(cx_, out, logits.dim(0));
  }
  if (draws != nullptr && are_apart)
    ops::sample_drawn_over_ranks(cx_, out, logits, never, draws);
  else if (draws != nullptr)
    ops::sample_drawn(cx_, out, logits, never, draws);
  if (cx_.on_op) cx_.on_op("end");
  return logits;
}

void GpuSteps::replay(const StepBlock& block, std::span<const Span> spans) {
  std::ranges::copy(spans, static_cast<Span*>(spans_.data()));
  cuda::copy_async(replayed_.data(), spans_.data(), static_cast<int64_t>(spans.size_bytes()),
                   cx_.stream);
  Step step = block.step_at(block_.data());
  step.spans = static_cast<const Span*>(replayed_.data());
  const auto run = [&] { return model_.replay(cx_, step, kv_), Tensor(); };
  if (cx_.on_op) return static_cast<void>(run());  // it tells the ops of every replay
  launch_like({.tokens = step.num_tokens,
               .spans = step.num_spans,
               .max_context = 0,  // no attention
               .is_replay = true,
               .is_fed = false,
               .draws = false},
              run);
}

void GpuSteps::forget_graphs() {
  cuda::wait(cx_.stream);
  came_.clear();
  graphs_.clear();
}

void GpuSteps::wait(const StepBlock& block) {
  const cuda::Event& done = done_[block.turn()];
  if (cx_.comm == nullptr) return done.wait();
  const auto until = std::chrono::steady_clock::now() + kLongestStep;
  while (!done.is_done()) {
    cx_.comm->check();
    if (std::chrono::steady_clock::now() > until)
      throw Error(ErrorKind::kUnsupported, "a step of all ranks did not end within " +
                                               std::to_string(kLongestStep.count()) + " seconds");
  }
  cx_.comm->check();  // it may have ended without a sum
}

ops::Greedy GpuSteps::found(const StepBlock& block, int64_t row) const {
  CHECK(row < max_out_);
  return static_cast<const ops::Greedy*>(greedy_.data())[block.turn() * max_out_ + row];
}

void GpuSteps::fetch(std::span<const int64_t> rows) {
  wanted_.assign(rows.begin(), rows.end());
  for (const int64_t row : wanted_)
    if (row < wanted_.front() + kRowsHere) begin_copy(row);
}

std::span<float> GpuSteps::logits(int64_t row) {
  begin_copy(row);
  for (auto next = std::ranges::upper_bound(wanted_, row);
       next != wanted_.end() && *next < row + kRowsHere; ++next)
    begin_copy(*next);
  RowHere& here = here_[row % kRowsHere];
  here.has_come.wait();
  return {static_cast<float*>(here.logits.data()), static_cast<size_t>(model_.info().vocab_size)};
}

// In place of the row that was there.
void GpuSteps::begin_copy(int64_t row) {
  CHECK(row < logits_.dim(0));
  RowHere& here = here_[row % kRowsHere];
  if (here.row == row) return;
  const std::span<float> to(static_cast<float*>(here.logits.data()), model_.info().vocab_size);
  if (whole_ != nullptr)
    whole_->read(cx_, row, to);
  else
    cuda::copy_async(to.data(), logits_.as<float>() + row * logits_.dim(1),
                     static_cast<int64_t>(to.size_bytes()), cx_.stream);
  here.has_come.record(cx_.stream);
  here.row = row;
}

}  // namespace nibble
