"""Plain decoding of this engine against `generate` of transformers: same weights, same prompts, same token counter, in turns.

    python benchmarks/plain_decoding.py [MODEL] [--threads N] [--out FILE.json]

Prints the ratio with both of its terms and the equality of the token ids; writes what it saw as JSON.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
from pathlib import Path
from statistics import median
from time import perf_counter, process_time

import torch
import transformers
from transformers import AutoModelForCausalLM

from paceline import LLM, SamplingParams, __version__
from paceline.engine.prompts import PROMPTS
from paceline.machine import processor

TURNS, TOKENS = 7, 96


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    llm = LLM(arguments.model, "none")
    theirs = AutoModelForCausalLM.from_pretrained(llm.path, dtype=torch.float32).eval()
    theirs.generation_config.eos_token_id = None
    params = SamplingParams(max_tokens=TOKENS, ignore_eos=True)
    rows = []
    for prompt in (prompts[0] for prompts in PROMPTS.values()):
        ids = torch.tensor([llm.encode(prompt)])
        options = {"attention_mask": torch.ones_like(ids), "do_sample": False, "max_new_tokens": TOKENS, "pad_token_id": 0}
        wall: dict[str, list[float]] = {"paceline": [], "transformers": []}
        cpu: dict[str, list[float]] = {"paceline": [], "transformers": []}
        texts: dict[str, list[int]] = {}
        for turn in range(TURNS + 1):
            for engine in wall:
                # the prompt is computed anew, as theirs is
                llm.engine.forget()
                began, used = perf_counter(), process_time()
                if engine == "paceline":
                    texts[engine] = llm.generate(prompt, params)[0].token_ids
                else:
                    texts[engine] = theirs.generate(ids, **options)[0, ids.shape[1] :].tolist()
                if turn:
                    wall[engine].append(perf_counter() - began)
                    cpu[engine].append(process_time() - used)
        rows.append(
            {
                "prompt": prompt,
                "prompt_tokens": ids.shape[1],
                "tokens": TOKENS,
                "paceline_s": median(wall["paceline"]),
                "transformers_s": median(wall["transformers"]),
                "paceline_processor_s": median(cpu["paceline"]),
                "transformers_processor_s": median(cpu["transformers"]),
                "same_tokens": texts["paceline"] == texts["transformers"],
            }
        )
    ours, others = sum(row["paceline_s"] for row in rows), sum(row["transformers_s"] for row in rows)
    total = TOKENS * len(rows)
    same = all(row["same_tokens"] for row in rows)
    print(
        f"paceline {total / ours:.1f} tokens/s, transformers {total / others:.1f} tokens/s, ratio {others / ours:.2f},"
        f" {'same' if same else 'DIFFERENT'} tokens, {arguments.threads} threads"
    )
    if arguments.out:
        report = {
            "what": "plain greedy decoding, batch 1, medians of turns",
            "argv": sys.argv[1:],
            "model": llm.target.name,
            "machine": f"{processor()}, {torch.get_num_threads()} threads",
            "commit": subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip(),
            "versions": {
                "paceline": __version__, "torch": torch.__version__, "transformers": transformers.__version__,
                "python": platform.python_version(),
            },
            "ratio": others / ours,
            "rows": rows,
        }  # fmt: skip
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        arguments.out.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
