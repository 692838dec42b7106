#!/usr/bin/env python3
"""Hours of mixed load on one server: nothing leaks, and golden answers stay what they were.

Starts `nibble serve` over the shipped model with a KV cache too small for its load, and lets CLIENTS
clients ask at once: streams, answers in one piece, several answers to one prompt, long prompts,
prompts that share their beginning, grammars, tools, all four APIs with one of three keys
(soak_apis.py), clients that cancel half-way, hang up before the answer, stop reading, or send byte by
byte, and requests that must be refused. Golden questions are asked among them, greedy and with seeds;
under --exact each answer must be the one that the idle server gave before. One stream after another
only reads: the gaps between its tokens do not grow. At the end 800 streams at once, all gone at once;
then memory, of the grammars' processes too, and descriptors are as they were, and the server ends in
order.

  bench/soak.py [--minutes 2] [--clients 95] [--running 55] [--threads 0] [--json FILE]

$NIBBLE is the program. On a GPU, whose memory is then watched, too; the name of the result says when and on what:
  bench/soak.py --device cuda --memory BYTES --minutes 30 --results bench/results

Of batch jobs, which have short prompts and long answers and fill the cache up to 99.7%:
  bench/soak.py --running 64 --memory 436M --prompt-words 60 --answer-tokens 6000
"""
import argparse
import collections
import datetime
import functools
import http.client
import json
import os
import random
import re
import select
import shlex
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

import soak_apis

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PROGRAM = os.path.abspath(os.environ.get("NIBBLE", os.path.join(ROOT, "build/cpu/nibble")))
MODEL = "models/nibble-tiny-gpt-oss"
CONTEXT = 8192
PATIENCE = 3600  # s; a busy machine is no failure
KEYS = ("k1", "k2", "k3")
WORDS = ("water school number story city paper river letter garden music summer winter window"
         " doctor farmer mountain bridge market engine circle").split()


def words(rng, n):
    return " ".join(rng.choice(WORDS) for _ in range(n))


def chat(text, **fields):
    return {"model": MODEL, "messages": [{"role": "user", "content": text}], **fields}


GOLDEN = [chat(q, temperature=0, max_tokens=40) for q in
          ("What is the capital of France?", "What is 17 plus 25?", "Say hello.",
           "Name a colour.", words(random.Random(1), 300))]
GOLDEN += [chat(q, temperature=1, seed=s, max_tokens=40, ignore_eos=True) for s, q in
           enumerate(("Tell me of the sea.", "What is 3 times 9?", words(random.Random(2), 150)))]


def head(length, path="/v1/chat/completions"):
    """Of a request that is written by hand."""
    return (f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {random.choice(KEYS)}\r\n"
            f"Content-Length: {length}\r\n\r\n").encode()


def children(pid):
    found = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children") as file:
                found += map(int, file.read().split())
    except OSError:  # it has ended
        pass
    return found


def descendants(pid):
    return [at for child in children(pid) for at in (child, *descendants(child))]


def private_mib(pid):
    try:
        with open(f"/proc/{pid}/smaps_rollup") as rollup:
            return sum(map(int, re.findall(r"Private_\w+:\s+(\d+)", rollup.read()))) / 1024
    except OSError:
        return 0


def nvidia_smi(*query):
    """Rows of values; none where there is no GPU, or no answer."""
    try:
        out = subprocess.run(["nvidia-smi", *query, "--format=csv,noheader,nounits"], timeout=20,
                             capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [[value.strip() for value in row.split(",")] for row in out.splitlines()]


def gpu_mib(pid):
    """Of the process on GPUs; where the driver names no processes, what is used of the first."""
    apps = {row[0]: row[-1] for row in nvidia_smi("--query-compute-apps=pid,used_gpu_memory")}
    if apps.get(str(pid), "").isdigit():
        return int(apps[str(pid)])
    used = nvidia_smi("--query-gpu=memory.used")
    return int(used[0][0]) if used else 0


def device_name(device):
    gpu = nvidia_smi("--query-gpu=name") if device != "cpu" else []
    if gpu:
        return gpu[0][0]
    with open("/proc/cpuinfo") as info:
        model = re.search(r"model name\s*: (.*)", info.read())
    return f"{len(os.sched_getaffinity(0))} cores of {model.group(1) if model else os.uname().machine}"


def version():
    return subprocess.run([PROGRAM, "--version"], capture_output=True, text=True).stdout.strip()


def percentile(values, share):
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


class Server:
    """The program under test."""

    def __init__(self, args):
        self.lines = []
        self.process = subprocess.Popen(
            [PROGRAM, "serve", MODEL, "--port", "0", "--device", args.device, "--exact", "--api-key", *KEYS, "--chat-date", "2026-01-15",
             "--max-num-seqs", str(args.running), "--max-num-batched-tokens", "256",
             "--max-model-len", str(CONTEXT), "--max-queued-requests", str(args.queue),
             "--memory-budget", args.memory, "--threads", str(args.threads),
             "--shutdown-timeout", "60", *shlex.split(args.serve_args)],
            cwd=ROOT, stderr=subprocess.PIPE, text=True)
        self.ready = threading.Event()
        self.port = None
        threading.Thread(target=self.read_log, daemon=True).start()
        if not self.ready.wait(120) or not any("ready:" in line for line in self.lines):
            sys.exit("the server did not start:\n" + "\n".join(self.lines))

    def read_log(self):
        for line in self.process.stderr:
            self.lines.append(line.rstrip())
            at = re.search(r"listening at http://[^:]+:(\d+)", line)
            if at:
                self.port = int(at.group(1))
            if "ready:" in line:
                self.ready.set()
        self.ready.set()

    def memory_mib(self):
        """Resident, of the server; and of the processes of its grammars, what each has for itself."""
        with open(f"/proc/{self.process.pid}/status") as status:
            own = int(re.search(r"VmRSS:\s+(\d+)", status.read()).group(1)) / 1024
        return own, sum(private_mib(pid) for pid in descendants(self.process.pid))

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def descriptors_of_clients(self):
        """Without those of grammars that are kept, each in a process with a socket to it."""
        return self.descriptors() - len(descendants(self.process.pid))

    def threads(self):
        return len(os.listdir(f"/proc/{self.process.pid}/task"))

    def ask(self, body, path="/v1/chat/completions", timeout=PATIENCE, key=None):
        """Status, headers and body of one request."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            data = body if isinstance(body, (bytes, str)) else json.dumps(body)
            connection.request("POST", path, data, {
                "Content-Type": "application/json",
                "Authorization": f"Bearer {random.choice(KEYS) if key is None else key}"})
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()


class Soak:
    def __init__(self, args):
        self.args = args
        self.server = Server(args)
        self.counts = collections.Counter()
        self.failures = []
        self.lock = threading.Lock()
        self.stop = threading.Event()
        self.samples = []  # (seconds, MiB, descriptors, threads, MiB of the grammars' processes)
        self.gpu_samples = []  # (seconds, MiB on the GPU)
        self.gaps = []  # (seconds, s between two tokens of a stream that only reads)
        self.model = MODEL
        self.chat = chat
        self.goldens = []
        self.activity = []  # the server's log lines of what it did, until the clients stopped

    def count(self, what, n=1):
        with self.lock:
            self.counts[what] += n

    def fail(self, text):
        with self.lock:
            self.counts["failures"] += 1
            if len(self.failures) < 20:
                self.failures.append(text[:400])
                print("FAILURE", text[:400], flush=True)

    def answer(self, body, path="/v1/chat/completions"):
        """The parsed answer; None where the server was full, after the time it asked for."""
        status, headers, data = self.server.ask(body, path)
        if status == 429:
            self.count("rejected")
            after = headers.get("Retry-After")
            if after is None:
                self.fail("429 without Retry-After")
            self.stop.wait(min(5.0, float(after or 1)))
            return None
        if status != 200:
            self.fail(f"status {status}: {data[:300]!r} for {json.dumps(body)[:200]}")
            return None
        return json.loads(data)

    # What clients do. Each is one request.

    def whole(self, rng):
        n = rng.randint(100, self.args.answer_tokens)
        reply = self.answer(chat(words(rng, rng.randint(30, self.args.prompt_words)), max_tokens=n, ignore_eos=True))
        if reply and reply["usage"]["completion_tokens"] != n:
            self.fail(f"{reply['usage']} where {n} tokens were due")
        self.count("tokens", reply["usage"]["completion_tokens"] if reply else 0)

    def several(self, rng):
        reply = self.answer(chat(words(rng, 60), max_tokens=60, ignore_eos=True, n=3,
                                 seed=rng.randint(0, 1 << 30)))
        if reply and len(reply["choices"]) != 3:
            self.fail(f"{len(reply['choices'])} choices where 3 were due")
        self.count("tokens", 180 if reply else 0)

    def shared(self, rng):
        system = words(random.Random(rng.randint(0, 3)), 400)
        reply = self.answer(chat(system + " " + words(rng, 10), max_tokens=30, ignore_eos=True))
        if reply:
            details = reply["usage"].get("prompt_tokens_details", {})
            self.count("cached_tokens", details.get("cached_tokens", 0))
            self.count("tokens", 30)

    def long_prompt(self, rng):
        self.answer({"model": MODEL, "prompt": words(rng, 800), "max_tokens": 10},
                    "/v1/completions")

    def scored(self, rng):
        reply = self.answer({"model": MODEL, "prompt": words(rng, 100), "max_tokens": 1,
                             "echo": True, "logprobs": 1}, "/v1/completions")
        if reply and not reply["choices"][0]["logprobs"]["token_logprobs"]:
            self.fail("echo without log-probabilities")

    def open_stream(self, body):
        """The socket of a stream after its head; None where the server is full."""
        data = json.dumps({**body, "stream": True}).encode()
        s = socket.create_connection(("127.0.0.1", self.server.port), timeout=PATIENCE)
        s.sendall(head(len(data)) + data)
        answer = s.recv(4096)
        if b" 200 " not in answer[:20]:
            if b" 429 " in answer[:20]:
                self.count("rejected")
                self.stop.wait(1)
            else:
                self.fail(f"stream: {answer[:300]!r}")
            s.close()
            return None
        return s

    def stream(self, rng):
        n = rng.randint(20, self.args.answer_tokens)
        s = self.open_stream(chat(words(rng, rng.randint(30, self.args.prompt_words)), max_tokens=n, ignore_eos=True))
        if s is None:
            return
        tail = b""
        with s:
            while b"data: [DONE]" not in tail:
                piece = s.recv(65536)
                if not piece:
                    return self.fail(f"a stream ended without [DONE]: {tail[-200:]!r}")
                tail = (tail + piece)[-200:]
        self.count("tokens", n)

    def cancel(self, rng):
        s = self.open_stream(chat(words(rng, 30), max_tokens=1500, ignore_eos=True))
        if s is None:
            return
        for _ in range(rng.randint(0, 5)):
            s.recv(1000)
        if rng.random() < 0.5:  # a reset instead of an orderly end
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        s.close()

    def stop_reading(self, rng):
        s = self.open_stream(chat(words(rng, 30), max_tokens=500, ignore_eos=True))
        if s is not None:
            self.stop.wait(rng.uniform(1, 5))
            s.close()

    def hang_up(self, rng):
        data = json.dumps(chat(words(rng, 300), max_tokens=400, ignore_eos=True)).encode()
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=60) as s:
            s.sendall(head(len(data)) + data)
            self.stop.wait(rng.uniform(0, 0.5))

    def dribble(self, rng):
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=60) as s:
            for byte in b"GET /health HTTP/1.1\r\nHost: loc"[:rng.randint(1, 31)]:
                s.sendall(bytes([byte]))
                time.sleep(0.02)

    def bad(self, rng):
        for body, path in rng.sample(BAD, 3):
            status, _, data = self.server.ask(body, path)
            if status not in (400, 404):
                self.fail(f"status {status}: {data[:200]!r} for {str(body)[:100]}")

    def client(self, seed):
        rng = random.Random(seed)
        acts = [(self.whole, 30), (self.stream, 25), (self.shared, 15), (self.several, 5),
                (self.long_prompt, 5), (self.scored, 3), (self.cancel, 8), (self.stop_reading, 2),
                (self.hang_up, 3), (self.dribble, 2), (self.bad, 2)]
        acts += [(functools.partial(act, self), weight) for act, weight in soak_apis.ACTS]
        while not self.stop.is_set():
            act = rng.choices([a for a, _ in acts], [w for _, w in acts])[0]
            name = getattr(act, "func", act).__name__
            try:
                act(rng)
                self.count(name)
            except OSError as e:
                if not self.stop.is_set():
                    self.fail(f"{name}: {type(e).__name__} {e}")
            except Exception as e:  # a client that dies quietly would make a lighter load
                self.fail(f"{name}: {type(e).__name__} {e}")

    def ask_golden(self, i):
        status, _, data = self.server.ask(GOLDEN[i])
        if status == 429:
            return None
        choice = json.loads(data)["choices"][0] if status == 200 else data
        return (choice["message"], choice["finish_reason"]) if status == 200 else choice

    def check_goldens(self, first):
        i = first
        while not self.stop.is_set():
            try:
                reply = self.ask_golden(i)
            except OSError as e:
                return self.fail(f"golden {i}: {e}")
            if reply is not None:
                self.count("golden")
                if reply != self.goldens[i]:
                    self.fail(f"golden {i}: {reply} was {self.goldens[i]}")
                i = (i + 1) % len(GOLDEN)
            self.stop.wait(1)

    def watch(self, start):
        while not self.stop.wait(2) and self.server.process.poll() is None:
            own, grammars = self.server.memory_mib()
            self.samples.append((round(time.monotonic() - start, 1), own, self.server.descriptors(),
                                 self.server.threads(), grammars))
            if self.args.device != "cpu":
                self.gpu_samples.append((self.samples[-1][0], gpu_mib(self.server.process.pid)))

    def watch_stream(self, start):
        """A client who does nothing wrong: how long it waits for each next token of its stream."""
        while not self.stop.is_set():
            s = self.open_stream(chat("Tell me of the sea.", max_tokens=300, ignore_eos=True))
            if s is None:
                continue
            with s:
                last, tail = None, b""
                while b"data: [DONE]" not in tail and not self.stop.is_set():
                    piece = s.recv(65536)
                    if not piece:
                        return self.fail("the stream that only reads has ended")
                    now = time.monotonic()
                    if last is not None:
                        self.gaps.append((now - start, now - last))
                    last, tail = now, (tail + piece)[-200:]

    def storm(self):
        """Far more streams at once than there are places, and then all clients gone at once."""
        data = json.dumps({**chat("storm", max_tokens=1500, ignore_eos=True), "stream": True}).encode()
        request = head(len(data)) + data
        clients = []
        for _ in range(800):
            clients.append(socket.create_connection(("127.0.0.1", self.server.port), timeout=60))
            clients[-1].sendall(request)
        statuses = collections.Counter()
        end = time.monotonic() + 10
        left = clients
        while left and time.monotonic() < end:
            ready, _, _ = select.select(left, [], [], 1)
            for s in ready:
                statuses[s.recv(4096)[9:12].decode()] += 1
            left = [s for s in left if s not in ready]
        for s in clients:
            s.close()
        self.counts.update({f"storm_{status}": n for status, n in statuses.items()})
        if not statuses["429"] or set(statuses) - {"200", "429", "503"}:
            self.fail(f"800 streams at once: {dict(statuses)}")

    def run(self):
        self.goldens = [self.ask_golden(i) for i in range(len(GOLDEN))]
        idle = self.server.descriptors_of_clients()
        start = time.monotonic()
        threads = [threading.Thread(target=self.client, args=(c,)) for c in range(self.args.clients)]
        threads += [threading.Thread(target=f, args=(start,)) for f in (self.watch, self.watch_stream)]
        threads += [threading.Thread(target=self.check_goldens, args=(2 * i,)) for i in range(4)]
        for t in threads:
            t.start()
        end = start + 60 * self.args.minutes
        while time.monotonic() < end and self.server.process.poll() is None:
            time.sleep(1)
        self.activity = [line for line in self.server.lines if "preemptions" in line]
        self.stop.set()
        for t in threads:
            t.join(PATIENCE)
        self.check_end(idle)
        return self.report(time.monotonic() - start)

    def check_end(self, idle_descriptors):
        """All quiet again: as before, and it ends as asked."""
        if self.server.process.poll() is not None:
            return self.fail("the server is gone:\n" + "\n".join(self.server.lines[-20:]))
        self.storm()
        for _ in range(300):
            if self.server.descriptors_of_clients() <= idle_descriptors:
                break
            time.sleep(0.2)
        else:
            self.fail(f"{self.server.descriptors_of_clients()} descriptors; {idle_descriptors} before")
        for i, golden in enumerate(self.goldens):
            if self.ask_golden(i) != golden:
                self.fail(f"golden {i} differs after the load")
        self.check_memory("memory", self.samples)
        self.check_memory("the GPU's memory", self.gpu_samples)
        # Descriptors come and go with the clients: in the last third no more than before but a tenth.
        sizes = [s[2] for s in self.samples]
        if len(sizes) > 6 and max(sizes[-len(sizes) // 3:]) > max(sizes[:-len(sizes) // 3]) * 1.1 + 8:
            self.fail(f"descriptors grew: {sizes}")
        thirds = self.gap_thirds()
        if thirds and thirds[2]["p95"] > 3 * thirds[0]["p95"] + 0.2:
            self.fail(f"the gaps of a stream grew: {thirds}")
        if not self.counts["golden"]:
            self.fail("no golden question was answered under load")
        if any(" error " in line for line in self.server.lines):
            self.fail("the log has errors: " + next(l for l in self.server.lines if " error " in l))
        self.server.process.send_signal(signal.SIGTERM)
        try:
            if self.server.process.wait(90) != 0:
                self.fail(f"exit status {self.server.process.returncode}")
        except subprocess.TimeoutExpired:
            self.fail("it did not end when asked")
            self.server.process.kill()

    def check_memory(self, what, samples):
        """All pages are touched and every kind of request was served in the first third; from there
        on no growth but the allocator's noise: 8 MiB, or 3%."""
        third = [s[1] for s in samples if s[0] >= 60 * self.args.minutes / 3]
        if third and max(third[len(third) // 2:]) > max(third[:max(1, len(third) // 8)]) * 1.03 + 8:
            self.fail(f"{what} grew: {third[0]:.0f} MiB to {third[-1]:.0f} MiB")

    def gap_thirds(self):
        """Of the gaps in the stream that only reads, in s, for each third of the time."""
        if len(self.gaps) < 300:
            return []
        end = self.gaps[-1][0] + 1e-9
        parts = [[gap for t, gap in self.gaps if int(3 * t / end) == i] for i in range(3)]
        return [{"p50": round(percentile(p, 0.5), 4), "p95": round(percentile(p, 0.95), 4),
                 "most": round(max(p), 3), "tokens": len(p)} for p in parts if p]

    def report(self, seconds):
        def course(values):
            return {"first": round(values[0], 1), "after_a_third": round(values[len(values) // 3], 1),
                    "last": round(values[-1], 1), "most": round(max(values), 1)}
        # "... running 55, waiting 40, KV cache 99.8%, prefix-cache hits 31.0%, preemptions 812"
        figures = [[float(x) for x in re.findall(r"-?\d+\.?\d*", line.split("info", 1)[-1])]
                   for line in self.activity]
        columns = ("prompt_tokens_per_s", "new_tokens_per_s", "running", "waiting", "kv_percent",
                   "prefix_hit_percent", "preemptions")
        full = figures[len(figures) // 4:]  # by then the cache has filled
        load = {name: round(sum(f[i] for f in full) / len(full), 1)
                for i, name in enumerate(columns) if full}
        if figures:
            load["preemptions"] = figures[-1][6]
        gpu = {"gpu_mib": course([s[1] for s in self.gpu_samples])} if self.gpu_samples else {}
        return {"command": " ".join(sys.argv), "program": version(), "date": str(datetime.date.today()),
                "device": device_name(self.args.device), "seconds": round(seconds, 1),
                "clients": self.args.clients, "max_num_seqs": self.args.running,
                "memory_budget": self.args.memory, "load": load,
                "counts": dict(sorted(self.counts.items())), "failures": self.failures,
                "rss_mib": course([s[1] for s in self.samples]),
                "grammars_mib": course([s[4] for s in self.samples]), **gpu,
                "gaps_s": self.gap_thirds(),
                "descriptors_most": max(s[2] for s in self.samples),
                "threads": sorted({s[3] for s in self.samples}),
                "activity_last": self.activity[-3:]}


BAD = [("{", "/v1/chat/completions"), (b"\xff\xfe", "/v1/chat/completions"),
       ("[" * 5000, "/v1/completions"), (chat("x", max_tokens=-1), "/v1/chat/completions"),
       (chat("x", temperature="hot"), "/v1/chat/completions"),
       (chat("x", top_p=7), "/v1/chat/completions"),
       ({**chat("x"), "model": "none"}, "/v1/chat/completions"),
       ({"model": MODEL, "messages": []}, "/v1/chat/completions"),
       ({"model": MODEL, "prompt": [10 ** 9], "max_tokens": 1}, "/v1/completions"),
       ({"model": MODEL, "prompt": "word " * 3 * CONTEXT, "max_tokens": 1}, "/v1/completions"),
       (chat("x", n=10 ** 9), "/v1/chat/completions"), ("{}", "/v1/nothing")]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--minutes", type=float, default=2)
    parser.add_argument("--clients", type=int, default=95)
    parser.add_argument("--running", type=int, default=55)
    parser.add_argument("--queue", type=int, default=45)
    parser.add_argument("--memory", default="366M",
                        help="of weights, scratch, KV cache and 256M for requests")
    parser.add_argument("--prompt-words", type=int, default=1000, help="of a usual request, at most")
    parser.add_argument("--answer-tokens", type=int, default=700, help="the same of its answer")
    parser.add_argument("--threads", type=int, default=0, help="of the server; 0: all")
    parser.add_argument("--device", default="cpu", help="of the server")
    parser.add_argument("--serve-args", default="", help="further flags of the server, as a shell reads them")
    parser.add_argument("--json", help="write the report here")
    parser.add_argument("--results", help="write it in this folder, by date and device")
    soak = Soak(parser.parse_args())
    result = soak.run()
    text = json.dumps(result, indent=1)
    print(text)
    files = [soak.args.json] if soak.args.json else []
    if soak.args.results:
        gpu = result["device"].split()[1].lower() if soak.args.device != "cpu" else "cpu"  # "NVIDIA H200"
        os.makedirs(soak.args.results, exist_ok=True)
        files.append(os.path.join(soak.args.results, f"{result['date']}-{gpu}-soak.json"))
    for file in files:
        with open(file, "w") as f:
            f.write(text + "\n")
    sys.exit(1 if result["counts"].get("failures") else 0)


if __name__ == "__main__":
    main()
