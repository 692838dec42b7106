# needs:
"""Prometheus and promtool, of the distribution: the metrics are clean, scraped, and answer queries."""

import json
import subprocess
import time
import urllib.parse
import urllib.request

from common import MODEL, ROOT, URL, holds, run, shell, snippet

FOLDER = ROOT / "build/clients/prometheus"


def programs():
    """The distribution's package, unpacked, not installed."""
    if not (FOLDER / "usr/bin/prometheus").exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        subprocess.run("apt-get -qq download prometheus && dpkg -x prometheus_*.deb .", shell=True, cwd=FOLDER, check=True)
    return FOLDER / "usr/bin"


def ask_once():
    body = json.dumps({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5}).encode()
    urllib.request.urlopen(urllib.request.Request(URL + "/v1/chat/completions", body, {"Content-Type": "application/json"})).read()


def check_promtool():
    ask_once()
    out = shell(f"curl -sS {URL}/metrics | {programs()}/promtool check metrics || true")
    assert all("vllm" in line for line in out.splitlines()), out


def check_scrapes():
    ask_once()
    with urllib.request.urlopen(URL + "/metrics") as answer:
        holds(answer.read().decode(), "nibble_generation_tokens_total")
    config = FOLDER / "prometheus.yml"
    config.write_text(snippet("Prometheus"))
    server = subprocess.Popen([programs() / "prometheus", f"--config.file={config}", f"--storage.tsdb.path={FOLDER}/data",
                               "--web.listen-address=127.0.0.1:19099", "--log.level=error"])
    try:
        for query in ("up == 1", "nibble_generation_tokens_total > 0", 'vllm:generation_tokens_total > 0',
                      "histogram_quantile(0.5, nibble_time_to_first_token_seconds_bucket)"):
            for _ in range(60):
                try:
                    with urllib.request.urlopen("http://127.0.0.1:19099/api/v1/query?query=" + urllib.parse.quote(query)) as answer:
                        if json.load(answer)["data"]["result"]:
                            break
                except OSError:
                    pass
                time.sleep(0.5)
            else:
                raise AssertionError(f"no answer to {query}")
    finally:
        server.terminate()
        server.wait(timeout=30)


run(globals())
