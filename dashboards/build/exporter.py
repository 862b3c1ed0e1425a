"""Can I trust what I see? The exporter itself."""

from common import BAD_ABOVE_ZERO, NODE, Board, Query, node_variables, or_zero, stat


def board() -> Board:
    board = Board(
        "gpu-node-exporter",
        "GPU nodes: the exporter",
        "Can I trust what the other boards show?",
        variables=node_variables(),
        start="now-3h",
    )
    board.row(
        "Now",
        [
            stat(
                "Nodes not scraped",
                "Targets of the exporter's job that Prometheus cannot scrape. Nothing is known of their GPUs.",
                Query(or_zero(f"count(up{{{NODE}}} == 0)", f"up{{{NODE}}}"), "not scraped"),
                unit="short",
                thresholds=BAD_ABOVE_ZERO,
                no_value="no target",
            ),
        ],
    )
    return board
