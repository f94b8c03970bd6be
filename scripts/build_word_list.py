"""Build the word list of the word games from Debian's package wamerican-small.

    apt-get download wamerican-small
    dpkg-deb -x wamerican-small_*.deb wamerican
    python scripts/build_word_list.py wamerican/usr/share/dict/american-english-small

The package contains SCOWL's words up to size 35. The script keeps those of 4 to 8
lower-case letters from a to z, without apostrophes and accents.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
from pathlib import Path

OUT = Path(__file__).parent.parent / "rllib_llm/envs/data/words.json"
LENGTHS = range(4, 9)


def main() -> None:
    """Write the data of the word list given on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("list", type=Path, help="american-english-small")
    parser.add_argument("--out", type=Path, default=OUT)
    args = parser.parse_args()
    data = build(args.list.read_text(encoding="utf-8").splitlines())
    args.out.write_text(json.dumps(data, indent=0) + "\n", encoding="utf-8")


def build(lines: list[str]) -> dict[str, list[str]]:
    """Return the words by length, a line for each first letter."""
    plain = sorted({line for line in lines if re.fullmatch("[a-z]+", line)})
    return {
        str(length): [
            " ".join(group)
            for _, group in itertools.groupby(
                (word for word in plain if len(word) == length), key=lambda w: w[0]
            )
        ]
        for length in LENGTHS
    }


if __name__ == "__main__":
    main()
