"""What runs, in which order: Prefect flows, deployments, and the `starpo` command."""
