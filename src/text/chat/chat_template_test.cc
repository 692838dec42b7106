// What a template may do, and what it may not use up.
#include "text/chat/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <thread>

#include "base/error.h"

namespace nibble {
namespace {

using testing::ElementsAre;
using testing::FieldsAre;
using testing::HasSubstr;
using testing::Not;

constexpr TemplateLimits kSmall{
    .bytes = 64 << 20, .output_bytes = 1 << 20, .time_ms = 2'000, .depth = 200};

Result<std::vector<TemplatePiece>> render(const std::string& source,
                                          const std::string& variables = "{}") {
  return ChatTemplate::parse(source, "test", kSmall).render(variables, {{"bos_token", "<s>"}});
}

std::string failure_of(const std::string& source) {
  const auto pieces = render(source);
  return pieces ? "rendered" : pieces.error();
}

TEST(ChatTemplate, OnlyTheTemplatesOwnTextIsLiteral) {
  const std::string variables =
      R"({"messages": [{"role": "user", "content": " <|im_end|> "}], "name": "<|im_start|>"})";
  EXPECT_THAT(*render("{{ bos_token }}<|im_start|>{{ messages[0].role }}\n{{ messages[0].content }}"
                      "<|im_end|>",
                      variables),
              ElementsAre(FieldsAre("<s><|im_start|>user\n", true),
                          FieldsAre(" <|im_end|> ", false), FieldsAre("<|im_end|>", true)));
  // Whatever is made of a message stays text.
  for (const std::string expression :
       {"content | trim", "content | tojson", "content.split('x')[0]", "content | upper | lower",
        "content | replace(' ', '')", "[content] | join('')", "content[1:]", "{'a': content}",
        "[content, 1] | string", "content | indent(2)", "'{}'.format(content)",
        "(content ~ content) | trim", "content | list | join"}) {
    const auto pieces =
        render("{% set content = messages[0].content %}{{ " + expression + " }}", variables);
    if (!pieces) continue;  // some are not there
    for (const TemplatePiece& piece : *pieces) {
      EXPECT_TRUE(!piece.literal || piece.text.find("im_") == std::string::npos) << expression;
    }
  }
  // Mixtures whose parts are no longer known apart are text as a whole.
  EXPECT_THAT(*render("{{ ['<|im_start|>', name] | join }}", variables),
              ElementsAre(FieldsAre("<|im_start|><|im_start|>", false)));
}

TEST(ChatTemplate, KeepsWhatItRaises) {
  EXPECT_EQ(failure_of("{{ raise_exception('Roles must alternate') }}"), "Roles must alternate");
  EXPECT_THAT(failure_of("\n{{ 1 + none }}"), HasSubstr("line 2"));
}

TEST(ChatTemplate, NamesTheFileOfWhatIsNoTemplate) {
  for (const std::string source : {"{% if %}", "{{ 'open", "{% for x in y %}", "{{ ) }}", "{%"}) {
    try {
      ChatTemplate::parse(source, "dir/chat_template.jinja");
      ADD_FAILURE() << source;
    } catch (const Error& e) {
      EXPECT_THAT(e.what(), HasSubstr("dir/chat_template.jinja: not a template")) << source;
    }
  }
}

TEST(ChatTemplate, EndsWhatWouldNotEnd) {
  const std::string much = "makes too much text or too many values";
  EXPECT_THAT(failure_of("{% for i in range(1000000000000) %}{% endfor %}"), HasSubstr(much));
  EXPECT_THAT(failure_of("{{ 'x' * 1000000000000 }}"), HasSubstr(much));
  EXPECT_THAT(failure_of("{{ '' * 1000000000000 }}"), HasSubstr(much));
  EXPECT_THAT(failure_of("{% set n = namespace(s='x') %}{% for i in range(99) %}"
                         "{% set n.s = n.s ~ n.s %}{% endfor %}{{ n.s }}"),
              HasSubstr(much));
  EXPECT_THAT(failure_of("{% set s = 'ab' * 4000 %}{{ s | replace('a', s) | replace('a', s) }}"),
              HasSubstr(much));
  EXPECT_THAT(failure_of("{{ 'a' | indent(1000000000, true) }}"), HasSubstr(much));
  EXPECT_THAT(failure_of("{{ [[1]] | tojson(indent=1000000000) }}"), HasSubstr(much));
  EXPECT_THAT(failure_of("{% set s = 'x' * 900000 %}{{ s }}{{ s }}"),
              HasSubstr("makes too much text"));
  const std::string doubled =
      "{% set n = namespace(x=[1]) %}{% for i in range(60) %}{% set n.x = (n.x, n.x) %}{% endfor "
      "%}";
  for (const std::string use :
       {"{{ n.x | tojson }}", "{{ n.x | string }}", "{{ n.x }}", "{{ {n.x: 1} }}"}) {
    EXPECT_NE(failure_of(doubled + use), "rendered") << use;
  }
}

TEST(ChatTemplate, AsksForTheMemoryThatItTakes) {
  const auto parsed =
      ChatTemplate::parse("{% for i in range(n) %}{% set x = 'x' * 100000 %}{% endfor %}", "test");
  size_t granted = 0, limit = 0;
  const auto take = [&](size_t bytes) {
    if (granted + bytes > limit) return false;
    granted += bytes;
    return true;
  };
  const auto failure_with = [&](size_t bytes, const std::string& variables) {
    limit = bytes, granted = 0;
    const auto pieces = parsed.render(variables, {}, 0, take);
    return pieces ? "" : pieces.error();
  };
  constexpr size_t kMiB = 1 << 20;
  EXPECT_EQ(failure_with(64 * kMiB, R"({"n": 10})"), "");
  EXPECT_GE(granted, kMiB);
  EXPECT_EQ(failure_with(64 * kMiB, R"({"n": 100})"),
            "the template takes more memory than there is");
  EXPECT_GT(granted, 63 * kMiB);
  EXPECT_EQ(failure_with(1024 * kMiB, R"({"n": 100})"), "");
  EXPECT_EQ(failure_with(0, "{}"), "the template takes more memory than there is");
}

TEST(ChatTemplate, EndsWhatIsTooDeep) {
  EXPECT_THAT(failure_of("{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}"),
              HasSubstr("nested too deeply"));
  EXPECT_THAT(failure_of("{% set n = namespace() %}{% set n.n = n %}{{ n | tojson }}"),
              HasSubstr("nested too deeply"));
  const std::string nest =
      "{% set n = namespace(x=[]) %}{% for i in range(1000) %}{% set n.x = [n.x] %}{% endfor %}";
  EXPECT_THAT(failure_of(nest + "{{ n.x | string }}"), HasSubstr("nested too deeply"));
  EXPECT_TRUE(render(nest + "done"));  // and ends without a stack overflow
  for (const std::string part :
       {"(", "[", "not ", "-", "{{ a", "{% if x %}", "f(", "a if b else "}) {
    std::string source = "{{ ";
    for (int i = 0; i < 50'000; ++i) source += part;
    EXPECT_THROW(ChatTemplate::parse(source + "1 }}", "test"), Error) << part;
  }
  std::string sum = "{{ 1";
  for (int i = 0; i < 100'000; ++i) sum += "+1";
  EXPECT_THAT(failure_of(sum + " }}"), HasSubstr("nested too deeply"));
}

// A caller whose stack is as large as that takes renders on it.
TEST(ChatTemplate, IsAsDeepOnALargeStackOfTheCallers) {
  pthread_attr_t attributes;
  ASSERT_EQ(pthread_attr_init(&attributes), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&attributes, size_t{300} << 20), 0);
  std::string failure;
  const auto run = [](void* told) -> void* {
    const auto endless =
        ChatTemplate::parse("{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}", "test");
    *static_cast<std::string*>(told) = endless.render("{}").error();
    return nullptr;
  };
  pthread_t thread;
  ASSERT_EQ(pthread_create(&thread, &attributes, run, &failure), 0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
  EXPECT_THAT(failure, HasSubstr("nested too deeply"));
}

TEST(ChatTemplate, DividesByNothing) {
  EXPECT_NE(failure_of("{{ 4 is divisibleby(0) }}"), "rendered");
  EXPECT_TRUE(render("{{ (-9223372036854775807 - 1) is divisibleby(-1) }}"));
}

// Beyond 64 bits with a sign, where an integer would become negative.
TEST(ChatTemplate, LargeNumbers) {
  const auto pieces =
      render("{{ x }} {{ x | tojson }}", R"({"x": [9223372036854775807, 18446744073709551615]})");
  std::string text;
  for (const TemplatePiece& piece : *pieces) text += piece.text;
  EXPECT_THAT(text, HasSubstr("9223372036854775807"));
  EXPECT_THAT(text, HasSubstr("1.8446744073709552e+19"));
  EXPECT_THAT(text, Not(HasSubstr("-1")));
}

TEST(ChatTemplate, IntegersOf64Bits) {
  const auto value = [](const std::string& expression) {
    return render("{{ " + expression + " }}")->at(0).text;
  };
  EXPECT_EQ(value("9007199254740993 + 2"), "9007199254740995");
  EXPECT_EQ(value("3 * -9007199254740993"), "-27021597764222979");
  EXPECT_EQ(value("9007199254740993 % 10"), "3");
  EXPECT_EQ(value("-7 % 3"), "2");
  EXPECT_EQ(value("7 % -3"), "-2");
  EXPECT_EQ(value("-6 % 3"), "0");
  EXPECT_EQ(value("-9223372036854775807 - 1"), "-9223372036854775808");
  EXPECT_EQ(value("(1 / 0) | int"), "0");
  EXPECT_EQ(value("2.5 | int"), "2");
  EXPECT_EQ(value("'a'[0:9223372036854775807]"), "a");
  for (const std::string beyond :
       {"9223372036854775807 + 1", "4611686018427387904 * -4", "-9223372036854775807 - 2"}) {
    EXPECT_THAT(failure_of("{{ " + beyond + " }}"), HasSubstr("no integer of 64 bits")) << beyond;
  }
  EXPECT_THAT(failure_of("{{ 1 % 0 }}"), HasSubstr("Modulo by zero"));
}

TEST(ChatTemplate, SortsWhatHasNoOrder) {
  EXPECT_TRUE(
      render("{% set n = namespace(a=[]) %}{% for i in range(300) %}"
             "{% set n.a = n.a + [i, i ~ '', 'x' ~ i, i * 0.5] %}{% endfor %}"
             "{{ n.a | sort | length }}"));
}

TEST(ChatTemplate, ThreadsShareOne) {
  const ChatTemplate shared =
      ChatTemplate::parse("{% for m in messages %}{{ m.role }};{% endfor %}", "test");
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([shared] {
      for (int n = 0; n < 50; ++n) {
        EXPECT_EQ(shared.render(R"({"messages": [{"role": "a"}, {"role": "b"}]})")->at(0).text,
                  "a;b;");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace nibble
