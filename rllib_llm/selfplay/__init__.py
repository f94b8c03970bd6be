"""Self-play without Ray: leagues of frozen opponents, ratings, exploitability."""

from rllib_llm.selfplay.exploitability import Exploitability, measure_exploitability
from rllib_llm.selfplay.league import League, Member
from rllib_llm.selfplay.matchmaker import Matchmaker
from rllib_llm.selfplay.matrix import SwapMatrix
from rllib_llm.selfplay.payoffs import GameResult, Payoffs
from rllib_llm.selfplay.ratings import Ratings

__all__ = [
    "Exploitability",
    "GameResult",
    "League",
    "Matchmaker",
    "Member",
    "Payoffs",
    "Ratings",
    "SwapMatrix",
    "measure_exploitability",
]
