#include "cli/device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"

namespace nibble::cli {
namespace {

using testing::HasSubstr;

ErrorKind refusal(std::string_view flag, const DeviceFacts& facts, std::string* text = nullptr) {
  try {
    choose_device(flag, facts);
  } catch (const Error& e) {
    if (text) *text = e.what();
    return e.kind();
  }
  ADD_FAILURE() << flag << " was not refused";
  return ErrorKind::kUsage;
}

TEST(Device, CpuIsWhatIsAskedForOrThereIsNothingElse) {
  EXPECT_EQ(choose_device("auto", {}), Device::kCpu);
  EXPECT_EQ(choose_device("cpu", {}), Device::kCpu);
  EXPECT_EQ(choose_device("cpu", {.built_with_cuda = false, .gpus = {"NVIDIA GB10"}}),
            Device::kCpu);
  EXPECT_EQ(choose_device("auto", {.built_with_cuda = true, .gpus = {}}), Device::kCpu);
}

TEST(Device, GpuWhereTheBuildHasIt) {
  const DeviceFacts facts{.built_with_cuda = true, .gpus = {"NVIDIA H200"}};
  EXPECT_EQ(choose_device("auto", facts), Device::kCuda);
  EXPECT_EQ(choose_device("cuda", facts), Device::kCuda);
}

TEST(Device, BuildForCpusRefusesToStartBesideAGpu) {
  const DeviceFacts facts{.built_with_cuda = false, .gpus = {"NVIDIA GB10"}};
  std::string text;
  EXPECT_EQ(refusal("auto", facts, &text), ErrorKind::kUnsupported);
  EXPECT_THAT(text, HasSubstr("NVIDIA GB10"));
  EXPECT_THAT(text, HasSubstr("--device cpu"));
  EXPECT_EQ(refusal("cuda", facts), ErrorKind::kUnsupported);
}

TEST(Device, CudaWithoutAGpuAndUnknownFlagsAreRefused) {
  EXPECT_EQ(refusal("cuda", {.built_with_cuda = true, .gpus = {}}), ErrorKind::kUnsupported);
  EXPECT_EQ(refusal("tpu", {}), ErrorKind::kUsage);
}

TEST(Device, ReadsWhatTheDriverLists) {
  const std::filesystem::path root = std::filesystem::path(testing::TempDir()) / "device_root";
  std::filesystem::remove_all(root);
  EXPECT_TRUE(read_device_facts(root).gpus.empty());
  const auto gpu = root / "proc/driver/nvidia/gpus/0000:19:00.0";
  std::filesystem::create_directories(gpu);
  std::ofstream(gpu / "information") << "Model: \t\t NVIDIA H200\nIRQ:   \t\t 106\n";
  std::filesystem::create_directories(root / "proc/driver/nvidia/gpus/0000:3b:00.0");
  EXPECT_THAT(read_device_facts(root).gpus, testing::ElementsAre("NVIDIA GPU", "NVIDIA H200"));
}

}  // namespace
}  // namespace nibble::cli
