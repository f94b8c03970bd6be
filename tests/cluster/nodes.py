"""Main program: a Ray cluster of several nodes on one machine.

Each line of the input is a JSON list, ``["add", {arguments}]`` or ``["remove", node]``,
and is answered by a line; the first line of the output is the cluster's address.
"""

import json
import sys

from ray.cluster_utils import Cluster


def answer(text):
    """Write one line."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main():
    """Start the head, and add and remove nodes until the input ends."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    nodes = []
    answer(cluster.address)
    for line in sys.stdin:
        order, given = json.loads(line)
        if order == "add":
            nodes.append(cluster.add_node(**given))
        else:
            cluster.remove_node(nodes[given], allow_graceful=False)
        answer("done")
    cluster.shutdown()


if __name__ == "__main__":
    main()
