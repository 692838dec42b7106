#include "cli/text_table.h"

#include <gtest/gtest.h>

namespace nibble::cli {
namespace {

TEST(TextTable, AlignsColumnsAndLeavesNoTrailingBlanks) {
  TextTable table({"part", ">bytes", "note"});
  table.add({"experts", "12", ""});
  table.add({"a", "1,234", "x"});
  EXPECT_EQ(table.plain(),
            "part     bytes  note\n"
            "experts     12\n"
            "a        1,234  x\n");
  EXPECT_EQ(table.markdown(),
            "| part    | bytes | note |\n"
            "| ------- | ----: | ---- |\n"
            "| experts |    12 |      |\n"
            "| a       | 1,234 | x    |\n");
}

TEST(TextTable, Numbers) {
  EXPECT_EQ(with_commas(0), "0");
  EXPECT_EQ(with_commas(999), "999");
  EXPECT_EQ(with_commas(1000), "1,000");
  EXPECT_EQ(with_commas(65248815744), "65,248,815,744");
  EXPECT_EQ(with_commas(-123456), "-123,456");
  EXPECT_EQ(with_commas(-123), "-123");
  EXPECT_EQ(fixed_digits(54.5672, 2), "54.57");
}

}  // namespace
}  // namespace nibble::cli
