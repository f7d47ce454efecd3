"""Run every client against one server: `make test-clients`. CLIENTS is the folder that holds their environments."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from serve.harness import running  # noqa: E402

KEY = "clients-key-0123"


def main(clients: Path) -> int:
    with running("--batch", "8", "--api-key", KEY) as served:
        variables = {**os.environ, "PACELINE_URL": served.url, "PACELINE_KEY": KEY, "NODE_PATH": str(clients / "node_modules")}
        variables |= {"OPENAI_API_KEY": KEY, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "DO_NOT_TRACK": "1"}
        python = clients / "venv" / "bin" / "python"
        commands = {
            # pytest files in parent folders need packages that the clients' environment lacks
            "python": [
                *(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "asyncio_mode=auto"),
                *("-c", os.devnull, "--rootdir", HERE, "--confcutdir", HERE, HERE),
            ],
            "Node": ["node", clients / "openai_node.mjs"],
            "schemathesis": [
                *(clients / "venv" / "bin" / "schemathesis", "--config-file", HERE / "schemathesis.toml"),
                *("run", f"{served.url}/openapi.json"),
                *("--header", f"Authorization: Bearer {KEY}", "--max-examples", "60", "--seed", "7", "--checks", "all"),
                # JSON Schema cannot express rules between fields: the server refuses such requests in a sentence
                *("--exclude-checks", "positive_data_acceptance"),
                *("--request-timeout", "60", "--no-color"),
            ],
        }
        (clients / "openai_node.mjs").write_text((HERE / "openai_node.mjs").read_text())
        failed = [
            name
            for name, command in commands.items()
            if subprocess.run([str(part) for part in command], env=variables, check=False).returncode
        ]
    print(f"clients that failed: {', '.join(failed) or 'none'}")
    return len(failed)


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
