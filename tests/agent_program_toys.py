"""Programs that call the endpoint with the standard library alone."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request

SEEN: dict[str, list] = {}  # by program, what it received
_LOCK = threading.Lock()


def record(name, value):
    with _LOCK:
        SEEN.setdefault(name, []).append(value)


def post(endpoint, path="chat/completions", key=None, timeout=60, **body):
    """Return status and parsed body of a request."""
    request = urllib.request.Request(
        f"{endpoint.base_url}/{path}",
        data=json.dumps(body).encode(),
        headers={
            "Authorization": f"Bearer {key or endpoint.api_key}",
            "Content-Type": "application/json",
        },
    )
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def ask(endpoint, messages, model=None, **body):
    """Return the message of the first choice."""
    status, answer = post(
        endpoint, model=model or endpoint.models[0], messages=messages, **body
    )
    assert status == 200, answer
    return answer["choices"][0]["message"]


def one_turn(task, endpoint):
    """Ask once; the reward is the share of the letter e."""
    text = ask(endpoint, [{"role": "user", "content": f"Task {task}."}])["content"]
    return text.count("e") / max(1, len(text))


def three_turns(task, endpoint):
    """Continue one conversation over three turns."""
    messages = [{"role": "user", "content": f"Seed {task['seed']}."}]
    for number in range(3):
        messages.append(ask(endpoint, messages, logprobs=True, return_token_ids=True))
        messages.append({"role": "user", "content": f"More, {number}."})
    return 1.0


def recording(task, endpoint):
    """Continue a conversation, branch it, start another, ask for two replies."""
    first = [{"role": "user", "content": f"Seed {task['seed']}."}]
    extra = {"logprobs": True, "return_token_ids": True}

    def turn(messages, **body):
        status, answer = post(
            endpoint, model=endpoint.models[0], messages=messages, **extra, **body
        )
        assert status == 200, answer
        record("recording", (task["seed"], answer))
        return [choice["message"] for choice in answer["choices"]]

    def user(text):
        return {"role": "user", "content": text}

    (a,) = turn(first)
    (b,) = turn([*first, a, user("Go on.")])  # continues
    other = [{"role": "system", "content": "Be terse."}, user("Something else.")]
    (c,) = turn(other)  # a sub-agent
    turn([*first, a, user("Go on."), b, user("And on.")])  # continues the first one
    turn([*first, a, user("Otherwise.")])  # branches
    turn([*other, c, user("Two, please.")], n=2)
    reward = sum(map(ord, a["content"])) % 7 / 7
    return {"reward": reward, "success": True, "metrics": {"done": 1.0}}


def crashing(task, endpoint):
    """Fail after one reply."""
    ask(endpoint, [{"role": "user", "content": "Hello."}])
    raise RuntimeError("the program has a bug")


def crashing_once(task, endpoint):
    """Fail in the first attempt at every task."""
    ask(endpoint, [{"role": "user", "content": "Hello."}])
    with _LOCK:
        attempts = SEEN.setdefault("crashing_once", [])
        attempts.append(task["seed"])
        if attempts.count(task["seed"]) == 1:
            raise RuntimeError("once")
    return 1.0


def silent(task, endpoint):
    """Return without a request."""
    return 1.0


def endless(task, endpoint):
    """Ask until the endpoint refuses, and record the refusal."""
    messages = [{"role": "user", "content": "Hello."}]
    while True:
        status, answer = post(endpoint, model=endpoint.models[0], messages=messages)
        if status != 200:
            record("endless", (status, answer["error"]))
            return 1.0
        messages += [
            answer["choices"][0]["message"],
            {"role": "user", "content": "On."},
        ]


def stuck(task, endpoint):
    """Ask once and never return."""
    ask(endpoint, [{"role": "user", "content": "Hello."}])
    threading.Event().wait(30)


def bad_result(task, endpoint):
    """Return a text as the reward."""
    ask(endpoint, [{"role": "user", "content": "Hello."}])
    return "very good"


def relay(task, endpoint):
    """Let one policy write and another read."""
    text = ask(endpoint, [{"role": "user", "content": "Write."}], "writer")["content"]
    ask(endpoint, [{"role": "user", "content": f"Read {text}."}], "reader")
    return {"reward": {"writer": 0.25, "reader": 0.75}}


def graded(task, result):
    """Return the reward of a result."""
    return {"reward": float(result), "metrics": {"seed": task["seed"]}}


MANY = 64
TOGETHER = threading.Barrier(MANY)


def one_of_many(task, endpoint):
    """Continue a conversation of three turns while all other programs run."""
    messages = []
    for number in range(3):
        if number == 1:
            TOGETHER.wait(60)  # passes only if all programs run at once
        messages.append({"role": "user", "content": f"Seed {task['seed']}, {number}."})
        status, answer = post(
            endpoint,
            model=endpoint.models[number % 2],
            messages=messages,
            return_token_ids=True,
            logprobs=True,
        )
        assert status == 200, answer
        (choice,) = answer["choices"]
        record("one_of_many", (task["seed"], number, answer["model"], choice))
        messages.append(choice["message"])
    return 1.0


def besieged(task, endpoint):
    """Go on with a conversation while hostile requests come in."""
    from concurrent.futures import ThreadPoolExecutor

    from hostile_requests import KINDS, Attacker

    kinds = [KINDS[i % len(KINDS)] for i in range(task["requests"])]
    with ThreadPoolExecutor(8) as threads:
        jobs = [
            threads.submit(lambda k, i: (k, *Attacker(endpoint, i).attack(k)), kind, i)
            for i, kind in enumerate(kinds)
        ]
        messages = [{"role": "user", "content": "Count."}]
        while not all(job.done() for job in jobs):
            reply = ask(endpoint, messages, max_tokens=2)
            record("besieged_replies", reply)
            messages = [*messages[-2:], reply, {"role": "user", "content": "On."}]
        for job in jobs:
            record("besieged", job.result())
    record("besieged_replies", ask(endpoint, [{"role": "user", "content": "Done."}]))
    return 1.0


def seeded(task, endpoint):
    """Ask twice with one seed, once with another, and once for two replies."""
    first = [{"role": "user", "content": "Hello."}]
    texts = [ask(endpoint, first, seed=seed)["content"] for seed in (5, 5, 6)]
    _, answer = post(
        endpoint, model=endpoint.models[0], messages=first, seed=5, n=2, max_tokens=2
    )
    record("seeded", (texts, answer))
    return 1.0


def stopped(task, endpoint):
    """Ask for a reply that ends before any of these letters, and a short one."""
    letters = list("abcdefghijklmnop")
    _, answer = post(
        endpoint,
        model=endpoint.models[0],
        messages=[{"role": "user", "content": "Hello."}],
        stop=letters,
        return_token_ids=True,
    )
    _, short = post(
        endpoint,
        model=endpoint.models[0],
        prompt="Once",
        max_tokens=1,
        path="completions",
    )
    record("stopped", (answer, short))
    return 1.0


def too_long(task, endpoint):
    """Send a conversation that does not fit, then one that does."""
    words = [{"role": "user", "content": "word " * 5000}]
    record("too_long", post(endpoint, model=endpoint.models[0], messages=words))
    ask(endpoint, [{"role": "user", "content": "Hello."}])
    return 1.0


def two_writers(task, endpoint):
    """Let both policies take turns in conversations that alternate."""
    texts = []
    conversations = {model: [] for model in endpoint.models}
    for number in range(4):
        model = endpoint.models[number % 2]
        messages = conversations[model]
        messages.append({"role": "user", "content": f"{texts[-1:]} {number}."})
        messages.append(ask(endpoint, messages, model))
        texts.append(messages[-1]["content"])
    return sum(map(ord, "".join(texts))) % 7 / 7
