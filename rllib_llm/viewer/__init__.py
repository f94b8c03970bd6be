"""HTML page of a run with its transcripts, curves and configuration.

Importing it loads neither torch nor ray.
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
