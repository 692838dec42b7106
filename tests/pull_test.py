"""`nibble pull` against a hub of the test's own, which huggingface_hub takes for the real one: both fill a cache from
it, and the caches are the same."""

import asyncio
import contextlib
import hashlib
import os
import random
import ssl
import subprocess
import tempfile
import threading
import unittest
from pathlib import Path

import huggingface_hub
from aiohttp import web
from serving import MODEL

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPO = "some-org/some-model"
LARGE = 3_000_000


def git_sha1(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class Hub:
    """Small files are answered at once, large ones by a redirect to a second server, as the hub does it."""

    def __init__(self, tls=None):
        self.tls = tls
        self.files = {p.name: p.read_bytes() for p in MODEL.iterdir() if p.is_file()}
        self.files["weights with spaces+.bin"] = random.Random(1).randbytes(LARGE)
        self.files["empty.txt"] = self.files["as empty.txt"] = b""
        self.files["copy.json"] = self.files["original/copy.json"] = self.files["config.json"]
        self.files["z copy of weights.bin"] = self.files["weights with spaces+.bin"]
        self.files["original/params.json"] = b"{}"
        self.large = {n for n, data in self.files.items() if len(data) > 100_000}
        self.token = ""
        self.cut_after = None   # bytes after which a connection is dropped, in every second answer
        self.spoil = set()      # files whose bytes come wrong
        self.busy = 0           # answers of 503 to give first
        self.ranges = True
        self.asked = []         # (server, method, path, authorization, range)
        self.num_large = 0

    def etag(self, name):
        data = self.files[name]
        return hashlib.sha256(data).hexdigest() if name in self.large else git_sha1(data)

    def note(self, server, request):
        self.asked.append((server, request.method, request.path, request.headers.get("Authorization"), request.headers.get("Range")))

    async def info(self, request):
        self.note("hub", request)
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            return web.json_response({"error": "no"}, status=401)
        if self.busy:
            self.busy -= 1
            return web.Response(status=503)
        if request.match_info["revision"] not in ("main", "refs/pr/1", COMMIT):
            return web.json_response({"error": "Revision Not Found"}, status=404, headers={"X-Error-Code": "RevisionNotFound"})
        siblings = []
        for name, data in self.files.items():
            item = {"rfilename": name, "size": len(data), "blobId": git_sha1(data)}
            if name in self.large:
                item["lfs"] = {"sha256": self.etag(name), "size": len(data), "pointerSize": 134}
            siblings.append(item)
        return web.json_response({"id": REPO, "modelId": REPO, "sha": COMMIT, "siblings": siblings, "private": False, "tags": [],
                                  "downloads": 0, "likes": 0})

    async def tree(self, request):  # what huggingface_hub asks besides
        items = []
        for name, data in self.files.items():
            item = {"type": "file", "path": name, "size": len(data), "oid": git_sha1(data)}
            if name in self.large:
                item["lfs"] = {"oid": self.etag(name), "size": len(data), "pointerSize": 134}
            items.append(item)
        return web.json_response(items)

    async def resolve(self, request):
        self.note("hub", request)
        name = request.match_info["name"]
        if name not in self.files:
            return web.json_response({"error": "Entry not found"}, status=404, headers={"X-Error-Code": "EntryNotFound"})
        headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{self.etag(name)}"', "Accept-Ranges": "bytes"}
        if name not in self.large:
            return await self.send(request, name, headers)
        headers |= {"X-Linked-Etag": f'"{self.etag(name)}"', "X-Linked-Size": str(len(self.files[name])),
                    "Location": f"{self.cdn_url}/blob/{request.rel_url.raw_path.split('/resolve/')[1].split('/', 1)[1]}?sig=a%2Fb"}
        return web.Response(status=302, headers=headers)

    async def blob(self, request):
        self.note("cdn", request)
        self.num_large += 1
        return await self.send(request, request.match_info["name"], {"ETag": '"else"'})

    async def send(self, request, name, headers):
        data = self.files[name]
        if name in self.spoil:
            data = data[:-1] + bytes([data[-1] ^ 1])
        status, first = 200, 0
        if (wanted := request.headers.get("Range")) and self.ranges:
            first = int(wanted.removeprefix("bytes=").split("-")[0])
            status, headers = 206, headers | {"Content-Range": f"bytes {first}-{len(data) - 1}/{len(data)}"}
        part = data[first:]
        response = web.StreamResponse(status=status, headers=headers | {"Content-Length": str(len(part))})
        await response.prepare(request)
        if request.method == "HEAD":
            return response
        if self.cut_after and name in self.large and self.num_large % 2 == 1:
            await response.write(part[:self.cut_after])
            await asyncio.sleep(0.05)
            if request.transport:
                request.transport.close()
            return response
        with contextlib.suppress(ConnectionError):  # a client that has seen enough
            await response.write(part)
        return response

    def __enter__(self):
        self.loop = asyncio.new_event_loop()
        started = threading.Event()
        self.thread = threading.Thread(target=lambda: (self.loop.run_until_complete(self.start()), started.set(), self.loop.run_forever()))
        self.thread.start()
        started.wait()
        return self

    async def start(self):
        hub, cdn = web.Application(), web.Application()
        hub.add_routes([web.get("/api/models/some-org/some-model/revision/{revision}", self.info),
                        web.get("/api/models/some-org/some-model/tree/{revision}", self.tree),
                        web.get("/some-org/some-model/resolve/{revision}/{name:.*}", self.resolve)])
        cdn.add_routes([web.get("/blob/{name:.*}", self.blob)])
        self.runners = []
        for app, name in ((cdn, "cdn_url"), (hub, "url")):
            runner = web.AppRunner(app)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=self.tls)
            await site.start()
            scheme, port = "https" if self.tls else "http", site._server.sockets[0].getsockname()[1]
            setattr(self, name, f"{scheme}://localhost:{port}")
            self.runners.append(runner)

    def __exit__(self, *_):
        async def stop():
            for runner in self.runners:
                await runner.cleanup()
        asyncio.run_coroutine_threadsafe(stop(), self.loop).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


class PullTest(unittest.TestCase):
    def setUp(self):
        self.home = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.hub = self.enterContext(Hub())

    def pull(self, *flags, fails=False, hub=None, home=None, **environment):
        environment = {"PATH": os.environ["PATH"], "HF_HOME": str(home or self.home), "HF_ENDPOINT": (hub or self.hub).url, **environment}
        done = subprocess.run([os.environ["NIBBLE"], "pull", REPO, *flags], env=environment, capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode != 0, fails, done.stderr)
        return done.stderr if fails else done.stdout.strip()

    def tree(self, home):
        """Every file of the cache: the hash of its bytes, or where it leads."""
        folder = home / "hub" / "models--some-org--some-model"
        return {str(p.relative_to(folder)): os.readlink(p) if p.is_symlink() else hashlib.sha256(p.read_bytes()).hexdigest()
                for part in ("blobs", "refs", "snapshots") for p in (folder / part).rglob("*") if not p.is_dir()}

    def test_the_cache_is_as_huggingface_hub_makes_it(self):
        with tempfile.TemporaryDirectory() as other:
            theirs = huggingface_hub.snapshot_download(REPO, endpoint=self.hub.url, cache_dir=Path(other) / "hub", token=False)
            ours = self.pull("--all")
            self.assertEqual(Path(ours).name, Path(theirs).name)
            self.assertEqual(self.tree(self.home), self.tree(Path(other)))
        found = huggingface_hub.snapshot_download(REPO, cache_dir=self.home / "hub", local_files_only=True)
        self.assertEqual(found, ours)

    def test_what_was_pulled_is_found(self):
        environment = {"HF_HOME": str(self.home), "PATH": os.environ["PATH"]}
        ask = [os.environ["NIBBLE"], "inspect", REPO]
        before = subprocess.run(ask, env=environment, capture_output=True, text=True)
        self.assertIn(f"`nibble pull {REPO}`", before.stderr)
        serve = subprocess.run([os.environ["NIBBLE"], "serve", REPO], env=environment, capture_output=True, text=True)
        self.assertIn(f"`nibble pull {REPO}`", serve.stderr)
        snapshot = Path(self.pull())
        self.assertFalse((snapshot / "original").exists())  # folders hold the same weights again
        self.assertEqual(subprocess.run(ask, env=environment, capture_output=True, text=True).returncode, 0)

    def test_goes_on_after_drops(self):
        self.hub.cut_after = 1_000_000
        snapshot = self.pull("--jobs", "1")
        self.assertEqual((Path(snapshot) / "weights with spaces+.bin").read_bytes(), self.hub.files["weights with spaces+.bin"])
        self.assertTrue(any(asked[4] == "bytes=1000000-" for asked in self.hub.asked), self.hub.asked)

    def test_goes_on_after_a_stop(self):
        blobs = self.home / "hub" / "models--some-org--some-model" / "blobs"
        blobs.mkdir(parents=True)
        name = "weights with spaces+.bin"
        for there, ranges in ((1_234_567, True), (1_234_567, False), (LARGE, True), (LARGE + 5, True)):
            for path in blobs.iterdir():
                path.unlink()
            (blobs / (self.hub.etag(name) + ".incomplete")).write_bytes((self.hub.files[name] + b"12345")[:there])
            self.hub.ranges, self.hub.asked = ranges, []
            self.assertEqual((Path(self.pull()) / name).read_bytes(), self.hub.files[name])
            ranges = [asked[4] for asked in self.hub.asked if asked[0] == "cdn" and "weights" in asked[2]]
            self.assertEqual(ranges, {1_234_567: ["bytes=1234567-"], LARGE: [], LARGE + 5: [None]}[there])
        self.hub.asked = []
        self.pull()  # all is there
        self.assertEqual([asked[2] for asked in self.hub.asked], ["/api/models/some-org/some-model/revision/main"])

    def test_wrong_bytes_get_no_name(self):
        for name in ("config.json", "weights with spaces+.bin"):
            self.hub.spoil = {name}
            self.assertIn(f"{name}: what came has not the hash", self.pull(fails=True))
            folder = self.home / "hub" / "models--some-org--some-model"
            self.assertFalse((folder / "blobs" / self.hub.etag(name)).exists())
            self.assertFalse((folder / "refs" / "main").exists())  # so nobody takes half a model for one
        blob = folder / "blobs" / (self.hub.etag(name) + ".incomplete")
        blob.write_bytes(b"wrong from the start")
        self.hub.spoil = set()
        self.pull()

    def test_tokens_stay_with_the_hub(self):
        self.hub.token = "hf_secret"
        self.assertIn("set HF_TOKEN", self.pull(fails=True))
        self.assertIn("the token is not enough", self.pull(fails=True, HF_TOKEN="wrong"))
        self.pull(HF_TOKEN="hf_secret\n")
        for server, _, _, authorization, _ in self.hub.asked[2:]:
            self.assertEqual(authorization, "Bearer hf_secret" if server == "hub" else None)
        (self.home / "token").write_text("hf_secret")
        self.pull()
        self.pull(HF_HUB_CACHE=str(self.home / "elsewhere" / "cache"))

    def test_revisions(self):
        self.pull("--revision", "refs/pr/1")
        self.assertEqual((self.home / "hub" / "models--some-org--some-model" / "refs" / "refs" / "pr" / "1").read_text(), COMMIT)
        self.assertIn("no such repo, revision", self.pull("--revision", "none", fails=True))
        self.assertIn("not a branch", self.pull("--revision", "../x", fails=True))

    def test_busy_and_gone_servers(self):
        self.hub.busy = 1
        self.pull()
        self.assertIn("no URL", self.pull(fails=True, HF_ENDPOINT="ftp://x"))

    def test_names_that_lead_out(self):
        self.hub.files["../../../../evil"] = b"x"
        self.assertIn("no name of a file", self.pull("--all", fails=True))
        self.assertFalse((self.home / "evil").exists())

    def test_https(self):
        folder = self.home / "tls"
        folder.mkdir()
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext",
                        "subjectAltName=DNS:localhost", "-keyout", folder / "key", "-out", folder / "cert"], check=True, capture_output=True)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "cert", folder / "key")
        with Hub(context) as hub:
            self.pull(hub=hub, SSL_CERT_FILE=str(folder / "cert"))
            with tempfile.TemporaryDirectory() as other:
                self.assertIn("certificate verify failed", self.pull(hub=hub, home=other, fails=True))
                wrong_name = hub.url.replace("localhost", "127.0.0.1")
                self.assertIn("certificate verify failed", self.pull(hub=hub, home=other, fails=True, HF_ENDPOINT=wrong_name,
                                                                     SSL_CERT_FILE=str(folder / "cert")))


if __name__ == "__main__":
    unittest.main()
