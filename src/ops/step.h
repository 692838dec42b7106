// What one pass over the model reads and writes: views into memory that engine and loader own.
// Glossary: T tokens in the step, S sequences, R rows with logits, H hidden, Q query heads, G KV
// heads, D head dim, E experts, K chosen, F expert width, V vocabulary, P page size (tokens).
#pragma once

#include <cstdint>

#include "tensor/tensor.h"

namespace nibble {

// One sequence's tokens of this step: rows [q_start, q_start + q_len) of the step, the first of
// them at position `context` (tokens already in its pages).
struct Span {
  int32_t q_start;
  int32_t q_len;
  int32_t context;
  int32_t slot;  // row of the page tables, and state slot of recurrent layers
};

// T tokens of S sequences, in span order.
struct Step {
  int32_t num_tokens = 0;
  int32_t num_spans = 0;
  int32_t num_out = 0;
  // No sequence is longer than this after the step. Coarse: kernels size their grids by it, and one
  // recording of the launches serves every step of the same counts and bound.
  int32_t max_context = 0;
  // None of its rows may be left out, even of those without logits: another rank looks at them.
  bool all_rows = false;
  // Computes states once more, of inputs that a step has left: no op waits for another's result.
  bool is_replay = false;
  const int32_t* tokens = nullptr;     // [T]
  const int32_t* positions = nullptr;  // [T]
  const Span* spans = nullptr;         // [S]
  const int32_t* out_rows = nullptr;   // [R] rows of the step whose logits are wanted, ascending
};

// The pages of one layer and the table of its group. Keys of token position p of slot s, KV head g:
//   k[((page * G + g) * P + p % P) * D], page = page_table[s * max_pages + p / P]; values alike.
// Entries of pages that fell out of the window, or are not yet reserved, are kNoPage.
struct KvLayer {
  static constexpr int32_t kNoPage = -1;
  Tensor k;                             // [pages, G, P, D] bf16, f32 or E4M3
  Tensor v;                             // [pages, G, P, D]
  const int32_t* page_table = nullptr;  // [slots, max_pages]
  int32_t max_pages = 0;
  int32_t page_size = 0;
  float k_scale = 1, v_scale = 1;  // times which elements in E4M3 are keys and values; else 1
};

// What a recurrent layer keeps of each sequence, in slots of fixed size. A step reads slot
// from[span.slot] and writes slot to[span.slot], which no sequence reads yet: what is committed
// stays as it is until the engine commits the step.
struct RecurrentLayer {
  static constexpr int32_t kNoState = -1;  // in `from`: nothing came before, zeros
  Tensor state;                            // [slots, HV, DK, DV] f32
  Tensor conv;                             // [slots, taps - 1, channels] f32, oldest input first
  const int32_t* from = nullptr;           // [max sequences]
  const int32_t* to = nullptr;             // [max sequences]
};

// Sequence state of every layer for one step.
struct SeqState {
  const KvLayer* layers = nullptr;            // [num_layers]; empty where a layer is recurrent
  const RecurrentLayer* recurrent = nullptr;  // [num_layers], or null where no layer is
  const KvLayer& layer(int l) const { return layers[l]; }
  const RecurrentLayer& recurrent_layer(int l) const { return recurrent[l]; }
};

}  // namespace nibble
