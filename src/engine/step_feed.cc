#include "engine/step_feed.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/error.h"

namespace nibble {
namespace {

// Buffers of which each rank has columns, or rows that follow from its own.
constexpr std::array<std::string_view, 11> kOwn = {"q",        "att",      "q_gate", "u",
                                                   "shared_u", "shared_d", "qkvz",   "gates",
                                                   "zxbcdt",   "mixed",    "logits"};

// From GPUs each buffer is a copy that the step waits for: of all that is alike the one that what
// differs in any other soon gets to.
constexpr std::string_view kResidual = "x";

template <typename T>
std::vector<T> gather(dist::Comm& comm, const T& mine) {
  std::vector<T> all(comm.size());
  comm.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  return all;
}

// What rank 0 brings, on every rank.
std::vector<int32_t> ids_of_first(dist::Comm& comm, std::vector<int32_t> ids, int32_t vocab_size) {
  uint64_t size = ids.size();
  if (comm.rank() > 0) {
    comm.receive(0, std::as_writable_bytes(std::span(&size, 1)));
    if (size > static_cast<uint64_t>(vocab_size))
      throw Error(ErrorKind::kUnsupported, "rank 0 masks more ids than there are");
    ids.resize(size);
    if (size > 0) comm.receive(0, std::as_writable_bytes(std::span(ids)));
    for (const int32_t id : ids)
      if (id < 0 || id >= vocab_size)
        throw Error(ErrorKind::kUnsupported, "rank 0 masks ids that are none");
  }
  for (int r = 1; comm.rank() == 0 && r < comm.size(); ++r) {
    comm.send(r, std::as_bytes(std::span(&size, 1)));
    comm.send(r, std::as_bytes(std::span(ids)));
  }
  return ids;
}

void mix(uint64_t& hash, uint64_t value) { hash = (hash ^ value) * 0x100000001b3; }

// As the others are told of it: a tap or a head that only this rank has sees all rows on each.
Step shared(Step step, const Model& model, const ops::Ctx& cx) {
  step.all_rows = model.shows_all_rows(cx);
  return step;
}

}  // namespace

ReplicaHash::ReplicaHash(ops::Ctx& cx) : cx_(cx) {
  CHECK(!cx_.tap);
  if (cx_.on_gpu()) cx_.tap_only = kResidual;
  cx_.tap = [this](std::string_view name, int, const Tensor& value) { add(name, value); };
}

ReplicaHash::~ReplicaHash() {
  cx_.tap = nullptr;
  cx_.tap_only.clear();
}

void ReplicaHash::add(std::string_view name, const Tensor& value) {
  if (std::ranges::find(kOwn, name) != kOwn.end()) return;
  const auto* bytes = static_cast<const char*>(value.data);
  for (int64_t at = 0; at < value.size_bytes(); at += 4) {
    uint32_t word = 0;
    std::memcpy(&word, bytes + at, 4);
    mix(hash_, word);
  }
}

void ReplicaHash::compare(dist::Comm& comm) const {
  const std::vector<uint64_t> all = gather(comm, hash_);
  std::string others;
  for (size_t r = 1; r < all.size(); ++r)
    if (all[r] != all[0]) others += (others.empty() ? "" : ", ") + std::to_string(r);
  if (others.empty()) return;
  throw Error(ErrorKind::kUnsupported, "rank " + others +
                                           " computed another residual than rank 0: their weights, "
                                           "processors or memory differ");
}

void launch_on_rank(GpuSteps& steps, ops::Ctx& cx, const StepBlock& block,
                    const StepMessage& message) {
  if (!message.compares) return steps.launch(block, message.is_fed);
  const ReplicaHash hash(cx);
  steps.launch(block, message.is_fed);
  steps.wait(block);
  hash.compare(*cx.comm);
}

std::vector<Cut> agree(dist::Comm& comm, const ModelInfo& info, const KvPlan& plan,
                       const StepLimits& limits, std::vector<int32_t>& masked_ids) {
  std::byte ready{};
  for (int r = 1; r < comm.size() && comm.rank() == 0; ++r) comm.receive(r, {&ready, 1});
  for (int r = 1; r < comm.size() && comm.rank() == 0; ++r) comm.send(r, {&ready, 1});
  if (comm.rank() != 0) comm.send(0, {&ready, 1}), comm.receive(0, {&ready, 1});

  struct Planned {
    uint64_t hash;
    int64_t logits_begin, logits_size;
  };
  uint64_t hash = 0xcbf29ce484222325;
  for (const int64_t value :
       {int64_t{plan.max_len}, int64_t{plan.options.page_size}, int64_t{plan.options.max_num_seqs},
        int64_t{info.num_layers}, int64_t{info.vocab_size}, int64_t{limits.max_tokens},
        int64_t{limits.max_out}, static_cast<int64_t>(plan.options.dtype)})
    mix(hash, static_cast<uint64_t>(value));
  mix(hash, static_cast<uint64_t>(plan.state_slots));
  for (const int32_t pages : plan.group_pages) mix(hash, static_cast<uint64_t>(pages));
  const auto all = gather(comm, Planned{hash, info.logits.begin, info.logits.size});
  std::vector<Cut> logits;
  int64_t at = 0;
  for (int r = 0; r < comm.size(); ++r) {
    if (all[r].hash != all[0].hash)
      throw Error(ErrorKind::kUnsupported,
                  "rank " + std::to_string(r) + " planned other pages or steps than rank 0");
    if (all[r].logits_begin != at || all[r].logits_size < 0 ||
        all[r].logits_size > info.vocab_size - at)
      throw Error(ErrorKind::kUnsupported,
                  "rank " + std::to_string(r) + " has other columns of the logits than its own");
    logits.emplace_back(info.vocab_size, at, all[r].logits_size);
    at += all[r].logits_size;
  }
  if (at != info.vocab_size)
    throw Error(ErrorKind::kUnsupported, "all ranks together have " + std::to_string(at) +
                                             " columns of the logits, of " +
                                             std::to_string(info.vocab_size));
  masked_ids = ids_of_first(comm, std::move(masked_ids), info.vocab_size);
  return logits;
}

// Hands everything on, and keeps what the others have to know of it.
class StepFeed::RecordedPages final : public PageMemory {
 public:
  RecordedPages(StepFeed& feed, std::unique_ptr<PageMemory> memory)
      : feed_(feed), memory_(std::move(memory)) {}
  Tensor take(DType dtype, std::initializer_list<int64_t> shape) override {
    tensors_.push_back(memory_->take(dtype, shape).data);
    return make_tensor(const_cast<void*>(tensors_.back()), dtype, shape);
  }
  void copy_page(const Tensor& pages, int32_t from, int32_t to) override {
    const auto tensor = std::ranges::find(tensors_, pages.data);
    CHECK(tensor != tensors_.end());
    feed_.copies_.push_back({static_cast<int32_t>(tensor - tensors_.begin()), from, to});
    memory_->copy_page(pages, from, to);
  }
  Table add_table(std::span<const int32_t> host, int32_t num_pages) override {
    const Table table = memory_->add_table(host, num_pages);
    tables_.push_back({host, table.number});
    return {table.entries, static_cast<int32_t>(tables_.size()) - 1};
  }
  void changed(int32_t table, int64_t index) override {
    feed_.changes_.push_back({table, tables_[table].host[index], index});
    memory_->changed(tables_[table].number, index);
  }

 private:
  StepFeed& feed_;
  std::unique_ptr<PageMemory> memory_;
  std::vector<const void*> tensors_;
  struct Recorded {
    std::span<const int32_t> host;
    int32_t number;  // of memory_
  };
  std::vector<Recorded> tables_;
};

StepFeed::StepFeed(dist::Comm& comm, const ModelInfo& info, const KvPlan& plan,
                   const StepLimits& limits, std::vector<int32_t> masked_ids)
    : comm_(comm), rows_(comm, agree(comm, info, plan, limits, masked_ids), masked_ids) {}

StepFeed::~StepFeed() {
  try {
    tell({.ends = true});
  } catch (const Error&) {
    return;  // they know
  }
}

std::unique_ptr<PageMemory> StepFeed::record(std::unique_ptr<PageMemory> memory) {
  return std::make_unique<RecordedPages>(*this, std::move(memory));
}

// And what has changed since the step before.
void StepFeed::tell(StepMessage message) {
  message.copies = copies_, message.changes = changes_;
  write_message(message, message_);
  send(MessageHead::Kind::kStep, message_);
  copies_.clear(), changes_.clear();
}

void StepFeed::send(MessageHead::Kind kind, std::span<const std::byte> bytes) {
  const MessageHead head{kind, bytes.size()};
  for (int r = 1; r < comm_.size(); ++r) {
    comm_.send(r, std::as_bytes(std::span(&head, 1)));
    comm_.send(r, bytes);
  }
}

void StepFeed::replay(std::span<const Span> spans) {
  std::vector<int32_t> lengths;
  for (const Span& span : spans) lengths.push_back(span.q_len);
  send(MessageHead::Kind::kReplay, std::as_bytes(std::span(lengths)));
}

bool StepFeed::is_compared(const ops::Ctx& cx, const Step& step) {
  const bool is_due =
      uncompared_ < 0 || ++uncompared_ >= (cx.on_gpu() ? kCompareEveryOnGpus : kCompareEvery);
  if (!is_due || cx.tap || (cx.on_gpu() && step.num_tokens > kMostComparedOnGpus)) return false;
  uncompared_ = 0;
  return true;
}

void StepFeed::launch(const Model& model, GpuSteps& steps, ops::Ctx& cx, const StepBlock& block,
                      bool is_fed) {
  const Step step = shared(block.step(), model, cx);
  const StepMessage message{
      .compares = is_compared(cx, step), .is_fed = is_fed, .step = step, .draws = block.draws()};
  tell(message);
  launch_on_rank(steps, cx, block, message);
}

void StepFeed::run(Model& model, ops::Ctx& cx, const Step& step, const SeqState& kv) {
  const bool compares = is_compared(cx, step);
  tell({.compares = compares, .step = shared(step, model, cx)});
  if (!compares) return rows_.take(model.forward(cx, step, kv));
  const ReplicaHash hash(cx);
  const Tensor logits = model.forward(cx, step, kv);
  hash.compare(comm_);
  rows_.take(logits);
}

}  // namespace nibble
