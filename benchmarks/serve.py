"""The server under load, with and without drafts: starts a server, runs `paceline bench serve` against it, and ends it.

python benchmarks/serve.py OUT_FOLDER
"""

from __future__ import annotations

import subprocess
import sys
import time

import httpx2

URL = "http://127.0.0.1:8123"
LOAD = [
    "--tasks",
    "e2e",
    "--requests",
    "2048",
    "--concurrency",
    "1,4,16,64",
    "--temperature",
    "0",
    "--max-tokens",
    "96",
    "--salt",
]
START_S = 120.0


def main(out: str) -> int:
    if healthy():
        print(f"another server listens on {URL}: end it first", file=sys.stderr)
        return 1
    paceline = [sys.executable, "-m", "paceline"]
    server = subprocess.Popen([*paceline, "serve", "--port", URL.rpartition(":")[2]], stdout=subprocess.DEVNULL)
    try:
        until = time.monotonic() + START_S
        while not healthy():
            if server.poll() is not None or time.monotonic() > until:
                print("the server did not start", file=sys.stderr)
                return 1
            time.sleep(0.1)
        off = ["--against", '{"speculation": {"off": true}}']
        return subprocess.run([*paceline, "bench", "serve", "--url", URL, *LOAD, *off, "--out", out], check=False).returncode
    finally:
        server.terminate()
        server.wait()


def healthy() -> bool:
    try:
        return httpx2.get(f"{URL}/health").status_code == 200
    except httpx2.TransportError:
        return False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
