"""All benchmarks, one after another: `python -m bench`."""

from bench import environments, pipeline, sampler, update


def main() -> None:
    """Runs them."""
    for benchmark in (sampler, update, pipeline, environments):
        benchmark.main()


if __name__ == "__main__":
    main()
