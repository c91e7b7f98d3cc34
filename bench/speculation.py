"""What speculation wins where an answer copies, and what it costs where it does not.

    python bench/speculation.py [--rounds 3] [--draft-layers N] [--json]

One server, two functions of the same model: one speculates, one does not. Both answer the same
prompts in turn, greedily, one request at a time; the figure is the ratio of their decode speeds
(tokens after the first, over the time for them), the median over prompts and rounds. The copying
prompts ask to repeat, extract or edit a given text; the others ask for something new, and sample
with a temperature so that a small model does not fall into repeating itself.

With `--draft-layers` the function that speculates has a draft model too: the first N layers of the
model itself, which nobody has trained to be one. That shows what a poor draft model costs, not what
a good one wins.
"""

import argparse
import json
import statistics
import tempfile
from pathlib import Path

from servers import MODEL, deploy, first_layers, glowplug

from glowplug.client import Client

TEXT = (
    "The ferry leaves the old harbour at seven in the morning and at four in the afternoon. "
    "Tickets cost nine euros for adults and four euros for children under twelve. "
    "Bicycles travel free of charge, dogs need a muzzle, and luggage is limited to two pieces. "
    "The crossing takes fifty minutes in calm weather and up to ninety minutes in a storm."
)
CODE = (
    "def area(width, height):\n    return width * height\n\n"
    "def perimeter(width, height):\n    return 2 * (width + height)\n\n"
    "def diagonal(width, height):\n    return (width ** 2 + height ** 2) ** 0.5\n"
)
COPYING = (
    f"Repeat this text word for word:\n{TEXT}",
    f"Copy the following text exactly, without changing anything:\n{TEXT}",
    f"Correct the spelling of this text and give me the whole text back:\n{TEXT}",
    f"Write this code again and change nothing:\n{CODE}",
    f"Extract every sentence about money from this text, word for word:\n{TEXT}",
    f"Quote this text in full, then say that it is a quote:\n{TEXT}",
)
NEW = (
    "Write a short story about a lighthouse keeper.",
    "Describe a market in a town that does not exist.",
    "Invent a conversation between a fox and a crow.",
    "Explain to a child how rain comes about.",
    "Write a letter from a traveller to her brother.",
    "Tell me about an unusual day at a railway station.",
)
TOKENS = 96


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--draft-layers", type=int, metavar="N")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as data, glowplug(Path(data)) as client:
        spec: dict[str, object] = {"model": MODEL, "min_replicas": 1}
        plain = deploy(client, spec | {"name": "off", "speculation": "off"})
        if options.draft_layers:
            snapshot = Path(data, "cache", str(plain["snapshot"]))
            draft = first_layers(Path(data, "draft"), options.draft_layers, snapshot=snapshot)
            spec["draft_model"] = str(draft)
        deploy(client, spec | {"name": "auto"})
        copying = ratios(client, COPYING, rounds=options.rounds, temperature=0)
        new = ratios(client, NEW, rounds=options.rounds, temperature=0.9)
    result = {
        "copy_heavy_speedup": round(statistics.median(r for r, _ in copying), 3),
        "no_reuse_speedup": round(statistics.median(r for r, _ in new), 3),
        "accepted_per_step": round(statistics.median(a for _, a in copying), 2),
    }
    print(
        f"copying {result['copy_heavy_speedup']:.2f} times as fast "
        f"({result['accepted_per_step']:.1f} drafts accepted a step), "
        f"new text {result['no_reuse_speedup']:.2f} times"
    )
    if options.json:
        print(json.dumps(result))


def ratios(
    client: Client, prompts: tuple[str, ...], *, rounds: int, temperature: float
) -> list[tuple[float, float]]:
    """For each prompt and round: decode speed with over without, and drafts accepted a step."""
    found = []
    for counted in [False] + [True] * rounds:
        for number, prompt in enumerate(prompts):
            speed, per_step, text = {}, {}, {}
            for name in ("auto", "off"):
                speed[name], per_step[name], text[name] = decode(
                    client, name, prompt, temperature=temperature, seed=number
                )
            if text["auto"] != text["off"]:
                raise SystemExit(f"speculation changed the answer to {prompt[:40]!r}")
            if counted:
                found.append((speed["auto"] / speed["off"], per_step["auto"] - 1))
    return found


def decode(
    client: Client, name: str, prompt: str, *, temperature: float, seed: int
) -> tuple[float, float, str]:
    """Tokens a second after the first, tokens a step, and the text."""
    pieces = 0
    with client.chat(
        name,
        [{"role": "user", "content": prompt}],
        max_tokens=TOKENS,
        temperature=temperature,
        seed=seed,
        ignore_eos=True,
    ) as answer:
        for _ in answer:
            pieces += 1  # the engine sends one a step, whenever it has text to show
    if answer.tokens_per_s is None or answer.completion_tokens is None:
        raise SystemExit("an answer was too short to be measured")
    return answer.tokens_per_s, answer.completion_tokens / pieces, answer.text


if __name__ == "__main__":
    main()
