// The command line: nibble <command> ... Each command is one file, src/cli/<command>.cc, that adds
// itself to the CLI11 app. Errors thrown anywhere below end in run(): printed to stderr as
// "nibble: <what>", exit status 1 (usage: 2).
#pragma once

namespace CLI {
class App;
}

namespace nibble::cli {

// Parses argv, runs the command, returns the exit status.
int run(int argc, char** argv);

// Sends base/log to stderr with time and level. NIBBLE_LOG=debug|info|warn|error|off.
void install_log_sink();

// One per command; called by run() in the order of the help page.
void add_serve(CLI::App& app);
void add_bench(CLI::App& app);
void add_chat(CLI::App& app);
void add_doctor(CLI::App& app);
void add_plan(CLI::App& app);
void add_inspect(CLI::App& app);
void add_score(CLI::App& app);
void add_eval(CLI::App& app);
void add_tokenize(CLI::App& app);
void add_pull(CLI::App& app);
void add_bench_serve(CLI::App& bench);  // below bench

}  // namespace nibble::cli
