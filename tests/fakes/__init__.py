"""Stand-ins for what no test machine has: a vLLM engine without weights, a GPU's profiler, CUPTI."""
