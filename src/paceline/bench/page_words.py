"""Texts of the benchmark page: the meaning of its numbers, and how to read its plots."""

MEANING, PICTURES = "What the figures mean", "How to read the pictures"

FIGURES = f"""\
## {MEANING}

- **tokens/s** is of whole answers, prompt included.
- **decoding** leaves out the time that plain decoding of the same engine takes to its first token. So the time that a draft
  model takes to read the prompt counts. Answers are short: read it with care.
- **tau** is the mean number of tokens per decoding step of the target.
- Rates are tokens per second, greedy unless a run says otherwise, one request at a time where no batch is named.
- Every ratio was measured in one run, and stands beside both of its terms. A figure is the median of the repeats (where their
  texts have other lengths, the repeat in the middle). Modes took turns; in older runs batches did not.
- Newer records hold every measurement, and say how much of a task was in loops.

**The other engines** (peers):

- They get the same token ids and compute every prompt. They run in processes of their own, which are stopped while others are
  measured. Records that were made otherwise say so, or their memory includes that of peers.
- 8 bits of OpenVINO are what `optimum-cli --weight-format int8` makes. In older runs they are Q8_0 read from GGUF, which is
  slower. Its 4 bits are still read from GGUF (Q4_0).
- OpenVINO keeps equal constants once, also the zeros that a grown model is padded with. So it reads about a seventh less of a
  grown model. On a real model it would not have this advantage.
- llama.cpp has the draft model in newer runs, in a loop of ours that drafts as its server did by default until 2026. Before
  commit 2681eeb this loop went on after the end of a text that ended among drafted tokens, and was timed for it. So those rows
  are too slow: on the small model by a third on e2e, and to less than a third of its speed on sql.
- On the Xeon llama.cpp was built without AMX, since it crashes with it (ggml-org/llama.cpp#20824). With AMX one row at the
  beginning of a text took 8.0 ms there and without it 13 to 16, so its plain decoding would be nearer to ours.
- We request huge pages for our weights with `madvise`; the peers do not.

**The model** is the small one that comes with the package:

- It was trained on the domains that most of the prompts come from (E2E, WikiSQL, school problems, stories, code), and its
  draft model was distilled from it. So drafts come true more often here than they may elsewhere.
- A **grown** model is the same function, padded to the size of a larger one. Its cost is that of the size; its text and its
  acceptance are those of the small model. No speed was measured on a public pair of models.
- Greedy, it falls into loops, above all in `copy`, `story` and `code`, and drafts follow a loop to its end. Read `e2e` and
  `sql` for what drafts gain on other text.
"""

READING = f"""\
## {PICTURES}

- **Speed-up.** 1 is our own plain decoding, and the peers are measured against it too. One panel is of whole answers, the other
  of decoding alone. Where prompts are long and answers short, whole answers gain much less. Thin lines go from the least to the
  most of the repeats, where a record has their times.
- **Acceptance.** How deep drafts come true. Solid: of all steps, the share that accepted a token so deep. Dotted: of the steps
  that drafted so deep, the share that accepted a token there, where at least ten did.
- **Verify.** What a forward of more rows costs, over one row of the same engine. Below the dotted line further rows are cheaper
  than the first, so drafts can pay. To compare engines, take the milliseconds in the legend: a slow engine may have the lower
  line.
- **Step.** A bar is one step, which emits tau tokens on average. So the mode with the longer bar can be the faster one.
- **Latencies of a server.** A curve shows the share of requests (or of tokens) that took at most so long. Further left is faster.
"""
