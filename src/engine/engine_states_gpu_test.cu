// For engine_states_gpu_test.cc: the steps of ToyGpuModel.
#include "cuda/launch.cuh"
#include "engine/toy_gpu_model.h"

namespace nibble {
namespace {

struct ToyStep {
  Step step;
  uint16_t* keys;  // [pages, P, D]
  const int32_t* page_table;
  int32_t max_pages, page_size, dim;
  float* states[ToyGpuModel::kNumStates];  // [slots, 2]: all, tokens
  float* inputs[ToyGpuModel::kNumStates];  // [slots]
  const int32_t *from, *to;
  int32_t num_slots;
};

// Block s: span s. found [T]: what the state is behind each token, or -1 after any fault.
__global__ void toy_tokens(const ToyStep t, int32_t* found) {
  const Span span = t.step.spans[blockIdx.x];
  const int32_t from = t.from[span.slot], to = t.to[span.slot];
  bool is_sound = to >= 0 && to < t.num_slots && to != from && from < t.num_slots &&
                  (from < 0) == (span.context == 0);
  int64_t all = 1;
  int32_t before = 0;
  if (is_sound && from >= 0) {
    all = static_cast<int64_t>(t.states[0][2 * from]);
    before = static_cast<int32_t>(t.inputs[0][from]);
    for (int l = 0; l < ToyGpuModel::kNumStates; ++l) {
      is_sound = is_sound && t.states[l][2 * from] == t.states[0][2 * from] &&
                 t.states[l][2 * from + 1] == static_cast<float>(span.context) &&
                 t.inputs[l][from] == t.inputs[0][from];
    }
  }
  const int32_t* const table = t.page_table + int64_t{span.slot} * t.max_pages;
  const auto key = [&](int32_t p) -> uint16_t& {
    return t.keys[(int64_t{table[p / t.page_size]} * t.page_size + p % t.page_size) * t.dim];
  };
  int64_t keys = 0;
  for (int32_t p = 0; p < span.context; ++p) keys += int64_t{key(p)} * (p + 1);
  for (int32_t i = span.q_start; i < span.q_start + span.q_len; ++i) {
    const int32_t token = t.step.tokens[i], p = t.step.positions[i];
    key(p) = static_cast<uint16_t>(ToyNumbers::key(token, p));
    keys += int64_t{key(p)} * (p + 1);
    all = ToyNumbers::next(all, token, before, keys);
    before = token;
    found[i] = is_sound ? static_cast<int32_t>(all) : -1;
  }
  if (to < 0 || to >= t.num_slots) return;
  for (int l = 0; l < ToyGpuModel::kNumStates; ++l) {
    t.states[l][2 * to] = static_cast<float>(all);  // below 2^24: exact
    t.states[l][2 * to + 1] = static_cast<float>(is_sound ? span.context + span.q_len : -1);
    t.inputs[l][to] = static_cast<float>(before);
  }
}

// Block r: row r. A fault gives logits that are no numbers, and the request ends with an error.
__global__ void toy_logits(const Step step, const int32_t* found, float* logits) {
  const int32_t all = found[step.out_rows[blockIdx.x]];
  for (int32_t v = threadIdx.x; v < ToyNumbers::kVocab; v += blockDim.x) {
    logits[int64_t{blockIdx.x} * ToyNumbers::kVocab + v] =
        all < 0 ? __int_as_float(0x7fc00000) : ToyNumbers::logit(all, v);
  }
}

}  // namespace

Tensor ToyGpuModel::forward(ops::Ctx& cx, const Step& step, const SeqState& kv) {
  const KvLayer& pages = kv.layer(0);
  ToyStep t{.step = step,
            .keys = static_cast<uint16_t*>(pages.k.data),
            .page_table = pages.page_table,
            .max_pages = pages.max_pages,
            .page_size = pages.page_size,
            .dim = static_cast<int32_t>(pages.k.dim(3))};
  for (int l = 0; l < kNumStates; ++l) {
    const RecurrentLayer& layer = kv.recurrent_layer(1 + l);
    t.states[l] = layer.state.as<float>();
    t.inputs[l] = layer.conv.as<float>();
    t.from = layer.from, t.to = layer.to;
    t.num_slots = static_cast<int32_t>(layer.state.dim(0));
  }
  cx.scratch = {static_cast<std::byte*>(scratch_.data()),
                static_cast<size_t>(scratch_.size_bytes())};
  cx.counters = static_cast<uint32_t*>(counters_.data());
  auto* const found = static_cast<int32_t*>(found_.data());
  auto* const logits = static_cast<float*>(logits_.data());
  const cuda::LaunchShape spans{
      .grid = static_cast<unsigned>(step.num_spans), .block = 1, .pdl = false};
  cuda::launch(cx.stream, toy_tokens, spans, t, found);
  const cuda::LaunchShape rows{
      .grid = static_cast<unsigned>(step.num_out), .block = 64, .pdl = false};
  if (step.num_out > 0) cuda::launch(cx.stream, toy_logits, rows, step, found, logits);
  cx.wrote({logits});
  return make_tensor(logits, DType::kF32, {step.num_out, ToyNumbers::kVocab});
}

}  // namespace nibble
