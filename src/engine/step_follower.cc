#include "engine/step_follower.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <string>
#include <utility>

#include "base/error.h"
#include "cuda/memory.h"
#include "engine/engine_options.h"
#include "engine/step_feed.h"

namespace nibble {

// Of a group whose tables have pages.
struct PagesOfSlots {
  int32_t max_pages = 0, page_size = 0, window = kNoWindow;
};
// The pages from `begin` to `end` of a slot are there: so each is looked at once.
struct Known {
  int32_t begin = 0, end = 0;
};

// Tables and pages that change as rank 0 says.
class StepFollower::ReplayedPages final : public PageMemory {
 public:
  explicit ReplayedPages(std::unique_ptr<PageMemory> memory) : memory_(std::move(memory)) {}
  Tensor take(DType dtype, std::initializer_list<int64_t> shape) override {
    tensors_.push_back(memory_->take(dtype, shape));
    return tensors_.back();
  }
  void copy_page(const Tensor&, int32_t, int32_t) override { CHECK(false); }
  Table add_table(std::span<const int32_t> host, int32_t num_pages) override {
    Replayed& table = tables_.emplace_back(Replayed{{host.begin(), host.end()}, num_pages});
    const Table added = memory_->add_table(table.entries, num_pages);
    table.number = added.number, table.read_at = added.entries;
    return {added.entries, static_cast<int32_t>(tables_.size()) - 1};
  }
  void changed(int32_t, int64_t) override { CHECK(false); }

  // `written`: StepBounds'.
  void replay(const StepMessage& message, int64_t written) {
    for (const PageCopy& copy : message.copies)
      memory_->copy_page(tensors_[copy.tensor], copy.from, copy.to);
    for (const TableChange& change : message.changes) {
      Replayed& table = tables_[change.table];
      table.entries[change.index] = change.value;
      if (change.value < 0 && table.pages.max_pages > 0) table.forget(change.index);
      memory_->changed(table.number, change.index);
    }
    for (int32_t i = 0; written >= 0 && i < message.step.num_spans; ++i)
      if (tables_[written].entries[message.step.spans[i].slot] < 0)
        throw Error(ErrorKind::kUnsupported,
                    "rank 0 sent a step of a sequence that has no slot for its states");
    for (Replayed& table : tables_)
      for (int32_t i = 0; table.pages.max_pages > 0 && i < message.step.num_spans; ++i)
        table.check(message.step.spans[i]);
  }
  // That the table read at `read_at` is one of pages, and what a token sees by it.
  void set_pages(const int32_t* read_at, const PagesOfSlots& pages) {
    for (Replayed& table : tables_)
      if (table.read_at == read_at) table.set_pages(pages);
  }
  const std::vector<Tensor>& tensors() const { return tensors_; }
  struct Replayed {
    std::vector<int32_t> entries;
    int32_t num_pages;                 // below which they are
    int32_t number = 0;                // of memory_
    const int32_t* read_at = nullptr;  // by kernels
    PagesOfSlots pages = {};           // none: of slots of states
    std::vector<Known> known = {};     // of each slot

    void set_pages(const PagesOfSlots& of) {
      pages = of;
      known.assign(entries.size() / of.max_pages, {});
    }
    void forget(int64_t index) {
      Known& k = known[index / pages.max_pages];
      const auto page = static_cast<int32_t>(index % pages.max_pages);
      if (page == k.begin)
        k.begin = std::min(page + 1, k.end);
      else if (page > k.begin)
        k.end = std::min(k.end, page);
    }
    // All that its tokens see and write has a page.
    void check(const Span& span) {
      const int32_t oldest =
          pages.window == kNoWindow ? 0 : std::max(0, span.context - pages.window + 1);
      const int32_t first = oldest / pages.page_size;
      const int32_t last = (span.context + span.q_len - 1) / pages.page_size;
      Known& k = known[span.slot];
      if (first < k.begin || first > k.end) k = {first, first};
      for (; k.end <= last; ++k.end)
        if (entries[int64_t{span.slot} * pages.max_pages + k.end] < 0)
          throw Error(ErrorKind::kUnsupported,
                      "rank 0 sent a step of a sequence that has no page for position " +
                          std::to_string(std::max(oldest, k.end * pages.page_size)));
    }
  };
  const std::deque<Replayed>& tables() const { return tables_; }

 private:
  std::unique_ptr<PageMemory> memory_;
  std::vector<Tensor> tensors_;
  std::deque<Replayed> tables_;
};

// Which slots a step writes states to; nullptr: it has none.
static const int32_t* written_slots(const ModelInfo& info, const SeqState& kv) {
  for (const LayerGroup& group : info.groups)
    if (group.is_recurrent()) return kv.recurrent_layer(group.layers.at(0)).to;
  return nullptr;
}

StepFollower::StepFollower(Model& model, ops::Ctx cx, const EngineOptions& options)
    : model_(model),
      cx_(std::move(cx)),
      kv_info_(kv_info(model.info(), options)),
      plan_((Engine::check(model.info(), options), Engine::kv_plan_for(model.info(), options))),
      pages_(new ReplayedPages(page_memory())),
      kv_(kv_info_, plan_, std::unique_ptr<PageMemory>(pages_)) {
  const ModelInfo& info = model.info();
  bounds_ = {.limits = Engine::step_limits(info, options),
             .max_seqs = options.max_num_seqs,
             .max_len = plan_.max_len,
             .vocab_size = info.vocab_size,
             .may_be_fed = cx_.on_gpu() && options.graphs};
  for (const Tensor& tensor : pages_->tensors()) bounds_.pages.push_back(tensor.dim(0));
  const int32_t* const written = written_slots(info, kv_.state());
  for (const auto& table : pages_->tables()) {
    bounds_.entries.push_back(std::ssize(table.entries));
    bounds_.values.push_back(table.num_pages);
    if (table.read_at == written) bounds_.written = std::ssize(bounds_.values) - 1;
  }
  for (const LayerGroup& group : info.groups) {
    if (group.is_recurrent()) continue;
    const KvLayer& layer = kv_.state().layer(group.layers.at(0));
    pages_->set_pages(layer.page_table, {layer.max_pages, layer.page_size, group.window});
  }
  lease_.emplace(model_);
  model_.reserve(cx_, bounds_.limits);
  std::vector<int32_t> masked_ids;
  agree(*cx_.comm, info, plan_, bounds_.limits, masked_ids);
  if (!cx_.on_gpu()) {
    rows_ = std::make_unique<AnsweredRows>(*cx_.comm, info.logits, masked_ids);
    return;
  }
  model_.agree_on_left_sums(*cx_.comm);
  gpu_ = std::make_unique<GpuSteps>(model_, cx_, *gpu_pages_, kv_.state(), bounds_.limits,
                                    options.max_num_seqs, masked_ids, options.graphs);
  const int64_t bytes = StepBlock::bytes(bounds_.limits, options.max_num_seqs);
  for (int32_t turn : {0, 1})
    blocks_.emplace_back(bounds_.limits, cuda::pinned_buffer(bytes), turn);
}

std::unique_ptr<PageMemory> StepFollower::page_memory() {
  const int64_t bytes = KvCache::arena_bytes(kv_info_, plan_);
  if (!cx_.on_gpu()) return std::make_unique<HostPages>(bytes);
  auto pages = std::make_unique<GpuPages>(
      bytes, KvCache::table_entries(kv_info_, plan_.options, plan_.max_len), cx_.stream);
  gpu_pages_ = pages.get();
  return pages;
}

StepFollower::~StepFollower() = default;

void StepFollower::run() {
  while (step()) continue;
}

// Of a message; -1: of what rank 0 has no reason to send.
int64_t StepFollower::most_bytes(MessageHead::Kind kind) const {
  switch (kind) {
    case MessageHead::Kind::kStep:
      return bounds_.most_bytes();
    case MessageHead::Kind::kReplay:
      return int64_t{4} * bounds_.max_seqs;
    case MessageHead::Kind::kAsk:
      return rows_ != nullptr ? rows_->most_bytes() : -1;
  }
  return -1;
}

// Into message_.
MessageHead StepFollower::receive() {
  MessageHead head;
  cx_.comm->receive(0, std::as_writable_bytes(std::span(&head, 1)));
  const int64_t most = most_bytes(head.kind);
  if (most < 0 || head.size > static_cast<uint64_t>(most))
    throw Error(ErrorKind::kUnsupported, "rank 0 sent a message of kind " +
                                             std::to_string(static_cast<uint64_t>(head.kind)) +
                                             " and of " + std::to_string(head.size) + " bytes");
  message_.resize(head.size);
  cx_.comm->receive(0, message_);
  return head;
}

bool StepFollower::step() {
  switch (receive().kind) {
    case MessageHead::Kind::kAsk:
      return rows_->answer(message_), true;
    case MessageHead::Kind::kReplay:
      return replay(), true;
    case MessageHead::Kind::kStep:
      break;
  }
  std::swap(message_, told_);
  const StepMessage message = read_message(told_, bounds_);
  if (message.ends) return false;
  step_ = message.step;
  lease_->check();
  if (gpu_ != nullptr)
    launch(message);
  else
    run_on_cpu(message);
  return true;
}

void StepFollower::replay() {
  std::vector<Span> spans(step_.spans, step_.spans + step_.num_spans);
  if (message_.size() != spans.size() * sizeof(int32_t))
    throw Error(ErrorKind::kUnsupported, "rank 0 replays another step than the last");
  for (size_t i = 0; i < spans.size(); ++i) {
    int32_t length = 0;
    std::memcpy(&length, message_.data() + i * sizeof(length), sizeof(length));
    if (length < 1 || length > spans[i].q_len)
      throw Error(ErrorKind::kUnsupported, "rank 0 replays tokens of no step");
    spans[i].q_len = length;
  }
  if (gpu_ != nullptr) return gpu_->replay(blocks_[1 - turn_], spans);
  Step step = step_;
  step.spans = spans.data();
  model_.replay(cx_, step, kv_.state());
}

void StepFollower::run_on_cpu(const StepMessage& message) {
  pages_->replay(message, bounds_.written);
  Tensor logits;
  if (message.compares) {
    const ReplicaHash hash(cx_);
    logits = model_.forward(cx_, message.step, kv_.state());
    hash.compare(*cx_.comm);
  } else {
    logits = model_.forward(cx_, message.step, kv_.state());
  }
  rows_->take(logits);
}

// Two steps may be in flight, as on rank 0; the ids that it finds are found here, too.
void StepFollower::launch(const StepMessage& message) {
  StepBlock& block = blocks_[turn_];
  turn_ = 1 - turn_;
  gpu_->wait(block);
  pages_->replay(message, bounds_.written);
  block.copy(message.step, message.draws);
  launch_on_rank(*gpu_, cx_, block, message);
}

}  // namespace nibble
