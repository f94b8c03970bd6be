"""Imports of every shipped environment, which register it."""

from rllib_llm.envs import (  # noqa: F401
    blackjack,
    cliff_walking,
    code_functions,
    countdown,
    dataset,
    frozen_lake,
    guess_number,
    hangman,
    household,
    long_document,
    mastermind,
    probes,
    python_tool,
    search_facts,
    search_qa,
    service_desk,
    sokoban,
    sql_agent,
    taxi,
    webshop,
    wordle,
)
from rllib_llm.envs.adapters import (  # noqa: F401  (import libraries on demand)
    babyai,
    open_spiel_text,
    pettingzoo_classic,
    reasoning_gym_tasks,
    scienceworld_tasks,
    text_arena,
    textworld_games,
)
from rllib_llm.envs.games import (  # noqa: F401
    dilemma,
    negotiation,
    path_checker,
    referential,
    scout_porter,
    secret_sum,
    solo,
    team,
)
