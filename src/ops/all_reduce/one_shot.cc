#include "ops/all_reduce/one_shot.h"

namespace nibble::ops::gpu {
namespace {

struct Layout {
  explicit Layout(const PeerMemory& m)
      : senders(m.size - 1),
        blocks(2 * senders * (m.capacity / 2) * int64_t{sizeof(PeerMemory::Packet)}),
        arrived(blocks + 2 * senders * PeerMemory::kBlocks * PeerMemory::kBlockFloats *
                             int64_t{sizeof(float)}),
        rows(arrived + senders * PeerMemory::kBlocks * kWord),
        sent(rows + 2 * senders * m.row_bytes),
        bytes(sent + m.size * PeerMemory::kMostGroups * kWord) {}
  static constexpr auto kWord = int64_t{sizeof(uint32_t)};
  int64_t senders;
  int64_t blocks, arrived, rows, sent, bytes;
};

}  // namespace

int64_t PeerMemory::bytes() const { return Layout(*this).bytes; }

void PeerMemory::set_memory(int of, void* memory) {
  const Layout at(*this);
  auto* const begin = static_cast<std::byte*>(memory);
  packets[of] = reinterpret_cast<Packet*>(begin);
  blocks[of] = begin + at.blocks;
  arrived[of] = reinterpret_cast<uint32_t*>(begin + at.arrived);
  rows[of] = begin + at.rows;
  sent[of] = reinterpret_cast<uint32_t*>(begin + at.sent);
}

}  // namespace nibble::ops::gpu
