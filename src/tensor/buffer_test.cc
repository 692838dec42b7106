#include "tensor/buffer.h"

#include <gtest/gtest.h>

namespace nibble {
namespace {

TEST(Arena, HandsOutAlignedZeroedViewsInOrder) {
  Arena arena(3 * Arena::kAlign);
  Tensor a = arena.take(DType::kF32, {3});
  Tensor b = arena.take(DType::kBF16, {2, 5});
  EXPECT_EQ(a.as<float>()[2], 0.0f);
  EXPECT_EQ(static_cast<char*>(b.data) - static_cast<char*>(a.data), Arena::kAlign);
  EXPECT_EQ(b.size_bytes(), 20);
  EXPECT_DEATH(arena.take(DType::kU8, {Arena::kAlign + 1}), "CHECK failed");
}

TEST(Tensor, RefusesToBeReadAsAnotherType) {
  float x = 1;
  Tensor t = make_tensor(&x, DType::kF32, {1});
  EXPECT_EQ(*t.as<const float>(), 1.0f);
  EXPECT_DEATH(t.as<uint16_t>(), "CHECK failed");
}

TEST(Buffer, MovesItsMemory) {
  Buffer a(100);
  void* p = a.data();
  Buffer b(std::move(a));
  EXPECT_EQ(b.data(), p);
  EXPECT_EQ(a.size_bytes(), 0);  // NOLINT: moved from, as it says
}

TEST(Buffer, GivesMemoryBackOnce) {
  static int released = 0;
  int memory = 0;
  {
    Buffer a(&memory, sizeof(memory), [](void* data, int64_t bytes) {
      EXPECT_EQ(bytes, static_cast<int64_t>(sizeof(int)));
      released += data != nullptr;
    });
    Buffer b(std::move(a));
    Buffer c(16);
    c = std::move(b);
    EXPECT_EQ(c.data(), &memory);
  }
  EXPECT_EQ(released, 1);
}

}  // namespace
}  // namespace nibble
