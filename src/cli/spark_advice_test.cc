#include "cli/spark_advice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace nibble::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr DenseFormats kAllMxfp4{Format::kMxfp4, Format::kMxfp4, Format::kMxfp4, Format::kMxfp4};
constexpr const char* kFp8 = "--activations fp8 --kv-cache-dtype fp8 ";
constexpr const char* kMxfp8 = "--dense-format mxfp8";
constexpr const char* kMxfp4 = "--dense-format mxfp4";

TEST(SparkAdvice, NamesWhatIsFasterThanWhatIsSet) {
  const char* model = "openai/gpt-oss-120b";
  EXPECT_THAT(spark_advice(model, {}),
              AllOf(HasSubstr("as set"), HasSubstr(kFp8), HasSubstr(kMxfp8), HasSubstr(kMxfp4),
                    HasSubstr("not measured")));
  // Dense weights are in MXFP4 already: the last step is only that of activations.
  EXPECT_THAT(spark_advice(model, {.dense = kAllMxfp4}),
              AllOf(HasSubstr(kFp8), Not(HasSubstr(kMxfp8))));
  EXPECT_THAT(spark_advice(model, {.activations = ops::ActFormat::kFp8, .kv = DType::kF8E4M3}),
              HasSubstr(kMxfp4));
  EXPECT_EQ(spark_advice(model, {kAllMxfp4, ops::ActFormat::kFp8, DType::kF8E4M3}), "");
}

TEST(SparkAdvice, RecommendsActivationsInFp8ForNvfp4) {
  EXPECT_THAT(spark_advice("nvidia/Qwen3-8B-NVFP4", {}), HasSubstr(kFp8));
}

// What its delta nets cost is not known: nothing is projected.
TEST(SparkAdvice, SaysNothingOfWhatItDoesNotKnow) {
  EXPECT_EQ(spark_advice("nvidia/Qwen3-Next-80B-A3B-Instruct-NVFP4", {}), "");
}

}  // namespace
}  // namespace nibble::cli
