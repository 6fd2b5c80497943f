"""Writes sample_profiles.txt: for each operator of the sweep the first profile with which it runs.

Some operators end the process when they are given what they do not expect: a child tries them, and a new one goes on behind
the place where the last one ended. Run it after a change of samples.py or own_samples.py:

    python python/tests/sweep/find_profiles.py             # all of them
    python python/tests/sweep/find_profiles.py --missing   # those that the file lacks
"""

import os
import pathlib
import sys
import warnings

import operators
import samples
import torch
from own_samples import OWN

TABLE = pathlib.Path(__file__).with_name("sample_profiles.txt")


def is_finite(values):
    tensors = [v for v in torch.utils._pytree.tree_leaves(values) if isinstance(v, torch.Tensor)]
    return all(bool(t.isfinite().all()) for t in tensors if t.is_floating_point() and not t.is_sparse)


def search(schema, skip, say):
    """The first profile whose results are finite, else the first with which the operator runs at all; and why not others."""
    name, best, why = samples.full_name(schema), "", []
    for profile in samples.PROFILES:
        if (name, profile) in skip:
            continue
        say(f"try {name} {profile}")
        try:
            sample = samples.sample_of(schema, profile, OWN)
            results = [operators.run_plain(schema, sample, seed, "cpu") for seed in (1, 2, 3, 4)]
        except Exception as error:
            why.append(f"{type(error).__name__}: {error}".splitlines()[0])
            continue
        if is_finite(results):
            return profile, []
        best = best or profile
    return best, why


def search_all(schemas, skip, report):
    for schema in schemas:
        profile, why = search(schema, skip, lambda text: report.write(text + "\n") and report.flush())
        report.write(f"found {samples.full_name(schema)} {profile or '-'} {'; '.join(why[:2])}\n")
        report.flush()


def main():
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    kept = dict(line.split() for line in TABLE.read_text().splitlines()) if "--missing" in sys.argv else {}
    schemas = [schema for schema in operators.all_schemas() if samples.full_name(schema) not in kept]
    found, skip = {}, set()
    while schemas:
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            with os.fdopen(write, "w") as report:
                search_all(schemas, skip, report)
            os._exit(0)
        os.close(write)
        tried = None
        with os.fdopen(read) as report:
            for line in report:
                kind, name, profile, *why = line.rstrip("\n").split(" ", 3)
                if kind == "found":
                    found[name] = (profile, why)
                else:
                    tried = (name, profile)
        if os.waitpid(child, 0)[1] != 0:
            skip.add(tried)
        schemas = [schema for schema in schemas if samples.full_name(schema) not in found]
    without = {name: why for name, (profile, why) in found.items() if profile == "-"}
    for name, why in without.items():
        print(name, *why)
    table = {**kept, **{name: profile for name, (profile, _) in found.items() if profile != "-"}}
    print(len(table), "with a profile,", len(without), "without; the process was ended by", sorted(skip))
    TABLE.write_text("".join(f"{name} {profile}\n" for name, profile in sorted(table.items())))


if __name__ == "__main__":
    main()
