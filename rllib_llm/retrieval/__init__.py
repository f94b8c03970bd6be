"""Full-text search in documents: one index per corpus and process.

>>> from rllib_llm.retrieval import BM25
>>> BM25(["The cat sat.", "The dog ran."]).search("a dog", results=1)
['The dog ran.']
"""

from rllib_llm.retrieval.bm25 import BM25, words
from rllib_llm.retrieval.shared import ENGINES, SearchIndex, shared_index
from rllib_llm.retrieval.tantivy_index import TantivyIndex

__all__ = [
    "BM25",
    "ENGINES",
    "SearchIndex",
    "TantivyIndex",
    "shared_index",
    "words",
]
