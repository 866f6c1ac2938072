"""Merges the metrics of several workers into one text, and labels each sample with its worker.

Called by `admin_app` with the workers' answers. It works on lines, not on parsed samples: a label is inserted before
those in the braces, so names, values and escaped labels stay as they were written. It does not add up anything: that is
Prometheus's task, and a sum would hide the one worker that has a problem.
"""

from __future__ import annotations

from collections.abc import Mapping


def merge_metrics(expositions: Mapping[int, str]) -> str:
    """One HELP and TYPE for each family, then the samples of all workers, in the order of their numbers.

    The final `# EOF` of OpenMetrics is left to the caller.
    """
    heads: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for worker, text in sorted(expositions.items()):
        family = ""
        for line in text.split("\n"):  # splitlines would also cut inside a label value, at U+2028
            if line.startswith(("# HELP ", "# TYPE ")):
                kind, family = line[2:6], line[7:].partition(" ")[0]
                head = heads.setdefault(family, [])
                if not any(known.startswith(f"# {kind}") for known in head):
                    head.append(line)
            elif line and not line.startswith("#"):
                samples.setdefault(family, []).append(labelled(line, worker))
    lines = [line for family, head in heads.items() for line in (*head, *samples.get(family, []))]
    return "".join(f"{line}\n" for line in lines)


def labelled(sample: str, worker: int) -> str:
    """The sample `name{a="b"} 1` with the label `worker` before the others."""
    name_end = min(at for at in (sample.find("{"), sample.find(" ")) if at >= 0)
    name, rest = sample[:name_end], sample[name_end:]
    label = f'worker="{worker}"'
    if rest.startswith("{"):
        return f"{name}{{{label}{'' if rest[1:].lstrip().startswith('}') else ','}{rest[1:]}"
    return f"{name}{{{label}}}{rest}"
