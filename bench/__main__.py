"""All benchmarks, one after another: `python -m bench`."""

from bench import asking, environments, grpo_step, pipeline, sampler, update


def main() -> None:
    """Runs them."""
    for benchmark in (sampler, grpo_step, update, pipeline, environments, asking):
        benchmark.main()


if __name__ == "__main__":
    main()
