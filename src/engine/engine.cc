#include "engine/engine.h"

#include <algorithm>
#include <condition_variable>
#include <limits>
#include <mutex>
#include <new>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "cuda/memory.h"
#include "engine/activity_log.h"
#include "engine/engine_options.h"
#include "engine/gpu_pages.h"
#include "engine/gpu_steps.h"
#include "engine/kv_cache.h"
#include "engine/kv_plan.h"
#include "engine/logprobs.h"
#include "engine/request_check.h"
#include "engine/sampler.h"
#include "engine/scheduler.h"
#include "engine/sequence.h"
#include "engine/step_block.h"

namespace nibble {
namespace {

// Whether the GPU finds what is asked for: it does not know of masks of one row.
bool is_found(const Request& request, const Sampler::Masks& masks) {
  return is_found_on_gpu(request.sampling) && masks.allowed.empty() && masks.banned.empty();
}

uint64_t random_seed() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

}  // namespace

class Engine::Impl {
 public:
  Impl(Model& model, ops::Ctx cx, const EngineOptions& options);
  ~Impl();

  void start();
  bool step();
  void set_on_op(std::function<void(const char*)> on_op) {
    cx_.on_op = std::move(on_op);
    if (gpu_ != nullptr) gpu_->forget_graphs();
  }
  void set_left_out(std::string op) {
    cx_.left_out = std::move(op);
    if (gpu_ != nullptr) gpu_->forget_graphs();
  }
  void set_tap(ops::Tap tap, std::string only) {
    cx_.tap = std::move(tap);
    cx_.tap_only = std::move(only);
  }
  Result<std::vector<RequestId>> submit(std::vector<Request> requests);
  void cancel(RequestId id);
  void mask_came();
  EngineStats stats() const;
  const KvPlan& kv_plan() const { return kv_.plan(); }
  const Model& model() const { return model_; }

 private:
  // One token of a step that was begun ahead.
  struct AheadRow {
    RequestId id;
    int32_t slot, begin;
  };
  // What other threads ask for, until the engine's thread takes it over.
  struct Inbox {
    std::vector<std::unique_ptr<Sequence>> submitted;
    std::vector<RequestId> canceled;
    bool mask_came = false;
    bool stop = false;
    bool empty() const { return submitted.empty() && canceled.empty() && !mask_came && !stop; }
  };

  void run();
  void take_inbox();
  bool wait_for_inbox(std::unique_lock<std::mutex>& lock);
  void hold_unmasked();
  bool plan() noexcept;
  void launch();
  void finish();
  void fail_all(const std::string& why) noexcept;

  std::unique_ptr<PageMemory> page_memory();
  Buffer step_memory(const EngineOptions& options) const;
  std::span<float> logits_row(int64_t row);
  Sampler::Sampled found(int64_t row);
  Sampler::Masks masks_of(const Sequence& sequence);
  void launch_on_gpu();
  bool is_ahead(const std::vector<Chunk>& chunks) const;
  bool plan_ahead(const std::vector<Chunk>& chunks);
  bool advance(Sequence& sequence, int64_t row, int64_t end_row);
  bool score(Sequence& sequence, int64_t row);
  bool sample(Sequence& sequence, int64_t row);
  bool report_end(const Sequence& sequence, FinishReason reason, const std::string& error,
                  bool is_bad_request = false);
  void publish_stats();

  Model& model_;
  ops::Ctx cx_;
  RequestLimits request_limits_;
  KvPlan kv_plan_;
  GpuPages* gpu_pages_ = nullptr;  // kv_'s memory, on a GPU
  KvCache kv_;
  StepLimits step_limits_;
  Scheduler scheduler_;
  StepBlock blocks_[2];              // of the step at hand, and of the one begun ahead of it
  int32_t turn_ = 0;                 // which is the step at hand's
  std::vector<AheadRow> ahead_;      // of the step begun ahead; empty: there is none
  std::vector<AheadRow> begun_;      // of the step at hand, where it was begun ahead
  std::vector<Chunk> ahead_chunks_;  // the same, while it is written
  std::unique_ptr<GpuSteps> gpu_;    // none on CPUs
  Sampler sampler_;
  Tensor logits_;               // of the step that ran last, [R, V]
  std::vector<uint32_t> bits_;  // [V / 32] of a grammar
  Output output_;
  PromptLogprobs prompt_logprobs_;
  std::vector<RequestId> ended_;  // in this step
  EngineStats counters_;          // the engine thread's own
  bool log_activity_;
  ActivityLog log_;

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable wake_;
  Inbox inbox_;
  RequestId next_id_ = 1;
  EngineStats stats_;

  std::thread thread_;
};

Engine::Impl::Impl(Model& model, ops::Ctx cx, const EngineOptions& options)
    : model_(model),
      cx_(std::move(cx)),
      kv_plan_((check(model.info(), options), plan_kv(model.info(), kv_options(options)))),
      kv_(model.info(), kv_plan_, page_memory()),
      step_limits_(step_limits(model.info(), options)),
      scheduler_(kv_, {.max_num_seqs = options.max_num_seqs,
                       .max_tokens = options.max_num_batched_tokens,
                       .max_score_rows = step_limits_.max_out - options.max_num_seqs,
                       .chunked = options.chunked_prefill}),
      blocks_{{step_limits_, step_memory(options), 0}, {step_limits_, step_memory(options), 1}},
      sampler_(model.info().vocab_size, options.masked_ids),
      bits_((model.info().vocab_size + 31) / 32),
      log_activity_(options.log_activity) {
  request_limits_ = {.vocab_size = model.info().vocab_size, .max_model_len = kv_.plan().max_len};
  ended_.reserve(options.max_num_seqs);
  ahead_.reserve(options.max_num_seqs);
  begun_.reserve(options.max_num_seqs);
  ahead_chunks_.reserve(options.max_num_seqs);
  model_.reserve(cx_, step_limits_);
  if (cx_.on_gpu()) {
    gpu_ = std::make_unique<GpuSteps>(model_, cx_, *gpu_pages_, kv_.state(), step_limits_,
                                      options.max_num_seqs, options.masked_ids, options.graphs);
  }
}

// Of the KvCache: on the GPU where the model is.
std::unique_ptr<PageMemory> Engine::Impl::page_memory() {
  if (!cx_.on_gpu()) return nullptr;
  const ModelInfo& info = model_.info();
  auto pages = std::make_unique<GpuPages>(
      KvCache::arena_bytes(info, kv_plan_),
      KvCache::table_entries(info, kv_plan_.options, kv_plan_.max_len), cx_.stream);
  gpu_pages_ = pages.get();
  return pages;
}

// Page-locked where a GPU fetches the steps.
Buffer Engine::Impl::step_memory(const EngineOptions& options) const {
  const int64_t bytes = StepBlock::bytes(step_limits_, options.max_num_seqs);
  return cx_.on_gpu() ? cuda::pinned_buffer(bytes) : Buffer(bytes);
}

Engine::Impl::~Impl() {
  {
    const std::lock_guard lock(mutex_);
    inbox_.stop = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
  take_inbox();
  while (auto sequence = scheduler_.remove_any()) {
    report_end(*sequence, FinishReason::kCanceled, "");
  }
}

void Engine::Impl::start() {
  CHECK(!thread_.joinable());
  thread_ = std::thread([this] { run(); });
}

void Engine::Impl::run() {
  while (true) {
    if (step()) continue;
    std::unique_lock lock(mutex_);
    wait_for_inbox(lock);
    if (inbox_.stop) return;
  }
}

// Held sequences have deadlines, too. False: it is still empty.
bool Engine::Impl::wait_for_inbox(std::unique_lock<std::mutex>& lock) {
  constexpr std::chrono::milliseconds kLookAtDeadlines{100};
  const auto has_some = [this] { return !inbox_.empty(); };
  if (scheduler_.num_running() > 0) return wake_.wait_for(lock, kLookAtDeadlines, has_some);
  wake_.wait(lock, has_some);
  return true;
}

bool Engine::Impl::step() {
  {
    const std::lock_guard lock(mutex_);
    if (inbox_.stop) return false;
  }
  if (!plan()) return false;
  try {
    launch();
    finish();
  } catch (const std::exception& e) {
    std::string why = e.what();
    if (gpu_ != nullptr) why += "; the last op launched was " + cx_.last_op();
    fail_all(why);
  } catch (...) {
    fail_all("unknown exception");
  }
  return true;
}

// Empties the inbox: new requests wait, canceled ones end and free their pages.
void Engine::Impl::take_inbox() {
  Inbox inbox;
  {
    const std::lock_guard lock(mutex_);
    std::swap(inbox.submitted, inbox_.submitted);
    std::swap(inbox.canceled, inbox_.canceled);
    inbox_.mask_came = false;
  }
  for (auto& sequence : inbox.submitted) {
    counters_.metrics.request_params_max_tokens.add(sequence->request.max_tokens);
    counters_.metrics.request_params_n.add(1 + static_cast<double>(sequence->forks.size()));
    scheduler_.add(std::move(sequence));
  }
  for (RequestId id : inbox.canceled) {
    if (auto sequence = scheduler_.remove(id)) {
      report_end(*sequence, FinishReason::kCanceled, "");
    }
  }
  while (auto sequence = scheduler_.remove_expired(std::chrono::steady_clock::now())) {
    report_end(*sequence, FinishReason::kDeadline, "");
  }
}

bool Engine::Impl::plan() noexcept {
  take_inbox();
  // Who waits now, for pages or a mask, waits for the step that was begun, which runs whatever is
  // planned.
  const bool admits = ahead_.empty() || scheduler_.num_running() == scheduler_.num_held();
  if (admits) scheduler_.release_held();
  const std::vector<Chunk>& chunks = scheduler_.plan(admits);
  // One sequence always fits, so what waits gets on.
  CHECK(!chunks.empty() || scheduler_.num_held() > 0 ||
        scheduler_.num_running() + scheduler_.num_waiting() == 0);
  publish_stats();
  return !chunks.empty();
}

void Engine::Impl::launch() {
  if (gpu_ != nullptr) return launch_on_gpu();
  blocks_[turn_].fill(scheduler_.chunks());
  logits_ = model_.forward(cx_, blocks_[turn_].step(), kv_.state());
}

// Runs the step at hand, unless it was begun ahead, and begins the one after it where that needs
// nothing that is not known yet; then the GPU does not idle while the host reports what it found.
void Engine::Impl::launch_on_gpu() {
  const std::vector<Chunk>& chunks = scheduler_.chunks();
  StepBlock& block = blocks_[turn_];
  begun_.clear();
  if (is_ahead(chunks)) {
    std::swap(begun_, ahead_);
  } else {
    if (!ahead_.empty()) gpu_->wait(block);  // begun for nothing
    block.fill(chunks);
    gpu_->launch(block);
  }
  ahead_.clear();
  if (gpu_->feeds_next(block.step()) && plan_ahead(chunks)) {
    StepBlock& next = blocks_[1 - turn_];
    next.fill(ahead_chunks_, /*is_ahead=*/true);
    gpu_->launch(next, /*is_fed=*/true);
  }
  gpu_->wait(block);
}

// Whether the step begun ahead has all of this one's tokens: it may have those of sequences that
// have ended since.
bool Engine::Impl::is_ahead(const std::vector<Chunk>& chunks) const {
  auto row = ahead_.begin();
  return !ahead_.empty() && std::ranges::all_of(chunks, [&](const Chunk& c) {
    row = std::ranges::find(row, ahead_.end(), c.sequence->id, &AheadRow::id);
    return row != ahead_.end() && c.sequence->slot == row->slot && c.begin == row->begin &&
           c.length == 1 && c.num_out == 1;
  });
}

// ahead_: the next token of each of the chunks, if they are all that the step at hand has, the GPU
// finds all that is asked of them, nobody waits, none ends by its length, and there are pages for
// them.
bool Engine::Impl::plan_ahead(const std::vector<Chunk>& chunks) {
  if (begun_.size() > chunks.size() || scheduler_.num_waiting() > 0 || cx_.on_op) return false;
  if (scheduler_.has_released()) return false;
  ahead_chunks_.clear();
  for (const Chunk& chunk : chunks) {
    const Sequence& s = *chunk.sequence;
    const bool ends = s.num_output() + 1 >= s.request.max_tokens;
    const bool is_masked = s.mask_state() != MaskState::kReady;
    if (ends || !s.is_scored() || is_masked || !is_found(s.request, masks_of(s))) {
      ahead_.clear();
      return false;
    }
    ahead_.push_back({s.id, s.slot, chunk.begin + 1});
    ahead_chunks_.push_back({chunk.sequence, chunk.begin + 1, 1, 1});
  }
  if (scheduler_.reserve_ahead()) return true;
  ahead_.clear();
  return false;
}

// Sequences whose masks are not there yet are held; unless there is nothing else to do, when the
// first mask is waited for.
void Engine::Impl::hold_unmasked() {
  const std::vector<Chunk>& chunks = scheduler_.chunks();
  const auto lacks_mask = [](const Chunk& chunk) {
    return chunk.begin + chunk.length == chunk.sequence->length() &&
           chunk.sequence->mask_state() == MaskState::kPending;
  };
  while (std::ranges::all_of(chunks, lacks_mask) && !scheduler_.has_released()) {
    std::unique_lock lock(mutex_);
    if (!wait_for_inbox(lock) || !std::exchange(inbox_.mask_came, false)) break;
  }
  for (size_t i = 0; i < chunks.size(); ++i) {
    if (lacks_mask(chunks[i])) scheduler_.hold(i);
  }
}

// Reports log-probabilities of prompts, samples, and takes out what has ended.
void Engine::Impl::finish() {
  hold_unmasked();
  scheduler_.commit();
  ++counters_.num_steps;
  counters_.metrics.iteration_tokens.add(blocks_[turn_].step().num_tokens);
  ended_.clear();
  int64_t row = 0;
  for (const Chunk& chunk : scheduler_.chunks()) {
    Sequence& sequence = *chunk.sequence;
    while (!begun_.empty() && begun_[row].id != sequence.id) ++row;  // of one that has ended
    counters_.prompt_tokens +=
        std::clamp(sequence.num_prompt - chunk.begin, int32_t{0}, chunk.length);
    if (!advance(sequence, row, row + chunk.num_out)) ended_.push_back(sequence.id);
    row += chunk.num_out;
  }
  for (RequestId id : ended_) scheduler_.remove(id);
  turn_ = 1 - turn_;
  publish_stats();
  if (log_activity_) log_.after_step(counters_, std::chrono::steady_clock::now());
}

// What the step's rows [row, end_row) say of a sequence; false: it has ended. Memory that its
// watcher or its listener does not get ends it alone.
bool Engine::Impl::advance(Sequence& sequence, int64_t row, int64_t end_row) {
  try {
    if (sequence.is_scored()) {
      return row == end_row || sequence.is_held || sample(sequence, row);
    }
    for (; row < end_row; ++row) {
      if (!score(sequence, row)) return false;
    }
    return !sequence.is_scored() || sequence.is_held || sample(sequence, end_row - 1);
  } catch (const std::bad_alloc&) {
    return report_end(sequence, FinishReason::kError, "no memory is left for this request");
  }
}

std::span<float> Engine::Impl::logits_row(int64_t row) {
  if (gpu_ != nullptr) return gpu_->logits(row);
  const int64_t vocab = logits_.dim(1);
  CHECK(row < logits_.dim(0));
  return {logits_.as<float>() + row * vocab, static_cast<size_t>(vocab)};
}

// Reports the next prompt position; false: the sequence has ended.
bool Engine::Impl::score(Sequence& sequence, int64_t row) {
  const std::span<float> logits = logits_row(row);
  if (!all_finite(logits)) return report_end(sequence, FinishReason::kError, kNotNumbers);
  const int32_t position = sequence.num_scored++;
  const double lse = log_sum_exp(logits);
  prompt_logprobs_.position = position;
  prompt_logprobs_.id = sequence.tokens[position];
  prompt_logprobs_.next_logprob =
      position + 1 < sequence.num_prompt
          ? static_cast<float>(logits[sequence.tokens[position + 1]] - lse)
          : std::numeric_limits<float>::quiet_NaN();
  top_logprobs(logits, lse, sequence.request.prompt_logprobs, sampler_.work(),
               prompt_logprobs_.top);
  sequence.request.on_prompt_logprobs(prompt_logprobs_);
  return true;
}

// For the next id of a sequence; bits_ holds those allowed.
Sampler::Masks Engine::Impl::masks_of(const Sequence& sequence) {
  const Request& request = sequence.request;
  Sampler::Masks masks;
  if (request.watcher != nullptr) {
    std::fill(bits_.begin(), bits_.end(), ~uint32_t{0});
    if (request.watcher->mask(bits_)) masks.allowed = bits_;
  }
  if (sequence.num_output() < request.min_tokens) masks.banned = request.stop_ids;
  return masks;
}

// What the GPU has found for every row.
Sampler::Sampled Engine::Impl::found(int64_t row) {
  output_.top.clear();
  const ops::Greedy found = gpu_->found(blocks_[turn_], row);
  if (found.id == ops::Greedy::kNotFinite) return {.error = kNotNumbers};
  if (found.id == ops::Greedy::kNone) return {.error = kAllMasked};
  return {.id = found.id, .logprob = found.logprob};
}

// Appends one id and reports it; false: the sequence has ended.
bool Engine::Impl::sample(Sequence& sequence, int64_t row) {
  const Request& request = sequence.request;
  if (request.max_tokens == 0) return report_end(sequence, FinishReason::kLength, "");
  if (sequence.mask_state() == MaskState::kFailed) {
    return report_end(sequence, FinishReason::kError, request.watcher->fault(), true);
  }
  const Sampler::Masks masks = masks_of(sequence);
  const Sampler::Sampled sampled = gpu_ != nullptr && is_found(request, masks)
                                       ? found(row)
                                       : sampler_.sample(logits_row(row), request.sampling,
                                                         sequence.sampling, masks, output_.top);
  if (sampled.error != nullptr) {
    return report_end(sequence, FinishReason::kError, sampled.error, sampled.error == kAllMasked);
  }

  sequence.append(sampled.id);
  ++counters_.generation_tokens;
  const SteadyTime now = std::chrono::steady_clock::now();
  counters_.metrics.on_token(sequence.times, now);
  const bool stops = std::ranges::find(request.stop_ids, sampled.id) != request.stop_ids.end();
  const bool told =
      request.watcher != nullptr && request.watcher->accept(sampled.id) == Watch::kStop;
  output_.id = sampled.id;
  output_.logprob = sampled.logprob;
  output_.cached_tokens = sequence.num_cached;
  output_.finish = stops || told                                 ? FinishReason::kStop
                   : sequence.num_output() == request.max_tokens ? FinishReason::kLength
                                                                 : FinishReason::kNone;
  const bool goes_on = output_.finish == FinishReason::kNone;
  if (!goes_on) {
    counters_.metrics.on_end(sequence.times, output_.finish, sequence.num_prompt,
                             sequence.num_output(), now);
  }
  request.on_output(output_);
  return goes_on;
}

// The last event of a sequence, without a token. Returns false, as its callers do.
bool Engine::Impl::report_end(const Sequence& sequence, FinishReason reason,
                              const std::string& error, bool is_bad_request) {
  counters_.metrics.on_end(sequence.times, reason, sequence.num_prompt, sequence.num_output(),
                           std::chrono::steady_clock::now());
  sequence.request.on_output({.finish = reason, .error = error, .is_bad_request = is_bad_request});
  return false;
}

// Ends everything that was ever submitted and has not ended; from now on submit() refuses.
void Engine::Impl::fail_all(const std::string& why) noexcept {
  LOG_ERROR("the model failed in step %lld: %s", static_cast<long long>(counters_.num_steps),
            why.c_str());
  counters_.failed = true;
  publish_stats();
  for (const RequestId id : ended_) scheduler_.remove(id);  // of the step that failed
  take_inbox();
  while (auto sequence = scheduler_.remove_any()) {
    report_end(*sequence, FinishReason::kError, "the model failed: " + why);
  }
  publish_stats();
}

void Engine::Impl::publish_stats() {
  counters_.num_running = scheduler_.num_running();
  counters_.num_waiting = scheduler_.num_waiting();
  counters_.num_preemptions = scheduler_.counts().preemptions;
  counters_.prefix_cache_queries = scheduler_.counts().prefix_queries;
  counters_.prefix_cache_hits = scheduler_.counts().prefix_hits;
  counters_.kv_usage = kv_.usage();
  const std::lock_guard lock(mutex_);
  stats_ = counters_;
}

Result<std::vector<RequestId>> Engine::Impl::submit(std::vector<Request> requests) {
  CHECK(!requests.empty());
  for (const Request& request : requests) {
    CHECK(request.on_output != nullptr);
    CHECK(request.prompt_logprobs < 0 || request.on_prompt_logprobs != nullptr);
    if (std::string fault = find_fault(request, request_limits_); !fault.empty()) {
      return Failure{std::move(fault)};
    }
    if (&request == requests.data()) continue;
    const Request& first = requests.front();
    CHECK(request.prompt == first.prompt && request.priority == first.priority);
    CHECK(request.cache_salt == first.cache_salt && request.prompt_logprobs < 0);
  }
  std::vector<std::unique_ptr<Sequence>> sequences;
  for (Request& request : requests) {
    sequences.push_back(std::make_unique<Sequence>(std::move(request), random_seed()));
    sequences.back()->times.submitted = std::chrono::steady_clock::now();
    if (TokenWatcher* const watcher = sequences.back()->request.watcher.get()) {
      watcher->on_mask([this] { mask_came(); });
    }
  }
  std::vector<RequestId> ids;
  {
    const std::lock_guard lock(mutex_);
    if (stats_.failed) return Failure{"the engine has stopped: its model failed"};
    for (const auto& sequence : sequences) ids.push_back(sequence->id = next_id_++);
    for (size_t i = 1; i < sequences.size(); ++i) {
      sequences[0]->forks.push_back(std::move(sequences[i]));
    }
    inbox_.submitted.push_back(std::move(sequences[0]));
  }
  wake_.notify_one();
  return ids;
}

void Engine::Impl::cancel(RequestId id) {
  {
    const std::lock_guard lock(mutex_);
    inbox_.canceled.push_back(id);
  }
  wake_.notify_one();
}

void Engine::Impl::mask_came() {
  {
    const std::lock_guard lock(mutex_);
    inbox_.mask_came = true;
  }
  wake_.notify_one();
}

EngineStats Engine::Impl::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

Engine::Engine(Model& model, ops::Ctx cx, const EngineOptions& options)
    : impl_(std::make_unique<Impl>(model, std::move(cx), options)) {}
Engine::~Engine() = default;
void Engine::start() { impl_->start(); }
void Engine::set_on_op(std::function<void(const char* name)> on_op) {
  impl_->set_on_op(std::move(on_op));
}
void Engine::set_tap(ops::Tap tap, std::string only) {
  impl_->set_tap(std::move(tap), std::move(only));
}
void Engine::set_left_out(std::string op) { impl_->set_left_out(std::move(op)); }
bool Engine::step() { return impl_->step(); }
Result<RequestId> Engine::submit(Request request) {
  Result<std::vector<RequestId>> ids = submit_forks({std::move(request)});
  if (!ids) return Failure{ids.error()};
  return ids->front();
}
Result<std::vector<RequestId>> Engine::submit_forks(std::vector<Request> requests) {
  return impl_->submit(std::move(requests));
}
void Engine::cancel(RequestId id) { impl_->cancel(id); }
EngineStats Engine::stats() const { return impl_->stats(); }
int32_t Engine::max_model_len() const { return impl_->kv_plan().max_len; }
int64_t Engine::kv_tokens() const { return impl_->kv_plan().tokens; }
const Model& Engine::model() const { return impl_->model(); }

}  // namespace nibble
