"""Batch columns beyond RLlib's :class:`ray.rllib.core.columns.Columns`.

RLlib's columns keep their meaning: ``loss_mask`` (True = trained),
``action_logp`` (old log-probabilities), ``action_dist_inputs`` (their log-probability
and entropy pair), ``advantages`` and ``value_targets``; all are ``[B, T]`` here.
"""

INPUT_IDS = "input_ids"  # token ids [B, T]
ATTENTION_MASK = "attention_mask"  # True where a token is real [B, T]
TURN_IDS = "turn_ids"  # index of the turn that sampled the token, else -1 [B, T]
TOKEN_REWARDS = "token_rewards"  # the turn's reward on its last action token [B, T]
EPISODE_INDEX = "episode_index"  # number of the agent's episode in its policy [B]
MULTI_AGENT_EPISODE_INDEX = (
    "multi_agent_episode_index"  # number of the whole episode, over all policies [B]
)
AGENT_INDEX = "agent_index"  # number of the agent in its episode [B]
TURN_STEPS = "turn_steps"  # environment step of the token's turn, else -1 [B, T]
BOOTSTRAP_COLUMN = "bootstrap_column"  # column whose value bootstraps, else -1 [B]
BOOTSTRAPS_AGENT_TURN = (
    "bootstraps_agent_turn"  # whether that column follows an unanswered prompt [B]
)
LOSS_WEIGHTS = "loss_weights"  # per-token weight of the aggregation mode [B, T]
REF_LOGP = "ref_logp"  # log-probability under the frozen reference [B, T]
BEHAVIOUR_LOGP = "behaviour_logp"  # log-probability recorded when sampled [B, T]
MESSAGE_STARTS = "message_starts"  # 1 at the first token of a message [B, T]
SEQUENTIAL_FACTOR = "sequential_factor"  # ratios of policies updated before [B, T]
VALUES = "old_values"  # the critic's values before the update [B, T]
TOKEN_ENTROPY = "token_entropy"  # entropy before the update, if needed [B, T]
ENTROPY_RANK = "entropy_rank"  # share of trained tokens with higher entropy [B, T]
COVARIANCE_RANK = "covariance_rank"  # share with higher logp-advantage product [B, T]
VALUE_WEIGHTS = "value_weights"  # value loss weights; only with values per turn [B, T]
CHOICE_STARTS = "choice_starts"  # column where its turn's action starts, or -1 [B, T]
CANDIDATES = "candidates"  # number of the token's action; 0: taken, -1: none [B, T]
SCORE_WEIGHTS = "score_weights"  # of its log-probability in that action's score [B, T]
EXPERT_PROBS = "expert_probs"  # of the action that begins here, else 0 [B, T]
REF_CHOICE_LOGPS = "ref_choice_logps"  # likewise its log-probability, reference [B, T]
ACTION_LABELS = "action_labels"  # label of its turn's parsed action, else -1 [B, T]
CAUSAL_WEIGHTS = "causal_weights"  # by effect on the parsed action, in [0, 1] [B, T]
SUCCESS = "success"  # 1 if the episode solved its task, 0 if not, else NaN [B]
SOURCE = "source"  # place of the row's SOURCES; absent: all are sampled [B]
PICTURE_STARTS = "picture_starts"  # column of its first placeholder, or -1 [B, M]
PICTURE_INDEX = "picture_index"  # its index in the batch's pictures, or -1 [B, M]
PICTURES = "pictures"  # of the batch: a BatchPictures; absent without pictures
ALLOWED_TOKENS = (
    "allowed_tokens"  # bits of a nucleus mask [B, T, ceil(V / 8)]; absent: all
)
SUCCESS_SHARE = "success_share"  # solved episodes' share of trained tokens [B], equal

SCORES = "scores"  # of a reward model, at the ends of turns [M]
CHOICE_LOGPS = "choice_logps"  # of all admissible actions of trained turns [M, K]
QF_PREDS = "qf_preds"  # RLlib's name: of a turn critic, per turn [C, M]
PREDICTED_VALUES = "predicted_values"  # of RLlib's loss, at trained tokens [N]
PACKED_ROWS = "packed_rows"  # of a micro-batch whose rows are packed: a PackedRows
HOST = "host_columns"  # copies of some columns in host memory: a HostColumns

TURN = "turn"  # extra_model_outputs key of the episode's Turn records
EPISODE_DATA = "llm"  # custom_data key of the episode's EpisodeData
REWARD_LOG = "rewards"  # custom_data key of a multi-agent episode's rewards
