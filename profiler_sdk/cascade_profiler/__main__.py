"""`python -m cascade_profiler` is `cascade-trace`."""

from cascade_profiler.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
