// Grammars are compiled, and masks made, in processes of their own: a schema of 9 KB can take
// xgrammar minutes and gigabytes, a pattern of 20 characters seconds a token, and nothing but the
// end of a process stops that for certain and gives all its memory back.
//
// One loop runs in all of them, and a fork is a copy of what its process knows. The first, forked
// while the program is small, knows the vocabulary. Its copies compile one set of grammars each:
// such a process is an entry of the server's cache. Copies of these follow the texts of one
// request each, and share the compiled grammars' memory.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "text/grammar/grammar.h"

namespace nibble {

std::string to_bytes(const GrammarVocabulary& vocabulary);
std::string to_bytes(const std::vector<WantedGrammar>& wanted);

struct FirstGrammarProcess {
  int socket;
  pid_t pid;  // the caller's child
};

// Forks the first of them: it answers what grammar_messages.h lists on its socket, until that is
// closed. Each may allocate `max_growth` bytes more than it was copied with. To be called
// while few threads run, and before anything large is loaded. Throws Error(kUnsupported) where the
// system gives no process.
FirstGrammarProcess start_grammar_process(int64_t max_growth);

}  // namespace nibble
