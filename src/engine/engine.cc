#include "engine/engine.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <random>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "cuda/memory.h"
#include "engine/engine_impl.h"
#include "engine/engine_options.h"

namespace nibble {
namespace {

uint64_t random_seed() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

}  // namespace

Engine::Impl::Impl(Model& model, ops::Ctx cx, const EngineOptions& options)
    : model_(model),
      cx_(std::move(cx)),
      kv_info_(kv_info(model.info(), options)),
      kv_plan_((check(model.info(), options), kv_plan_for(model.info(), options))),
      feed_(cx_.comm == nullptr ? nullptr
                                : std::make_unique<StepFeed>(*cx_.comm, model.info(), kv_plan_,
                                                             step_limits(model.info(), options),
                                                             options.masked_ids)),
      kv_(kv_info_, kv_plan_, page_memory()),
      step_limits_(step_limits(model.info(), options)),
      scheduler_(
          kv_, {.max_num_seqs = kv_plan_.options.max_num_seqs,
                .max_tokens = options.max_num_batched_tokens,
                .max_score_rows = step_limits_.max_out - options.max_num_seqs - max_drafts(options),
                .max_drafts = max_drafts(options),
                .chunked = options.chunked_prefill,
                .max_replayed = step_limits_.max_replayed,
                .needs_last_row = options.speculation.head != nullptr}),
      blocks_{{step_limits_, step_memory(options), 0}, {step_limits_, step_memory(options), 1}},
      sampler_(model.info().vocab_size, options.masked_ids),
      split_sampler_(feed_ == nullptr || cx_.on_gpu()
                         ? nullptr
                         : std::make_unique<SplitSampler>(feed_->rows(), sampler_)),
      speculation_(options.speculation, max_drafts(options)),
      drawn_rule_(options.speculation.drawn_rule),
      bits_((model.info().vocab_size + 31) / 32),
      log_activity_(options.log_activity) {
  request_limits_ = {.vocab_size = model.info().vocab_size, .max_model_len = kv_.plan().max_len};
  ended_.reserve(options.max_num_seqs);
  wanted_.reserve(step_limits_.max_out);
  ahead_.reserve(options.max_num_seqs);
  begun_.reserve(options.max_num_seqs);
  ahead_chunks_.reserve(options.max_num_seqs);
  replayed_.reserve(options.max_num_seqs);
  lease_.emplace(model_);
  DraftHead* const head = options.speculation.head.get();
  model_.keep_rows(head != nullptr ? head->target_layers() : std::vector<int32_t>{});
  model_.reserve(cx_, step_limits_);
  if (head != nullptr) {
    head_ = std::make_unique<HeadDrafter>(model_, *head, cx_, kv_.state(),
                                          head_limits(model.info(), options));
    fed_.reserve(2 * options.max_num_seqs);
  }
  if (cx_.on_gpu()) {
    if (feed_ != nullptr) model_.agree_on_left_sums(*cx_.comm);
    gpu_ = std::make_unique<GpuSteps>(model_, cx_, *gpu_pages_, kv_.state(), step_limits_,
                                      options.max_num_seqs, options.masked_ids, options.graphs);
    if (head_ != nullptr) gpu_->keep_rows(&head_->history());
  }
}

// Of the KvCache: on the GPU where the model is. Of several ranks the others follow its changes.
std::unique_ptr<PageMemory> Engine::Impl::page_memory() {
  const int64_t bytes = KvCache::arena_bytes(kv_info_, kv_plan_);
  std::unique_ptr<PageMemory> memory;
  if (cx_.on_gpu()) {
    auto pages = std::make_unique<GpuPages>(
        bytes, KvCache::table_entries(kv_info_, kv_plan_.options, kv_plan_.max_len), cx_.stream);
    gpu_pages_ = pages.get();
    memory = std::move(pages);
  } else if (feed_ != nullptr) {
    memory = std::make_unique<HostPages>(bytes);
  }
  return feed_ != nullptr ? feed_->record(std::move(memory)) : std::move(memory);
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
  std::string failure;
  {
    const std::lock_guard lock(mutex_);
    if (inbox_.stop) return false;
    failure = std::exchange(inbox_.failure, "");
  }
  if (!failure.empty() && !counters_.failed) return fail_all(failure), true;
  if (!plan()) {
    step_began_ = {};
    return false;
  }
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
  speculation_.draft(scheduler_.running(), /*may_verify=*/ahead_.empty());
  const std::vector<Chunk>& chunks = scheduler_.plan(admits);
  // One sequence always fits, so what waits gets on.
  CHECK(!chunks.empty() || scheduler_.num_held() > 0 ||
        scheduler_.num_running() + scheduler_.num_waiting() == 0);
  publish_stats();
  return !chunks.empty();
}

void Engine::Impl::launch() {
  lease_->check();
  if (gpu_ != nullptr) return launch_on_gpu();
  if (head_ != nullptr) head_->draft(scheduler_.chunks());
  blocks_[turn_].fill(scheduler_.chunks());
  const Step step = blocks_[turn_].step();
  if (feed_ != nullptr)
    feed_->run(model_, cx_, step, kv_.state());
  else
    logits_ = model_.forward(cx_, step, kv_.state());
  if (head_ != nullptr) head_->history().keep(cx_, step);
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
    if (head_ != nullptr) {
      gpu_pages_->flush();  // the positions that drafts are made at
      head_->draft(chunks);
    }
    block.fill(chunks);
    begin_on_gpu(block, /*is_fed=*/false);
  }
  ahead_.clear();
  find_plain(chunks);
  if (gpu_->feeds_next(block.step()) && plan_ahead(chunks)) {
    StepBlock& next = blocks_[1 - turn_];
    next.fill(ahead_chunks_, /*is_ahead=*/true);
    begin_on_gpu(next, /*is_fed=*/true);
  } else if (head_ != nullptr) {
    feed_ahead();
  }
  gpu_->wait(block);
  if (head_ != nullptr) head_->take();
}

// On all ranks, which are told of a head's drafts as of other tokens.
void Engine::Impl::begin_on_gpu(const StepBlock& block, bool is_fed) {
  if (feed_ != nullptr) return feed_->launch(model_, *gpu_, cx_, block, is_fed);
  const bool has_drafts = head_ != nullptr && !is_fed;
  gpu_->launch(block, is_fed, has_drafts ? head_->drafted() : DraftedTokens{});
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
  // What is drafted now could be verified then, or what is drafted after this step.
  const auto drafts = [](const Chunk& c) { return c.sequence->num_wanted > 0; };
  if (std::ranges::any_of(chunks, drafts) || std::ranges::count(plain_, false) > 0) return false;
  ahead_chunks_.clear();
  for (const Chunk& chunk : chunks) {
    const Sequence& s = *chunk.sequence;
    if (s.num_output() + 1 >= s.request.max_tokens) {
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

// plain_: whether the GPU finds all that is asked of a chunk's next id. Once a step: each mask is
// as long as the vocabulary.
void Engine::Impl::find_plain(const std::vector<Chunk>& chunks) {
  plain_.clear();
  for (const Chunk& c : chunks) {
    const Sequence& s = *c.sequence;
    plain_.push_back(s.is_scored() && s.mask_state() == MaskState::kReady &&
                     is_found_on_gpu(s.request.sampling, masks_of(s)));
  }
}

// Feeds the head what the step at hand will find, where it verifies drafts and the ids that the GPU
// finds are those that will be said. So the GPU need not wait until the host knows them.
void Engine::Impl::feed_ahead() {
  const Step step = blocks_[turn_].step();
  is_fed_ahead_ = step.num_tokens <= HeadDrafter::kMostFedAhead &&
                  step.num_tokens == step.num_out && step.num_tokens > step.num_spans &&
                  feed_ == nullptr && !drawn_rule_ && !cx_.on_op && !cx_.tap &&
                  std::ranges::count(plain_, false) == 0 &&
                  std::ranges::all_of(scheduler_.chunks(), [&](const Chunk& c) {
                    const Sequence& s = *c.sequence;
                    return s.num_fed == c.begin && !s.lacks_row;
                  });
  if (is_fed_ahead_) head_->feed_ahead(scheduler_.chunks(), gpu_->found_ids());
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
  counters_.states_running = kv_.states().pool().num_used();
  counters_.states_kept = kv_.states().num_kept();
  counters_.speculation = speculation_.counts();
  if (feed_ != nullptr) counters_.ranks = feed_->rows().counts();
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

void Engine::Impl::fail(const std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    inbox_.failure = why;
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
void Engine::fail(const std::string& why) { impl_->fail(why); }
EngineStats Engine::stats() const { return impl_->stats(); }
int32_t Engine::max_model_len() const { return impl_->kv_plan().max_len; }
const KvPlan& Engine::kv_plan() const { return impl_->kv_plan(); }
int64_t Engine::kv_tokens() const { return impl_->kv_plan().tokens; }
int64_t Engine::draft_bytes(int32_t tokens) const { return impl_->draft_bytes(tokens); }
const Model& Engine::model() const { return impl_->model(); }

}  // namespace nibble
