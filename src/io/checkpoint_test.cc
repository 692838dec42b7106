#include "io/checkpoint.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>

#include "io/bundle_for_test.h"
#include "io/io_test.h"

namespace nibble {
namespace {

using test::Bundle;
using test::error_of;
using test::TempDir;
using test::write_file;
using testing::AllOf;
using testing::HasSubstr;

std::vector<std::byte> read_tensor(const Checkpoint& checkpoint, const std::string& name) {
  const TensorInfo* tensor = checkpoint.find(name);
  if (tensor == nullptr) throw std::runtime_error("no tensor " + name);
  std::vector<std::byte> data(static_cast<size_t>(tensor->bytes));
  const ReadJob job = ReadJob::whole(*tensor, data.data());
  checkpoint.read({&job, 1});
  return data;
}

std::string open_error(const std::filesystem::path& directory) {
  return error_of([&] { open_checkpoint(directory); });
}

TEST(Checkpoint, ReadsOneFile) {
  const TempDir dir;
  Bundle bundle;
  bundle.add("b", DType::kBF16, {3, 5});
  bundle.add("a", DType::kU8, {20'000'001});  // several pieces, odd alignment
  bundle.add("c", DType::kF32, {});
  bundle.write(dir / "model.safetensors");
  const auto checkpoint = open_checkpoint(dir.path());
  ASSERT_EQ(checkpoint->tensors().size(), 3u);
  for (const char* name : {"a", "b", "c"})
    EXPECT_EQ(read_tensor(*checkpoint, name), bundle.data(name)) << name;
  EXPECT_EQ(checkpoint->find("d"), nullptr);
  EXPECT_EQ(checkpoint->find("b")->shape, (std::vector<int64_t>{3, 5}));
}

TEST(Checkpoint, ReadsRangesAndReportsProgress) {
  const TempDir dir;
  Bundle bundle;
  bundle.add("w", DType::kU8, {20'000'000});
  bundle.write(dir / "model.safetensors");
  const auto checkpoint = open_checkpoint(dir.path());
  const TensorInfo* w = checkpoint->find("w");
  std::vector<std::byte> data(12'000'003);
  const ReadJob jobs[] = {{w, 4'000'001, 12'000'000, data.data()},
                          {w, 17, 3, data.data() + 12'000'000}};
  int64_t last = 0, total = 0;
  int calls = 0;
  checkpoint->read(jobs, [&](int64_t done_bytes, int64_t total_bytes) {
    EXPECT_GT(done_bytes, last);
    last = done_bytes;
    total = total_bytes;
    ++calls;
  });
  EXPECT_EQ(last, 12'000'003);
  EXPECT_EQ(total, 12'000'003);
  EXPECT_GE(calls, 3);
  const std::byte* source = bundle.data("w").data();
  EXPECT_EQ(std::memcmp(data.data(), source + 4'000'001, 12'000'000), 0);
  EXPECT_EQ(std::memcmp(data.data() + 12'000'000, source + 17, 3), 0);
  checkpoint->read({});
}

// Bytes of a file that the page cache holds.
int64_t cached_bytes(const std::filesystem::path& file) {
  const auto size = static_cast<size_t>(std::filesystem::file_size(file));
  const int fd = open(file.c_str(), O_RDONLY | O_CLOEXEC);
  void* const map = mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
  std::vector<unsigned char> pages(size / 4096 + 1);
  EXPECT_EQ(mincore(map, size, pages.data()), 0);
  munmap(map, size);
  close(fd);
  return 4096 * std::ranges::count_if(pages, [](unsigned char page) { return page & 1; });
}

// Bytes that this process has asked files for so far.
int64_t bytes_read() {
  std::ifstream io("/proc/self/io");
  std::string name;
  int64_t bytes = 0;
  io >> name >> bytes;
  EXPECT_EQ(name, "rchar:");
  return bytes;
}

// So that a model as large as memory can be loaded where GPU and host share it.
TEST(Checkpoint, ReadsEachByteOnceAndLeavesNothingInThePageCache) {
  constexpr int64_t kBytes = 40'000'000, kBlock = 4096, kPieces = 10;
  const TempDir dir;
  const std::filesystem::path file = dir / "model.safetensors";
  Bundle bundle;
  bundle.add("w", DType::kU8, {kBytes});
  bundle.write(file);
  const int fd = open(file.c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_EQ(fsync(fd), 0);
  ASSERT_EQ(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
  close(fd);
  if (cached_bytes(file) > kBytes / 2) GTEST_SKIP() << "a file system in memory";
  const int64_t before = bytes_read();
  const auto checkpoint = open_checkpoint(dir.path());
  EXPECT_EQ(read_tensor(*checkpoint, "w"), bundle.data("w"));
  // The header, and whole blocks at both ends of each piece.
  EXPECT_LE(bytes_read() - before, kBytes + 2 * kBlock * kPieces + 64 * 1024);
  EXPECT_LE(cached_bytes(file), 1 << 20);  // the header, and what is read ahead with it
}

TEST(Checkpoint, ReadsShardsByIndex) {
  const TempDir dir;
  Bundle one, two, stranger;
  one.add("a", DType::kU8, {10});
  one.add("unlisted", DType::kU8, {4});
  two.add("b", DType::kBF16, {7});
  stranger.add("c", DType::kU8, {3});
  one.write(dir / "m-1.safetensors");
  two.write(dir / "m-2.safetensors");
  stranger.write(dir / "m-3.safetensors");  // not in the index
  std::filesystem::create_directory(dir / "original");
  stranger.write(dir / "original/model.safetensors");  // never looked at
  write_file(dir / "model.safetensors.index.json",
             R"({"metadata":{"total_size":24},
                 "weight_map":{"a":"m-1.safetensors","b":"m-2.safetensors"}})");
  const auto checkpoint = open_checkpoint(dir.path());
  ASSERT_EQ(checkpoint->tensors().size(), 2u);
  EXPECT_EQ(read_tensor(*checkpoint, "a"), one.data("a"));
  EXPECT_EQ(read_tensor(*checkpoint, "b"), two.data("b"));
}

TEST(Checkpoint, RefusesIndexThatDoesNotFit) {
  const TempDir dir;
  const auto index = dir / "model.safetensors.index.json";
  EXPECT_THAT(open_error(dir.path()), HasSubstr("has neither model.safetensors nor"));
  Bundle one;
  one.add("a", DType::kU8, {10});
  one.write(dir / "m-1.safetensors");
  write_file(index, R"({"weight_map":{"a":"m-1.safetensors","b":"m-2.safetensors"}})");
  EXPECT_THAT(open_error(dir.path()),
              AllOf(HasSubstr("index.json: names m-2.safetensors, which is missing"),
                    HasSubstr("download complete")));
  write_file(index, R"({"weight_map":{"a":"m-1.safetensors","b":"m-1.safetensors"}})");
  EXPECT_THAT(open_error(dir.path()), HasSubstr("tensor \"b\" is not in m-1.safetensors"));
  write_file(index, R"({"metadata":{"total_size":11},"weight_map":{"a":"m-1.safetensors"}})");
  EXPECT_THAT(open_error(dir.path()), HasSubstr("total_size is 11 but the tensors have 10"));
  write_file(index, R"({"weight_map":{"a":"../m-1.safetensors"}})");
  EXPECT_THAT(open_error(dir.path()), HasSubstr("same directory"));
}

TEST(Checkpoint, RefusesBrokenFiles) {
  const TempDir dir;
  const auto file = dir / "model.safetensors";
  write_file(file, "");
  EXPECT_THAT(open_error(dir.path()), HasSubstr("model.safetensors: has fewer than 8 bytes"));
  write_file(file, "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 123456789\n");
  EXPECT_THAT(open_error(dir.path()), HasSubstr("Git LFS pointer"));
  Bundle bundle;
  bundle.add("w", DType::kU8, {100'000});
  bundle.write(file);
  std::filesystem::resize_file(file, 50'000);
  EXPECT_THAT(open_error(dir.path()),
              AllOf(HasSubstr("tensor \"w\""), HasSubstr("truncated, download it again")));
  std::filesystem::resize_file(file, 20);
  EXPECT_THAT(open_error(dir.path()), HasSubstr("truncated"));
  std::filesystem::remove(file);
  std::filesystem::create_directory(file);
  EXPECT_THAT(open_error(dir.path()), HasSubstr("is not a regular file"));
}

// A file cut short after it was opened: an error that says so, not a crash.
TEST(Checkpoint, NoticesTruncationWhileReading) {
  const TempDir dir;
  Bundle bundle;
  bundle.add("w", DType::kU8, {20'000'000});
  bundle.write(dir / "model.safetensors");
  const auto checkpoint = open_checkpoint(dir.path());
  std::filesystem::resize_file(dir / "model.safetensors", 10'000'000);
  EXPECT_THAT(error_of([&] { read_tensor(*checkpoint, "w"); }),
              AllOf(HasSubstr("model.safetensors: ended before byte "),
                    HasSubstr("truncated or replaced")));
}

// A tiny gpt-oss layer in both layouts: H 32, 2 query heads and 1 KV head of 16, 2 experts of 32.
void add_shared(Bundle& hf, Bundle& original, const std::string& hf_name,
                const std::string& original_name, DType dtype, const std::vector<int64_t>& shape) {
  hf.add(hf_name, dtype, shape);
  original.add(original_name, dtype, shape, hf.data(hf_name));
}

void add_qkv(Bundle& hf, Bundle& original, const std::string& kind, std::vector<int64_t> tail) {
  std::vector<std::byte> fused;
  for (const auto& [part, rows] : {std::pair{"q", 32}, {"k", 16}, {"v", 16}}) {
    std::vector<int64_t> shape = {rows};
    shape.insert(shape.end(), tail.begin(), tail.end());
    const std::string name = "model.layers.0.self_attn." + std::string(part) + "_proj." + kind;
    hf.add(name, DType::kBF16, shape);
    fused.insert(fused.end(), hf.data(name).begin(), hf.data(name).end());
  }
  tail.insert(tail.begin(), 64);
  original.add("block.0.attn.qkv." + kind, DType::kBF16, tail, std::move(fused));
}

TEST(Checkpoint, BothGptOssLayoutsGiveTheSameTensors) {
  Bundle hf, original;
  const std::string l = "model.layers.0.", b = "block.0.";
  const DType bf16 = DType::kBF16, u8 = DType::kU8;
  add_shared(hf, original, "model.embed_tokens.weight", "embedding.weight", bf16, {50, 32});
  add_shared(hf, original, "lm_head.weight", "unembedding.weight", bf16, {50, 32});
  add_shared(hf, original, "model.norm.weight", "norm.scale", bf16, {32});
  add_shared(hf, original, l + "input_layernorm.weight", b + "attn.norm.scale", bf16, {32});
  add_shared(hf, original, l + "post_attention_layernorm.weight", b + "mlp.norm.scale", bf16, {32});
  add_shared(hf, original, l + "self_attn.o_proj.weight", b + "attn.out.weight", bf16, {32, 32});
  add_shared(hf, original, l + "self_attn.o_proj.bias", b + "attn.out.bias", bf16, {32});
  add_shared(hf, original, l + "self_attn.sinks", b + "attn.sinks", bf16, {2});
  add_shared(hf, original, l + "mlp.router.weight", b + "mlp.gate.weight", bf16, {2, 32});
  add_shared(hf, original, l + "mlp.router.bias", b + "mlp.gate.bias", bf16, {2});
  for (const auto& [name, other, rows] :
       {std::tuple{"gate_up_proj", "mlp1", 64}, {"down_proj", "mlp2", 32}}) {
    const std::string e = l + "mlp.experts." + name, o = b + "mlp." + other;
    add_shared(hf, original, e + "_blocks", o + "_weight.blocks", u8, {2, rows, 1, 16});
    add_shared(hf, original, e + "_scales", o + "_weight.scales", u8, {2, rows, 1});
    add_shared(hf, original, e + "_bias", o + "_bias", bf16, {2, rows});
  }
  add_qkv(hf, original, "weight", {32});
  add_qkv(hf, original, "bias", {});

  const TempDir dir;
  std::filesystem::create_directories(dir / "hf");
  std::filesystem::create_directories(dir / "original");
  hf.write(dir / "hf/model.safetensors");
  original.write(dir / "original/model.safetensors");
  const auto a = open_checkpoint(dir / "hf"), c = open_checkpoint(dir / "original");
  ASSERT_EQ(a->tensors().size(), 22u);
  ASSERT_EQ(c->tensors().size(), 22u);
  for (size_t i = 0; i < a->tensors().size(); ++i) {
    const TensorInfo &x = a->tensors()[i], &y = c->tensors()[i];
    EXPECT_EQ(x.name, y.name);
    EXPECT_EQ(x.dtype, y.dtype) << x.name;
    EXPECT_EQ(x.shape, y.shape) << x.name;
    EXPECT_EQ(read_tensor(*a, x.name), read_tensor(*c, x.name)) << x.name;
  }
}

TEST(Checkpoint, RefusesOriginalLayoutThatDoesNotAddUp) {
  const TempDir dir;
  Bundle unknown;
  unknown.add("block.0.attn.sinks", DType::kBF16, {2});
  unknown.add("block.0.attn.what", DType::kBF16, {2});
  unknown.write(dir / "model.safetensors");
  EXPECT_THAT(open_error(dir.path()), HasSubstr("tensor \"block.0.attn.what\": not a name"));
  Bundle odd;
  odd.add("block.0.attn.qkv.weight", DType::kBF16, {35, 32});
  odd.add("block.0.attn.out.weight", DType::kBF16, {32, 32});
  odd.write(dir / "model.safetensors");
  EXPECT_THAT(open_error(dir.path()), HasSubstr("\"block.0.attn.qkv.weight\": 35 rows cannot be"));
  Bundle alone;
  alone.add("block.0.attn.qkv.weight", DType::kBF16, {64, 32});
  alone.write(dir / "model.safetensors");
  EXPECT_THAT(open_error(dir.path()), HasSubstr("64 rows cannot be 0 of q"));
}

TEST(Weights, FormatsComeFromTheDiskAndAreCheckedAgainstTheWish) {
  const TempDir dir;
  Bundle bundle;
  bundle.add("norm", DType::kBF16, {64});
  bundle.add("up_blocks", DType::kU8, {2, 8, 2, 16});
  bundle.add("up_scales", DType::kU8, {2, 8, 2});
  bundle.add("up_bias", DType::kF32, {2, 8});
  bundle.write(dir / "model.safetensors");
  const auto checkpoint = open_checkpoint(dir.path());
  const std::vector<WeightInfo> weights = list_weights(*checkpoint);
  ASSERT_EQ(weights.size(), 3u);
  EXPECT_EQ(weights[1].name, "up");
  EXPECT_EQ(weights[1].format, Format::kMxfp4);
  EXPECT_EQ(weights[1].shape, (std::vector<int64_t>{2, 8, 64}));
  EXPECT_EQ(weights[1].bytes(), format_bytes(Format::kMxfp4, 2 * 8 * 64));
  EXPECT_EQ(weights[2].format, Format::kF32);

  const auto match = [&](const WeightSpec& spec) { return match_weights(*checkpoint, {&spec, 1}); };
  const std::vector<WeightInfo> up =
      match({.name = "up", .shape = {2, 8, 64}, .format = Format::kMxfp4});
  ASSERT_EQ(up.size(), 1u);
  EXPECT_EQ(up[0].codes->name, "up_blocks");
  EXPECT_EQ(up[0].scales->name, "up_scales");
  EXPECT_THAT(error_of([&] {
                match({.name = "up", .shape = {2, 8, 64}});
              }),
              HasSubstr("tensor \"up\": found mxfp4 [2, 8, 64], expected bf16 [2, 8, 64]"));
  EXPECT_THAT(error_of([&] { match({.name = "norm", .shape = {32}}); }),
              HasSubstr("tensor \"norm\": found bf16 [64], expected bf16 [32]"));
  EXPECT_THAT(error_of([&] { match({.name = "sinks", .shape = {32}}); }),
              HasSubstr("tensor \"sinks\": is missing; expected bf16 [32]"));
}

TEST(Weights, RefusesHalvesAndMisfits) {
  const auto list_error = [](const Bundle& bundle) {
    const TempDir dir;
    bundle.write(dir / "model.safetensors");
    const auto checkpoint = open_checkpoint(dir.path());
    return error_of([&] { list_weights(*checkpoint); });
  };
  Bundle no_scales, no_blocks, misfit, odd, integer, both, huge;
  no_scales.add("w_blocks", DType::kU8, {2, 16});
  EXPECT_THAT(list_error(no_scales), HasSubstr("tensor \"w_blocks\": has no w_scales"));
  no_blocks.add("w_scales", DType::kU8, {2});
  EXPECT_THAT(list_error(no_blocks), HasSubstr("tensor \"w_scales\": has no w_blocks"));
  misfit.add("w_blocks", DType::kU8, {2, 16});
  misfit.add("w_scales", DType::kU8, {3});
  EXPECT_THAT(list_error(misfit), HasSubstr("found U8 [3], expected U8 [2]"));
  odd.add("w_blocks", DType::kU8, {2, 8});
  odd.add("w_scales", DType::kU8, {2});
  EXPECT_THAT(list_error(odd), HasSubstr("found U8 [2, 8], expected U8 [..., 16]"));
  integer.add("w", DType::kI64, {2});
  EXPECT_THAT(list_error(integer), HasSubstr("tensor \"w\": no weight format is stored as I64"));
  both.add("w", DType::kBF16, {2});
  both.add("w_blocks", DType::kU8, {2, 16});
  both.add("w_scales", DType::kU8, {2});
  EXPECT_THAT(list_error(both), HasSubstr("is there twice: as "));
  huge.add("w_blocks", DType::kU8, {0, int64_t{1} << 62, 16}, {});  // no bytes, 2^67 elements a row
  huge.add("w_scales", DType::kU8, {0, int64_t{1} << 62}, {});
  EXPECT_THAT(list_error(huge), HasSubstr("tensor \"w_blocks\": its shape overflows"));
}

// Experts in NVFP4 as ModelOpt has them; every look-up begins with the list of tensors.
class CountedTensors : public Checkpoint {
 public:
  explicit CountedTensors(int64_t experts) {
    for (int64_t e = 0; e < experts; ++e) {
      const std::string module = "model.layers.0.mlp.experts." + std::to_string(e) + ".up_proj.";
      tensors_.push_back({.name = module + "input_scale", .dtype = DType::kF32, .shape = {}});
      tensors_.push_back({.name = module + "weight", .dtype = DType::kU8, .shape = {16, 16}});
      tensors_.push_back(
          {.name = module + "weight_scale", .dtype = DType::kF8E4M3, .shape = {16, 2}});
      tensors_.push_back({.name = module + "weight_scale_2", .dtype = DType::kF32, .shape = {}});
    }
    std::sort(tensors_.begin(), tensors_.end(),
              [](const TensorInfo& a, const TensorInfo& b) { return a.name < b.name; });
  }
  const std::string& origin() const override { return origin_; }
  std::span<const TensorInfo> tensors() const override {
    ++look_ups;
    return tensors_;
  }
  RangeReader make_reader() const override { return {}; }
  int num_readers() const override { return 1; }
  mutable int64_t look_ups = 0;

 private:
  const std::string origin_ = "counted";
  std::vector<TensorInfo> tensors_;
};

// A checkpoint has up to 300,000 tensors: what is done for one does not depend on their number.
TEST(Checkpoint, LookUpsGrowAsTensorsDo) {
  const auto per_expert = [](int64_t experts) {
    const CountedTensors checkpoint(experts);
    std::vector<WeightSpec> wanted;
    for (const WeightInfo& w : list_weights(checkpoint))
      wanted.push_back({.name = w.name, .shape = w.shape, .format = w.format});
    EXPECT_EQ(std::ssize(wanted), experts);
    checkpoint.look_ups = 0;
    EXPECT_EQ(std::ssize(match_weights(checkpoint, wanted)), experts);
    return static_cast<double>(checkpoint.look_ups) / static_cast<double>(experts);
  };
  EXPECT_LT(per_expert(100),
            16);  // a few for each of four tensors, and for parts that are not there
  EXPECT_NEAR(per_expert(10'000), per_expert(100), 0.1);
}

}  // namespace
}  // namespace nibble
