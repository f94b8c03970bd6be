"""One HTML file per run: its transcripts, curves and configuration.

Nothing here imports torch or ray.
"""

from rllib_llm.viewer.contents import MOST_EPISODES, read_contents
from rllib_llm.viewer.page import PAGE_FILE, build_page, write_page

__all__ = [
    "MOST_EPISODES",
    "PAGE_FILE",
    "build_page",
    "read_contents",
    "write_page",
]
