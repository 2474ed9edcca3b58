"""`make bench`: figures of one run on this machine, each beside what it is to be compared with. No test depends on it."""

from __future__ import annotations

import argparse

from tests.bench import cluster, imports, pipeline, profiler, sass, scale, timeline

BENCHES = {
    "import": imports.run,
    "scale": scale.run,
    "pipeline": pipeline.run,
    "profiler": profiler.run,
    "sass": sass.run,
    "page": timeline.run,
    "cluster": cluster.run,
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", choices=[*BENCHES, []], default=[])
    arguments = parser.parse_args()
    for name in arguments.names or BENCHES:
        print(f"== {name}")
        BENCHES[name]()


if __name__ == "__main__":
    main()
