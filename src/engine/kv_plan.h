// How many pages each layer group gets out of a given memory, and how long a sequence may become.
#pragma once

#include <cstdint>
#include <vector>

#include "models/model.h"

namespace nibble {

struct KvOptions {
  int32_t page_size = 16;  // P, the same for all groups
  DType dtype = DType::kBF16;
  int64_t bytes = 0;            // for the pages of all groups; never exceeded
  int32_t max_num_seqs = 0;     // S
  int32_t max_step_tokens = 0;  // tokens of one step, all sequences together
  int32_t max_len = 0;          // of one sequence; 0: the longest that fits
  int32_t max_rollback = 0;     // committed tokens that may be taken back (speculation)
  bool prefix_cache = false;    // pages of ended sequences stay until others need the memory
};

// With a prefix cache, a window's pages are kept at every so many positions of a prompt, beside
// those at its end: what a later prompt that goes on from there must find.
inline constexpr int32_t kKeptWindowEvery = 1024;

// With a prefix cache, states of recurrent layers are kept where texts part. Pages of a text that
// make it worth
inline constexpr int32_t kPartingPages = 8;   // to end a step where others are known to part,
inline constexpr int32_t kPromptPages = 128;  // to end one before the prompt's last tokens,
inline constexpr int32_t kStatePages = 256;   // to keep a state within a prompt. As many have one.
// Tokens at a prompt's end with which a template begins an answer.
inline constexpr int32_t kAnswerHeader = 8;

struct KvPlan {
  KvOptions options;                 // max_num_seqs: as many as there are states for
  int32_t max_len = 0;               // as granted
  std::vector<int32_t> group_pages;  // [groups]
  int32_t state_slots = 0;           // of recurrent layers
  int64_t bytes = 0;                 // of all pages and slots
  int64_t tokens = 0;                // positions that the full groups hold; all sequences together
};

// Bytes of one page of `group`: P positions of K and V of its layers. 0 of a recurrent one.
int64_t page_bytes(const LayerGroup& group, const KvOptions& options);
// Of one slot: the state of all recurrent layers, and where it may be kept the part of a page that
// goes with it. 0 where there are none.
int64_t slot_bytes(const ModelInfo& info, const KvOptions& options);
// Slots of running sequences: what is committed, and what a step writes.
int32_t state_slots(const ModelInfo& info, const KvOptions& options, int32_t num_seqs);
// Slots that are kept for the prefix cache beside them: one for every kStatePages, or for every
// sequence where that is more.
int64_t kept_states(const ModelInfo& info, const KvOptions& options, int64_t tokens);

// Most pages of a group that `num_seqs` sequences of up to `len` tokens hold at once. A window
// group holds window - 1 + chunk + rollback positions of each, and the chunks of one step share
// max_step_tokens.
int32_t peak_pages(const LayerGroup& group, const KvOptions& options, int32_t len,
                   int32_t num_seqs);

// Pages of a window group that are kept for the prefix cache beside those of running sequences,
// where the full groups hold `tokens` positions; 0 of others.
int64_t kept_pages(const LayerGroup& group, const KvOptions& options, int64_t tokens);

// Bytes of peak_pages() of all groups and of state_slots(), and of kept_pages() and kept_states()
// for all sequences but one.
int64_t kv_bytes_for(const ModelInfo& info, const KvOptions& options, int32_t len,
                     int32_t num_seqs);

// Throws Error(kUsage) where the model was not made for so long a context.
void check_length(const ModelInfo& info, int32_t len);

// Window groups and states get what max_num_seqs sequences need, full groups the rest, less what
// the prefix cache keeps of windows and states where there is more than one sequence's worth. Where
// that leaves no room for one sequence of max_len, they are sized for fewer sequences at once.
// Throws Error(kMemory) where even one does not fit, Error(kUsage) for a max_len that the model
// lacks.
KvPlan plan_kv(const ModelInfo& info, const KvOptions& options);

}  // namespace nibble
