"""Batch columns beyond RLlib's :class:`ray.rllib.core.columns.Columns`.

RLlib's own columns keep their meaning: ``loss_mask`` (True = trained),
``action_logp`` (old log-probabilities), ``action_dist_inputs`` (their log-probability
and entropy pair), ``advantages`` and ``value_targets``; all are ``[B, T]`` here.
"""

INPUT_IDS = "input_ids"  # token ids [B, T]
ATTENTION_MASK = "attention_mask"  # True where a token is real [B, T]
TURN_IDS = "turn_ids"  # index of the turn that sampled the token, else -1 [B, T]
TOKEN_REWARDS = "token_rewards"  # the turn's reward on its last action token [B, T]
EPISODE_INDEX = "episode_index"  # which agent's episode a row belongs to [B]
JOINT_INDEX = "joint_index"  # which multi-agent episode, over all policies [B]
AGENT_INDEX = "agent_index"  # number of the agent in its episode [B]
TURN_STEPS = "turn_steps"  # environment step of the token's turn, else -1 [B, T]
BOOTSTRAP_COLUMN = "bootstrap_column"  # column whose value bootstraps, else -1 [B]
SPEAKS_NEXT = "speaks_next"  # whether that value is of a prompt still to answer [B]
LOSS_WEIGHTS = "loss_weights"  # per-token weight of the aggregation mode [B, T]
REF_LOGP = "ref_logp"  # log-probability under the frozen reference [B, T]
BEHAVIOUR_LOGP = "behaviour_logp"  # what the sampler recorded [B, T]
MESSAGE_STARTS = "message_starts"  # 1 at the first token of a message [B, T]
SEQUENTIAL_FACTOR = "sequential_factor"  # ratios of policies updated before [B, T]
VALUES = "old_values"  # the critic's values before the update [B, T]
TOKEN_ENTROPY = "token_entropy"  # entropy where the forward pass computed it [B, T]

TURN = "turn"  # extra_model_outputs key of the episode's Turn records
EPISODE_DATA = "llm"  # custom_data key of the episode's EpisodeData
REWARD_LEDGER = "rewards"  # custom_data key of a multi-agent episode's rewards
