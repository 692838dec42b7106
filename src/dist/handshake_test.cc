#include "dist/handshake.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "base/error.h"

namespace nibble::dist {
namespace {

using testing::HasSubstr;

constexpr char kKey[] = "0123456789abcdef";
const Identity kSame{"nibble 1 abc", "config and weights 12", "bf16"};
constexpr Caller kOne{.rank = 1, .size = 2, .purpose = Purpose::kWatch, .port = 4711};

Nonce nonce(char fill) {
  Nonce n;
  n.fill(fill);
  return n;
}

// The text of the Error that f throws; "" where it throws none.
std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

struct Talk {
  JoinerHandshake joiner{kKey, kSame, kOne, nonce('j')};
  HostHandshake host{kKey, kSame, 2, nonce('h')};
  // Returns what the joiner throws in the end.
  std::string run() {
    return error_of(
        [&] { joiner.on_welcome(host.on_proof(joiner.on_answer(host.on_hello(joiner.hello())))); });
  }
};

TEST(Handshake, TwoOfAKindMeet) {
  Talk talk;
  EXPECT_EQ(talk.run(), "");
  EXPECT_EQ(talk.host.refusal(), "");
  EXPECT_EQ(talk.host.caller(), kOne);
}

TEST(Handshake, BothAreToldWhatDiffers) {
  const std::pair<Identity, const char*> others[] = {
      {{"nibble 2 def", kSame.model, kSame.flags},
       "its build is another: there \"nibble 2 def\", at the rank called \"nibble 1 abc\""},
      {{kSame.build, "config and weights 13", kSame.flags}, "its model is another"},
      {{kSame.build, kSame.model, "mxfp4"}, "its set of flags is another"}};
  for (const auto& [identity, text] : others) {
    Talk talk{.joiner = {kKey, identity, kOne, nonce('j')}};
    EXPECT_THAT(talk.run(), HasSubstr(text));
    EXPECT_THAT(talk.host.refusal(), HasSubstr(text));
  }
  Talk more{.host = {kKey, kSame, 4, nonce('h')}};
  EXPECT_THAT(more.run(), HasSubstr("refused: it is one of 2 ranks, of 4 here"));
  Talk first{.joiner = {kKey, kSame, {.rank = 0, .size = 2}, nonce('j')}};
  EXPECT_THAT(first.run(), HasSubstr("rank 0 is none that may call"));
}

// Neither side says anything of what it runs to one that does not know the key.
TEST(Handshake, AnotherKeyIsFoundOutByBothSides) {
  JoinerHandshake joiner("another key, as long", kSame, kOne, nonce('j'));
  HostHandshake host(kKey, kSame, 2, nonce('h'));
  const std::string answer = host.on_hello(joiner.hello());
  EXPECT_THAT(error_of([&] { joiner.on_answer(answer); }), HasSubstr("does not know the key"));
  // A host that is none cannot bring the joiner to prove itself; a joiner that guesses is cut off.
  HostHandshake thief("another key, as long", kSame, 2, nonce('t'));
  JoinerHandshake honest(kKey, kSame, kOne, nonce('k'));
  EXPECT_THAT(error_of([&] { honest.on_answer(thief.on_hello(honest.hello())); }),
              HasSubstr("does not know the key"));
  JoinerHandshake guesser("another key, as long", kSame, kOne, nonce('j'));
  const std::string proof = guesser.on_answer(thief.on_hello(guesser.hello()));
  host.on_hello(guesser.hello());
  EXPECT_THAT(error_of([&] { host.on_proof(proof); }), HasSubstr("does not know the key"));
}

// Proofs of one talk are worth nothing in another, whose nonces differ.
TEST(Handshake, WhatWasHeardCannotBeSaidAgain) {
  Talk talk;
  const std::string answer = talk.host.on_hello(talk.joiner.hello());
  const std::string proof = talk.joiner.on_answer(answer);
  const std::string welcome = talk.host.on_proof(proof);
  HostHandshake again(kKey, kSame, 2, nonce('x'));
  again.on_hello(talk.joiner.hello());
  EXPECT_THAT(error_of([&] { again.on_proof(proof); }), HasSubstr("does not know the key"));
  JoinerHandshake other(kKey, kSame, kOne, nonce('y'));
  EXPECT_THAT(error_of([&] { other.on_answer(answer); }), HasSubstr("does not know the key"));
  EXPECT_THAT(error_of([&] { talk.joiner.on_welcome(welcome + "x"); }),
              HasSubstr("behind its end"));
}

// Every bit of every message counts: none can be changed, and none left out.
TEST(Handshake, AnyChangedBitIsRefused) {
  Talk good;
  const std::string hello = good.joiner.hello(), answer = good.host.on_hello(hello),
                    proof = good.joiner.on_answer(answer), welcome = good.host.on_proof(proof);
  const auto each_change = [](const std::string& message, const auto& meets) {
    for (size_t i = 0; i < message.size(); ++i)
      for (int bit = 0; bit < 8; ++bit) {
        std::string changed = message;
        changed[i] = static_cast<char>(changed[i] ^ 1 << bit);
        EXPECT_TRUE(meets(changed)) << "byte " << i << ", bit " << bit;
      }
    for (size_t n = 0; n < message.size(); ++n)
      EXPECT_TRUE(meets(message.substr(0, n))) << "of " << n << " bytes";
  };
  each_change(hello, [&](const std::string& changed) {
    Talk talk;
    return error_of([&] { talk.joiner.on_answer(talk.host.on_hello(changed)); }) != "";
  });
  each_change(answer, [&](const std::string& changed) {
    Talk talk;
    return error_of([&] { talk.joiner.on_answer(changed); }) != "";
  });
  each_change(proof, [&](const std::string& changed) {
    Talk talk;
    talk.host.on_hello(hello);
    return error_of([&] { talk.host.on_proof(changed); }) != "";
  });
  each_change(welcome, [&](const std::string& changed) {
    Talk talk;
    talk.joiner.on_answer(answer);
    return error_of([&] { talk.joiner.on_welcome(changed); }) != "";
  });
}

TEST(Handshake, NoncesDiffer) { EXPECT_NE(random_nonce(), random_nonce()); }

}  // namespace
}  // namespace nibble::dist
