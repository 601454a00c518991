"""tau²-bench as durable runs, under kills: `make exam`."""
