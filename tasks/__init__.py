"""One stage a file: its settings, its pure function, its Prefect task; and the shard contract."""
