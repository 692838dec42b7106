// Copies that land later, and the barriers in shared memory that count them. A copy lands when
// someone waits for it and not before, so that who does not wait reads what was there.
#include <algorithm>

#include "decode.h"
#include "lanes.h"
#include "memory.h"
#include "tensor_map.h"

namespace nibble::emulated {
namespace {

// ---- cp.async: groups of a thread

void copy_async(Warp& w,
                const Inst& in) {  // a: to, b: from, n: bytes, c: bytes read; option 1: c holds
  const Lane<uint32_t> to(w, in.a), size(w, in.c);
  const Lane<uint64_t> from(w, in.b);
  for (uint32_t m = w.mask; m != 0; m &= m - 1) {
    const int i = std::countr_zero(m);
    const uint32_t bytes = in.n, read = in.option != 0 ? std::min<uint32_t>(size[i], bytes) : bytes;
    std::byte* const at = shared_at(w, to[i] + static_cast<uint32_t>(in.offset), bytes, i);
    const uint64_t address =
        from[i] + static_cast<uint64_t>(*reinterpret_cast<const int64_t*>(in.targets));
    const std::byte* const source = read == 0 ? nullptr : global_at(in, address, bytes, i);
    w.copies.copies.push_back({i, w.copies.committed[i], at, source, bytes, read});
  }
}
void commit(const Warp& w, CopyGroups& to) {
  for (int i = 0; i < kLanes; ++i) to.committed[i] += w.mask >> i & 1;
}
void commit_copies(Warp& w, const Inst&) { commit(w, w.copies); }
void wait_copies(Warp& w, const Inst& in) {
  if (in.option != 0) commit_copies(w, in);  // wait_all counts those without a group
  run_copies(w.copies, w.mask, static_cast<uint32_t>(in.offset));
}

// ---- mbarriers: 8 bytes of shared memory

struct Mbarrier {
  uint64_t count : 20, pending : 20;
  int64_t bytes : 23;  // to come
  uint64_t phase : 1;
};
static_assert(sizeof(Mbarrier) == 8);

Mbarrier load_mbarrier(const Warp& w, uint32_t address, int lane) {
  Mbarrier b;
  std::memcpy(&b, shared_at(w, address, 8, lane), 8);
  return b;
}
void store_mbarrier(const Warp& w, uint32_t address, Mbarrier b, int lane) {
  if (b.pending == 0 && b.bytes == 0) b.pending = b.count, b.phase ^= 1;
  std::memcpy(shared_at(w, address, 8, lane), &b, 8);
}
void init_mbarrier(Warp& w, const Inst& in) {
  const Lane<uint32_t> a(w, in.a), count(w, in.b);
  for (uint32_t m = w.mask; m != 0; m &= m - 1) {
    const int i = std::countr_zero(m);
    const Mbarrier b{count[i], count[i], 0, 0};
    std::memcpy(shared_at(w, a[i] + static_cast<uint32_t>(in.offset), 8, i), &b, 8);
  }
}
void arrive_at(Warp& w, uint32_t address, uint32_t arrivals, int64_t bytes, int lane) {
  Mbarrier b = load_mbarrier(w, address, lane);
  if (b.pending < arrivals) throw Fault("more arrivals than the barrier was made for", lane);
  b.pending -= arrivals;
  b.bytes += bytes;
  store_mbarrier(w, address, b, lane);
}
void complete_bytes(const Warp& w, uint32_t address, uint32_t bytes, int lane) {
  Mbarrier b = load_mbarrier(w, address, lane);
  b.bytes -= bytes;
  store_mbarrier(w, address, b, lane);
}
void arrive(Warp& w,
            const Inst& in) {  // option 1: expects b bytes; 2: b arrivals; 3: behind copies
  const Lane<uint32_t> a(w, in.a), b(w, in.b);
  if (in.option == 3) {
    commit_copies(w, in);
    run_copies(w.copies, w.mask, 0);
  }
  for (uint32_t m = w.mask; m != 0; m &= m - 1) {
    const int i = std::countr_zero(m);
    arrive_at(w, a[i] + static_cast<uint32_t>(in.offset), in.option == 2 ? b[i] : 1,
              in.option == 1 ? b[i] : 0, i);
  }
}
void expect_bytes(Warp& w, const Inst& in) {
  const Lane<uint32_t> a(w, in.a), b(w, in.b);
  for (uint32_t m = w.mask; m != 0; m &= m - 1) {
    const int i = std::countr_zero(m);
    arrive_at(w, a[i] + static_cast<uint32_t>(in.offset), 0, b[i], i);
  }
}
// Whether the phase of parity b is over.
void try_wait(Warp& w, const Inst& in) {
  const Lane<uint32_t> a(w, in.a), parity(w, in.b);
  uint32_t done = 0;
  for (uint32_t m = w.mask; m != 0; m &= m - 1) {
    const int i = std::countr_zero(m);
    const uint32_t address = a[i] + static_cast<uint32_t>(in.offset);
    run_bulk_copies(*w.block, address & 0xffffff);
    done |= (load_mbarrier(w, address, i).phase != (parity[i] & 1) ? 1u : 0u) << i;
  }
  store_predicate(w, in.d, done);
  if (done != w.mask) w.event = Event::kYield;
}

// ---- copies by the copy engine

// Runs when its barrier, of the block that `to` lies in, is asked for.
void queue_bulk(Warp& w, uint32_t to, uint32_t barrier, std::function<void()> run) {
  Block& there = block_of_shared(w, to);
  if (&block_of_shared(w, barrier) != &there) throw Fault("a barrier of another block");
  there.copies.push_back({barrier & 0xffffff, std::move(run)});
}
void bulk_to_shared(
    Warp& w, const Inst& in) {  // a: to, b: from, c: bytes, e: barrier; option 1: from shared
  const Lane<uint32_t> to(w, in.a), bytes(w, in.c), barrier(w, in.e);
  for (uint32_t m = w.mask; m != 0; m &= m - 1) {
    const int i = std::countr_zero(m);
    const uint32_t n = bytes[i], bar = barrier[i];
    if (n % 16 != 0) throw Fault("a bulk copy of " + std::to_string(n) + " bytes", i);
    if (n == 0) continue;
    std::byte* const at = shared_at(w, to[i], 16, i);
    shared_at(w, to[i] + n - 16, 16, i);
    const uint64_t from = in.option != 0 ? Lane<uint32_t>(w, in.b)[i] : Lane<uint64_t>(w, in.b)[i];
    const auto source = [&](uint64_t address) {
      return in.option != 0 ? shared_at(w, address, 16, i) : global_at(in, address, 16, i);
    };
    const std::byte* const first = source(from);
    source(from + n - 16);
    queue_bulk(w, to[i], bar, [&w, at, first, n, bar, i] {
      std::memcpy(at, first, n);
      complete_bytes(w, bar, n, i);
    });
  }
}
// Reads shared memory when its thread waits, which `.read` and the whole wait do alike.
void bulk_to_global(Warp& w, const Inst& in) {  // a: to, b: from, c: bytes
  const Lane<uint64_t> to(w, in.a);
  const Lane<uint32_t> from(w, in.b), bytes(w, in.c);
  for (uint32_t m = w.mask; m != 0; m &= m - 1) {
    const int i = std::countr_zero(m);
    const uint32_t n = bytes[i];
    if (n % 16 != 0) throw Fault("a bulk copy of " + std::to_string(n) + " bytes", i);
    if (n == 0) continue;
    std::byte* const at = global_at(in, to[i], 16, i);
    global_at(in, to[i] + n - 16, 16, i);
    const std::byte* const first = shared_at(w, from[i], 16, i);
    shared_at(w, from[i] + n - 16, 16, i);
    w.stores.copies.push_back({i, w.stores.committed[i], at, first, n, n});
  }
}
void bulk_tensor_to_global(Warp& w, const Inst& in) {  // a: map, list: x, y, b: from
  const Lane<uint32_t> from(w, in.b);
  const Lane<int32_t> x(w, in.list[0]), y(w, in.list[1]);
  const Lane<uint64_t> map(w, in.a);
  for (uint32_t m = w.mask; m != 0; m &= m - 1) {
    const int i = std::countr_zero(m);
    TensorMap box;
    std::memcpy(&box, reinterpret_cast<const void*>(map[i]), sizeof(box));
    const uint32_t address = from[i];
    if (address % 128 != 0) throw Fault("a box from no multiple of 128 bytes", i);
    const std::byte* const first = shared_at(w, address, 16, i);
    shared_at(w, address + box.box_bytes() - 16, 16, i);
    box.for_pieces(address & 0xffffff, x[i], y[i], [&](uint32_t at, uint64_t to, uint32_t n) {
      w.stores.copies.push_back(
          {i, w.stores.committed[i], global_at(in, to, n, i), first + at, n, n});
    });
  }
}
void commit_stores(Warp& w, const Inst&) { commit(w, w.stores); }
void wait_stores(Warp& w, const Inst& in) {
  run_copies(w.stores, w.mask, static_cast<uint32_t>(in.offset));
}
void bulk_tensor(Warp& w, const Inst& in) {  // a: to, b: map, list: x, y, e: barrier
  const Lane<uint32_t> to(w, in.a), barrier(w, in.e);
  const Lane<int32_t> x(w, in.list[0]), y(w, in.list[1]);
  const Lane<uint64_t> map(w, in.b);
  for (uint32_t m = w.mask; m != 0; m &= m - 1) {
    const int i = std::countr_zero(m);
    TensorMap box;
    std::memcpy(&box, reinterpret_cast<const void*>(map[i]), sizeof(box));
    const uint32_t n = box.box_bytes(), bar = barrier[i], address = to[i];
    if (address % 128 != 0) throw Fault("a box to no multiple of 128 bytes", i);
    std::byte* const at = shared_at(w, address, 16, i);
    shared_at(w, address + n - 16, 16, i);
    const int32_t column = x[i], row = y[i];
    queue_bulk(w, address, bar, [&w, &in, at, address, box, column, row, n, bar, i] {
      box.copy(at, address & 0xffffff, column, row,
               [&](uint64_t from, uint32_t bytes) { return global_at(in, from, bytes, i); });
      complete_bytes(w, bar, n, i);
    });
  }
}
void store_async(Warp& w, const Inst& in) {  // a: to, b: value, c: barrier
  // An illegal instruction on an H200, where mapa and the cluster's barrier are none.
  if (w.block->cluster->blocks.size() == 1) throw Fault("st.async of a block of no cluster");
  const Lane<uint32_t> to(w, in.a), value(w, in.b), barrier(w, in.c);
  for (uint32_t m = w.mask; m != 0; m &= m - 1) {
    const int i = std::countr_zero(m);
    std::byte* const at = shared_at(w, to[i], 4, i);
    const uint32_t v = value[i], bar = barrier[i];
    queue_bulk(w, to[i], bar, [&w, at, v, bar, i] {
      std::memcpy(at, &v, 4);
      complete_bytes(w, bar, 4, i);
    });
  }
}
template <typename T>
void map_address(Warp& w, const Inst& in) {
  const Lane<T> a(w, in.a);
  const Lane<uint32_t> rank(w, in.b);
  store_lanes<T>(w, in.d, [&](int i) {
    return static_cast<T>((a[i] & ~T{0xff000000u}) | T{rank[i] + 1} << 24);
  });
}

bool decode_copy(Decoder& d, Inst& in) {
  if (d.has("commit_group")) {
    in.run = commit_copies;
  } else if (d.has("wait_group") || d.has("wait_all")) {
    in.option = d.has("wait_all") ? 1 : 0;
    in.offset = in.option != 0 ? 0 : d.immediate(0);
    in.run = wait_copies;
  } else if (d.has("mbarrier")) {
    if (!d.has("noinc")) d.fail("arrivals that count");
    if (d.address(0, in) != 32) d.fail("a generic address");
    in.option = 3;
    in.b = in.a;
    in.run = arrive;
  } else {
    Inst source;
    if (d.address(1, source) != 64 || d.address(0, in) != 32) d.fail("addresses of other widths");
    const auto offset = static_cast<uint64_t>(source.offset);
    in.targets = d.list({static_cast<uint32_t>(offset), static_cast<uint32_t>(offset >> 32)});
    in.b = source.a;
    in.n = static_cast<uint8_t>(d.immediate(2));
    in.option =
        d.num_operands() > (d.has("cache_hint") || d.has("L2::cache_hint") ? 4u : 3u) ? 1 : 0;
    in.c = in.option != 0 ? d.place(3, 32) : in.a;
    in.run = copy_async;
  }
  return true;
}
bool decode_bulk(Decoder& d, Inst& in) {
  Inst part;
  const auto shared = [&](size_t i) {
    if (d.address(i, part) != 32 || part.offset != 0) d.fail("a shared address of another form");
    return part.a;
  };
  if (d.has("global") && d.s().opcode.back() != "global" &&
      d.operand(0).kind != Operand::Kind::kAddress)
    return false;
  if (d.has("commit_group")) {
    in.run = commit_stores;
    return true;
  }
  if (d.has("wait_group")) {
    in.offset = d.immediate(0);
    in.run = wait_stores;
    return true;
  }
  // The map and its coordinates, which are of two dimensions.
  const auto tensor = [&](size_t i) {
    if (!d.has("2d") || d.address(i, part) != 64 || part.offset != 0)
      d.fail("tensors of two dimensions alone");
    std::vector<Place> places;
    for (const Operand& o : d.operand(i).parts) places.push_back(d.place(o, 32));
    in.list = d.list(places);
    return part.a;
  };
  if (d.has("bulk_group") && d.has("tensor")) {
    in.a = tensor(0);
    in.b = shared(1);
    in.run = bulk_tensor_to_global;
    return true;
  }
  if (d.has("bulk_group")) {
    if (d.address(0, part) != 64 || part.offset != 0) d.fail("a destination of another form");
    in.a = part.a;
    in.b = shared(1);
    in.c = d.place(2, 32);
    in.run = bulk_to_global;
    return true;
  }
  in.a = shared(0);
  if (d.has("tensor")) {
    in.b = tensor(1);
    in.e = shared(2);
    in.run = bulk_tensor;
    return true;
  }
  in.option = d.has("global") ? 0 : 1;
  if (d.address(1, part) != (in.option != 0 ? 32 : 64) || part.offset != 0)
    d.fail("a source of another form");
  in.b = part.a;
  in.c = d.place(2, 32);
  in.e = shared(3);
  in.run = bulk_to_shared;
  return true;
}
bool decode_mbarrier(Decoder& d, Inst& in) {
  const bool has_result = d.has("arrive") || d.has("try_wait") || d.has("test_wait");
  if (d.address(has_result ? 1 : 0, in) != 32) d.fail("a generic address");
  const size_t value = has_result ? 2 : 1;
  in.b = d.num_operands() > value ? d.place(value, 32) : in.a;
  if (d.has("init")) {
    in.run = init_mbarrier;
  } else if (d.has("inval")) {
    in.run = [](Warp&, const Inst&) {};
  } else if (d.has("arrive")) {
    if (d.operand(0).kind != Operand::Kind::kSink) d.fail("an arrival's state");
    in.option = d.has("expect_tx") ? 1 : d.num_operands() > value ? 2 : 0;
    in.run = arrive;
  } else if (d.has("expect_tx")) {
    in.run = expect_bytes;
  } else if (has_result && d.has("parity")) {
    in.d = d.predicate(d.operand(0));
    in.run = try_wait;
  } else {
    return false;
  }
  return true;
}

}  // namespace

bool decode_async(Decoder& d, Inst& in) {
  const std::string& op = d.base();
  if (op == "cp" && d.has("async")) return d.has("bulk") ? decode_bulk(d, in) : decode_copy(d, in);
  if (op == "mbarrier") return decode_mbarrier(d, in);
  if (op == "mapa") {
    const int bits = d.type().bits;
    in.d = d.place(0, bits), in.a = d.place(1, bits), in.b = d.place(2, 32);
    in.run = bits == 64 ? map_address<uint64_t> : map_address<uint32_t>;
    return true;
  }
  if (op != "st" || !d.has("async")) return false;
  Inst part;
  if (d.type().bits != 32 || d.address(0, part) != 32 || part.offset != 0) d.fail("another form");
  in.a = part.a;
  in.b = d.place(1, 32);
  if (d.address(2, part) != 32 || part.offset != 0) d.fail("another form");
  in.c = part.a;
  in.run = store_async;
  return true;
}

}  // namespace nibble::emulated
