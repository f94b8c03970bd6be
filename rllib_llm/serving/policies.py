"""Policies as models of the API: prompts, sampling, replies."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from ray.rllib.core import DEFAULT_AGENT_ID, DEFAULT_MODULE_ID

from rllib_llm.connectors.module_to_env import strip_thinking
from rllib_llm.connectors.requested_prompts import ServedPolicy, shown_reply
from rllib_llm.data.model_calls import ModelReply, ModelRequest
from rllib_llm.engines.base import Generation, SamplingParams
from rllib_llm.env_runner import build
from rllib_llm.env_runner.agents import agents_of
from rllib_llm.openai_api.requests import ParsedCall, Sampling
from rllib_llm.policy_mapping import mapped_policies
from rllib_llm.seeding import stable_seed
from rllib_llm.transcripts.token_texts import token_texts

if TYPE_CHECKING:
    from rllib_llm.env_runner.llm_env_runner import LLMEnvRunner
    from rllib_llm.env_runner.slots import ActionSource
    from rllib_llm.serving.engine_loop import EngineLoop

_UNFINISHED = "\ufffd"  # the decoder's replacement for an incomplete character
_THINKING = "<think>"


@dataclasses.dataclass(frozen=True)
class PolicyModel:
    """A language-model policy that replies to whole conversations.

    Attributes:
        policy: Its renderer, limits and system message.
        source: Its engine and settings.
        loop: The thread that steps the engine.
    """

    policy: ServedPolicy
    source: ActionSource
    loop: EngineLoop

    @property
    def sampling(self) -> Sampling:
        """Sampling settings of the training run."""
        return Sampling(self.policy.temperature, self.policy.top_p)

    def prompt(self, call: ParsedCall) -> list[int]:
        """Return the ids of a request's prompt.

        Raises:
            RLlibLLMError: If the request cannot be rendered or does not fit.
        """
        request = _request(call)
        renderer = self.policy.renderer
        if renderer is not None and renderer.history == "latest" and call.is_chat:
            # As in training: the policy reads the newest observation alone.
            replies = [i for i, m in enumerate(call.messages) if m.role == "assistant"]
            newest = call.messages[replies[-1] + 1 :] if replies else call.messages
            system = call.messages[:1] if call.messages[0].role == "system" else ()
            shown = (*system, *(m for m in newest if m.role != "system"))
            request = dataclasses.replace(request, messages=shown)
        return self.policy.prompt(request)

    def generate(
        self,
        call: ParsedCall,
        prompt: list[int],
        sample: int,
        progress: Callable[[list[int]], None] | None = None,
    ) -> Future[Generation]:
        """Sample one reply; see :meth:`EngineLoop.generate`."""
        source = self.source
        room = source.max_context_tokens - len(prompt)
        settings = dict(source.sampling)
        for name in ("temperature", "top_p"):
            if getattr(call, name) is not None:
                settings[name] = getattr(call, name)
        settings["stop_strings"] = (*settings.get("stop_strings", ()), *call.stop)
        seed = secrets.randbits(31)
        if call.seed is not None:
            seed = stable_seed(call.seed, sample)
        params = SamplingParams(
            max_new_tokens=min(call.max_tokens or source.max_new_tokens, room),
            seed=seed,
            **settings,
        )
        return self.loop.generate(
            source.engine,
            prompt,
            params,
            open_settings=source.open_settings,
            progress=progress,
        )

    def reply(
        self, call: ParsedCall, prompt: list[int], done: Generation
    ) -> ModelReply:
        """Return a sampled turn as a reply."""
        renderer = self.policy.renderer
        assert renderer is not None, "The policy is no language model."
        ids = done.token_ids.tolist()
        raw_text = renderer.decode(ids)
        text = strip_thinking(raw_text)
        texts = tuple(token_texts(renderer.tokenizer, ids)) if call.logprobs else ()
        return ModelReply(
            text=shown_reply(_request(call), raw_text, text, done.finish),
            raw_text=raw_text,
            finish=done.finish,
            prompt_tokens=len(prompt),
            token_ids=done.token_ids,
            logps=done.logps,
            token_texts=texts,
        )

    def text_so_far(self, call: ParsedCall, ids: list[int]) -> str:
        """Return the beginning of a reply that later tokens cannot change.

        Args:
            call: The request.
            ids: The tokens so far.
        """
        renderer = self.policy.renderer
        assert renderer is not None, "The policy is no language model."
        text = renderer.decode(ids).rstrip(_UNFINISHED)
        stops = list(call.stop)
        if call.is_chat:
            text = strip_thinking(text)
            stops.append(_THINKING)
        ends = [text.find(stop) for stop in stops if stop in text]
        text = text[: min(ends)] if ends else text
        # What may be the beginning of a stop string is kept until the next tokens.
        held = max(
            (
                n
                for stop in stops
                for n in range(1, len(stop))
                if text.endswith(stop[:n])
            ),
            default=0,
        )
        return text[: len(text) - held]


def _request(call: ParsedCall) -> ModelRequest:
    return ModelRequest(
        messages=call.messages, tools=call.tools, prompt=call.prompt, stop=call.stop
    )


def policy_models(runner: LLMEnvRunner, loop: EngineLoop) -> dict[str, PolicyModel]:
    """Return the models of a run, by ModuleID: its policies that write text.

    Args:
        runner: An EnvRunner with the policies.
        loop: The thread that steps its engines.
    """
    config = runner.config
    sources = build.action_sources(
        config, runner.engines, runner.actors, runner.action_scorers, None
    )
    systems = _system_messages(config)
    models = {}
    for module_id in runner.engines:
        policy_config = config.get_config_for_module(module_id)
        source = sources[module_id]
        source.sampling = policy_config.sampling_params(explore=True)
        policy = ServedPolicy(
            renderer=policy_config.chat_renderer(),
            max_context_tokens=policy_config.resolved_context_tokens(),
            temperature=policy_config.temperature,
            top_p=policy_config.top_p,
            system=systems.get(module_id),
        )
        models[module_id] = PolicyModel(policy, source, loop)
    return models


def _system_messages(config: Any) -> dict[str, str]:
    """Return each policy's system message of training, where it had only one."""
    systems: dict[str, str] = config.system_prompts()
    env = config.make_text_env()
    agents = agents_of(env)
    env.close()
    if agents is None:
        policies: Mapping[str, str] = {DEFAULT_AGENT_ID: DEFAULT_MODULE_ID}
    else:
        policies = mapped_policies(config, agents)
    roles = config.role_prompts()
    for module_id in set(policies.values()) - set(systems):
        given = {roles.get(a) for a, policy in policies.items() if policy == module_id}
        (only,) = given if len(given) == 1 else (None,)
        if only:
            systems[module_id] = only
    return systems
