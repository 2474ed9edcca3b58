"""Cascade's services: ingest, simworker, aggregator, gateway, and what they run on."""

import os

# Each service has a thread of its own and our matrix products are thin: a second BLAS thread never helped, and beside a
# busy core it made one 40 times slower (2.4 ms became 92 ms). Read by numpy when it is first imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
