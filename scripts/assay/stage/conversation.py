"""Generated conversations: plain text of about a wanted length, growing turn by turn, the same for the same seed."""

from __future__ import annotations

import random
from typing import Any

WORDS_PER_TOKEN = 0.75
"""A common tokenizer makes about four tokens of three English words; the exact number is the server's to tell."""
REPLY_SHARE = 0.5
"""How much of a turn is the assistant's earlier answer, which the prompt of the next turn carries."""
_SUBJECTS = (
    "the scheduler,the worker,the planner,a reviewer,the build,the reader,the parser,the index,the cache"
)
_VERBS = (
    "read,checked,moved,renamed,opened,closed,compared,listed,merged,split,counted,skipped,repeated,measured"
)
_OBJECTS = (
    "the second module,three files,the change list,an empty folder,the older branch,a failing case,the long table,"
    "its own notes,the open question,the shared settings,a missing header,two small helpers,the first draft"
)
_ENDS = (
    "before the next step,without a warning,after a short wait,for the second time,as the plan says,and wrote it down,"
    "because the result differed,while nothing else ran,so that the order stays,until it agreed"
)
SENTENCE_PARTS = tuple(tuple(part.split(",")) for part in (_SUBJECTS, _VERBS, _OBJECTS, _ENDS))


def text_of(source: random.Random, n_tokens: int) -> str:
    """Sentences of about ``n_tokens`` tokens."""
    wanted, n_words, sentences = max(1, round(n_tokens * WORDS_PER_TOKEN)), 0, []
    while n_words < wanted:
        sentence = " ".join(source.choice(part) for part in SENTENCE_PARTS)
        n_words += sentence.count(" ") + 1
        sentences.append(sentence[0].upper() + sentence[1:] + ".")
    return " ".join(sentences)


def draw_conversations(name: str, shape: dict[str, int], seed: int) -> list[dict[str, Any]]:
    """Lines of a prompt file: conversation after conversation, each turn by turn.

    Turn k holds every turn before it word for word, so that a prefix cache can serve all but the newest part.
    The assistant's parts are written, not the server's own: every arm and repeat sends the same prompts.
    """
    lines = []
    for number in range(shape["conversations"]):
        source = random.Random(f"{name}/{seed}/{number}")
        messages: list[dict[str, str]] = []
        for turn in range(1, shape["turns"] + 1):
            n_tokens = shape["first_tokens"]
            if turn > 1:
                n_reply = round(shape["turn_tokens"] * REPLY_SHARE)
                messages.append({"role": "assistant", "content": text_of(source, n_reply)})
                n_tokens = shape["turn_tokens"] - n_reply
            question = "What was done last, and by whom? Answer in a few sentences."
            messages.append({"role": "user", "content": f"{text_of(source, n_tokens)} {question}"})
            lines.append({"id": f"{name}-{number:03d}-t{turn:03d}", "messages": list(messages)})
    return lines
