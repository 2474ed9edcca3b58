"""What a GPU kernel is and how much work it does. A leaf: imports schemas only; ingest and simworker both use it."""
