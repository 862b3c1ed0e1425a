#!/usr/bin/env python3
"""prose.py HARPER: runs the grammar rules of Harper over the documents and the comments of the product.

A finding fails the run unless tests/tools/prose.psv has it, with the reason why the text stays. A line of that list that no
finding needs fails the run too. Words of the field are in tests/tools/prose-words.txt, one per line. `UPDATE=1` rewrites the
word list with every unknown word: read the difference, each new line is either a term or a typo.
"""

import collections
import concurrent.futures
import json
import os
import subprocess
import sys

WORDS, KEPT = "tests/tools/prose-words.txt", "tests/tools/prose.psv"

# The kinds of rules about grammar. The others are about style, and know nothing of units, paths and acronyms.
KINDS = {"Agreement", "Grammar", "Miscellaneous", "Punctuation", "Redundancy", "Repetition", "Spelling", "Usage", "Typo"}

# Rules of those kinds that are left out.
LEFT_OUT = {
    "AnA": "reads acronyms as words: an H100, an SM, an Xid",
    "DisjointPrefixes": "both `non-volatile` and `nonvolatile` are in use",
    "ExpandStandardInputAndOutput": "stdout is the field's word",
    "ItsContraction": "misreads the possessive before a noun",
    "MassNouns": "findings, listings and trainings are counted here",
    "OkToOkay": "`ok` is a value of this program",
    "OneOfTheSingular": "misreads `one of the two`",
    "Overall": "means sums over all GPUs",
    "MissingPreposition": "misreads noun phrases such as `the owner series`",
    "MultipleSequentialPronouns": "misreads `its SVG`",
    "NeverMind": "misreads NVM",
    "PronounInflectionBe": "misreads `of which two are`",
    "SplitWords": "splits terms of the field that the dictionary has",
    "ThatThan": "misreads `more X that` as a comparison",
    "TheLastDays": "means the last element, not the last few",
    "ThenThan": "misreads `then` after a comparison that has its `than`",
    "Without": "misreads `with` before `--out`",
    "UseEllipsisCharacter": "three dots stand in commands",
}

# Files whose words are not ours or record the words of programs.
NOT_OURS = ("docs/evidence/2", "docs/METRICS.md", "dashboards/preview/node_modules", "tests/data/")


def files():
    """The documents and the product's Rust sources, as git has them."""
    listed = subprocess.run(["git", "ls-files", "*.md", "src/*.rs", "crates/*.rs"], check=True, capture_output=True, text=True)
    for path in listed.stdout.split():
        is_test = path.endswith("tests.rs") or "fixture" in path or "/tests/" in path
        if not path.startswith(NOT_OURS) and not is_test:
            yield path


def batches(paths):
    """Groups of paths with different file names: Harper reports only the name of a file."""
    groups = []
    for path in paths:
        name = os.path.basename(path)
        group = next((g for g in groups if name not in g), None)
        if group is None:
            groups.append(group := {})
        group[name] = path
    # Small groups use every core.
    for group in groups:
        items = list(group.items())
        for at in range(0, len(items), 64):
            yield dict(items[at : at + 64])


def lint(harper, group, words):
    """The findings in a group of files: path, line, rule, kind, text, message."""
    command = [sys.executable, "-m", "harper", "lint", "--quiet", "--format", "json", "--user-dict-path", words, *group.values()]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": harper})
    if not done.stdout.lstrip().startswith("["):
        sys.exit(f"error: Harper gives no report on {', '.join(group.values())}: {done.stderr.strip()}")
    for file in json.loads(done.stdout):
        for found in file["lints"]:
            text = " ".join(found["matched_text"].split())
            yield group[file["file"]], found["line"], found["rule"], found["kind"], text, found["message"]


def main():
    os.chdir(subprocess.run(["git", "rev-parse", "--show-toplevel"], check=True, capture_output=True, text=True).stdout.strip())
    update = "UPDATE" in os.environ
    with open(KEPT) as file:
        kept = collections.Counter(tuple(line.rstrip("\n").split("|")[:3]) for line in file if not line.startswith("#"))
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        results = pool.map(lambda group: list(lint(sys.argv[1], group, WORDS)), batches(files()))
        findings = [found for batch in results for found in batch]
    with open(WORDS) as file:
        known = set(file.read().split())
    unknown, problems = set(), 0
    for path, line, rule, kind, text, message in findings:
        # Harper reports words of another dialect, such as `neighbour`, although its dictionary has them.
        if kind not in KINDS or rule in LEFT_OUT or (rule == "SpellCheck" and text in known):
            continue
        if (path, rule, text) in kept:
            kept[(path, rule, text)] = 0
        elif rule == "SpellCheck" and update:
            unknown.add(text)
        else:
            problems += 1
            print(f"{path}:{line}: {rule}: {text}: {message}")
    for (path, rule, text), needed in kept.items():
        if needed:
            problems += 1
            print(f"{KEPT}: no finding needs the line {path}|{rule}|{text}: delete it")
    if update:
        with open(WORDS, "w") as file:
            file.writelines(f"{word}\n" for word in sorted(known | unknown))
    print(f"prose: {problems} findings in {len(list(files()))} files")
    return problems > 0


if __name__ == "__main__":
    sys.exit(main())
