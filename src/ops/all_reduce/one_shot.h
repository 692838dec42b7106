// Sums over GPUs of one host that write into each other's memory: one_shot, of few values, and
// one_shot_blocks, of many.
#pragma once

#include <cstdint>

#include "ops/ctx.h"

namespace nibble::ops::gpu {

// What one rank's kernels know of all.
//
// A packet is two floats, each beside the number of the exchange that it belongs to: who finds the
// number has the float, and nothing else need be waited for. Exchanges take turns between two
// slots: a rank that sends number n has all of n - 1, whose senders had read n - 2.
//
// A block is what one thread block sends at a time, with its number behind it. Each thread block
// exchanges with those of its index elsewhere alone, and its blocks take turns between two slots
// likewise.
//
// Rows of a sum that is left to a norm lie where they are sent, all of an exchange, some rows (a
// group) behind one number; exchanges take turns between two slots: who sends waits for nobody.
struct PeerMemory {
  static constexpr int kMostRanks = 8;
  static constexpr int kBlocks = 256, kBlockFloats = 8192;  // the most
  struct alignas(16) Packet {
    uint32_t first, first_number, second, second_number;
  };
  int rank = 0, size = 1;
  int64_t capacity = 0;  // floats of an exchange of packets; a multiple of 4
  // Of the rows that a rank sends to another in an exchange; a multiple of 16.
  int64_t row_bytes = 0;
  static constexpr int kMostGroups = 8192;  // of an exchange of rows
  // Thread blocks that exchange blocks, the same number on each rank, all at work at a time: two on
  // each SM have room.
  int num_blocks = kBlocks;
  // A rank may take long over its first steps, whose graphs it records; one whose process ends or
  // stops is found out by others' means, and sooner.
  uint64_t patience_ns = 30'000'000'000;
  // Of each rank, in its GPU, for what the S = size - 1 others send:
  Packet* packets[kMostRanks]{};    // [2 slots, S, capacity / 2]
  std::byte* blocks[kMostRanks]{};  // [2 slots, S, kBlocks, kBlockFloats] float
  uint32_t* arrived[kMostRanks]{};  // [S, kBlocks]: the number of the last block
  std::byte* rows[kMostRanks]{};    // [2 slots, S, row_bytes]
  // [size, kMostGroups]: the last exchange whose rows lie there; its own rank's come last.
  uint32_t* sent[kMostRanks]{};
  // This rank's: exchanges of packets so far, thread blocks that are through, and of each how many
  // blocks it has sent; then exchanges of rows, and thread blocks that are through.
  static constexpr int kRowCounts = 2 + kBlocks, kCounts = kRowCounts + 2;
  uint32_t* counts = nullptr;
  uint32_t* abort = nullptr;  // of the host: other than 0: give up; set where nobody came

  // Of one rank's memory; zeros to begin with, as its counts.
  int64_t bytes() const;
  void set_memory(int of, void* memory);
};

// Of the rows that one of so many ranks sends to another in an exchange: at two ranks 8,192 of
// 4,096 columns.
constexpr int64_t row_bytes_of(int ranks) { return (int64_t{64} << 20) / (ranks - 1) / 128 * 128; }
// Rows of so many bf16 columns that have room there.
constexpr int64_t most_rows(int64_t row_bytes, int64_t hidden) { return row_bytes / (2 * hidden); }

// This rank's rows by slot, bf16 [T * K, H], whose weighted sum in order of choice is its part of a
// sum over ranks: moe_down/combine.h.
struct LeftChoices {
  const uint16_t* rows = nullptr;  // none: d is there
  const float* p = nullptr;        // [T, K]
  const int32_t* slot = nullptr;   // [T, K]
  int32_t top_k = 0;
};

// Whether a sum of so many floats is quicker as packets, twice the bytes without a wait for their
// arrival, than in blocks.
inline constexpr int64_t kMostForPackets = int64_t{1} << 17;
constexpr bool is_for_packets(int64_t floats, int64_t ranks) {
  return floats * (ranks - 1) <= kMostForPackets;
}

// t [T, H] f32: sums in order of ranks, the same bits on each. Ends with NaN where a rank does not
// come within patience_ns, or `abort` says so.
//
// H even, at most `capacity` floats.
void all_reduce_one_shot(Ctx& cx, const PeerMemory& peers, const Tensor& t);
// T * H a multiple of 4. Values travel, and are added up, rounded to bf16; under --exact as they
// are.
void all_reduce_blocks(Ctx& cx, const PeerMemory& peers, const Tensor& t);

}  // namespace nibble::ops::gpu
