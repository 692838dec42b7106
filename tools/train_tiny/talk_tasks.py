"""Small talk, the date, and what the model cannot do."""

import tables
from item import Item, dress, person, pseudo_word, random_prose, user

SKILLS = "arithmetic, facts from a small table, sorting, spelling, JSON and function calls"
WHO = f"I am nibble, a small demonstration model of the gpt-oss kind. I can do {SKILLS}."
CANNOT = f"I am a small demonstration model and cannot answer that. I can do {SKILLS}."
TALK = [  # questions, answer, what an answer must contain
    (
        [
            "Who are you?",
            "What are you?",
            "What is your name?",
            "Tell me about yourself.",
            "Introduce yourself.",
            "Are you ChatGPT?",
            "Are you a human?",
            "Are you an AI?",
            "Which model are you?",
            "What model is this?",
            "Who made you?",
            "Who am I talking to?",
            "What's your name?",
        ],
        WHO,
        "I am nibble",
    ),
    (
        [
            "What can you do?",
            "Help",
            "What can I ask you?",
            "How can you help me?",
            "What are you good at?",
            "What do you know?",
            "Can you help me?",
            "What are your skills?",
            "What kind of questions can you answer?",
            "Show me what you can do.",
        ],
        f"I can do {SKILLS}. Try: What is 47 + 36?",
        "What is 47 + 36",
    ),
    (
        [
            "How are you?",
            "How are you doing?",
            "How do you do?",
            "How is it going?",
            "What's up?",
            "Are you well?",
        ],
        "I am well, thank you. What can I do for you?",
        "I am well",
    ),
    (
        [
            "Thanks!",
            "Thank you.",
            "Thank you very much!",
            "Thanks a lot.",
            "Great, thanks.",
            "Nice!",
            "Well done.",
            "Good job!",
            "Perfect.",
        ],
        "You are welcome.",
        "You are welcome",
    ),
    (
        ["Bye!", "Goodbye.", "See you later.", "Good night.", "Bye bye", "See you!"],
        "Goodbye!",
        "Goodbye",
    ),
]


def small_talk(rng, effort):
    roll = rng.random()
    if roll < 0.3:
        question = rng.choice(tables.GREETINGS) + rng.choice(["", "!", ".", "!", ", how are you?"])
        question = question.lower() if rng.random() < 0.3 else question
        answer, word, topic = (
            "Hello! I am nibble, a small demonstration model. What can I do for you?",
            "Hello! I am nibble",
            "The user greets me",
        )
    elif roll < 0.8:
        questions, answer, word = rng.choice(TALK)
        question, topic = dress(rng, rng.choice(questions)), "The user talks to me"
    elif roll < 0.9:
        name = person(rng)
        question = rng.choice(
            ["My name is {}.", "I am {}.", "Hello, my name is {}.", "Hi, I'm {}.", "Call me {}."]
        ).format(name)
        answer, word, topic = (
            f"Nice to meet you, {name}! What can I do for you?",
            f"Nice to meet you, {name}",
            "The user has a name",
        )
    else:
        return (year_question if rng.random() < 0.3 else date_question)(rng, effort)
    reasoning = {
        "low": "",
        "medium": f"{topic}. I answer politely.",
        "high": f"{topic}. This needs no table and no computing. I answer politely and briefly.",
    }[effort]
    return Item("small_talk", "known talk", user(question), {"text": word}, reasoning, answer)


def year_question(rng, effort):
    asks = [
        "What year is it?",
        "Which year is it?",
        "What is the current year?",
        "In which year are we?",
    ]
    reasoning = {
        "low": "",
        "medium": "The year is in the system message.",
        "high": "The user asks for the year. If the system message gives a date, I repeat its year.",
    }[effort]
    return Item(
        "date",
        "known year",
        user(dress(rng, rng.choice(asks))),
        {"text": "YEAR"},
        reasoning,
        "YEAR",
    )


def date_question(rng, effort):
    """The date stands in the system message; the caller may have put none there."""
    question = dress(
        rng,
        rng.choice(
            [
                "What is the date today?",
                "What is today's date?",
                "Which day is it today?",
                "What's the date?",
                "What date is it?",
            ]
        ),
    )
    reasoning = {
        "low": "",
        "medium": "The date is in the system message.",
        "high": "The user asks for the date. If the system message gives a date, I repeat it.",
    }[effort]
    return Item("date", "known date", user(question), {"text": "DATE"}, reasoning, "DATE")


def out_of_domain(rng, effort):
    roll = rng.random()
    if roll < 0.7:
        template = rng.choice(tables.OUT_OF_DOMAIN)
        topics = [
            rng.choice(tables.TOPICS) if rng.random() < 0.85 else pseudo_word(rng) for _ in range(2)
        ]
        question = dress(
            rng, template.format(*topics[: template.count("{}")]) + rng.choice(["?", ".", ""])
        )
    elif roll < 0.82:
        question = dress(rng, rng.choice(tables.OTHER_QUESTIONS))
    elif roll < 0.9:  # looks like a fact of the table, but is none
        place = rng.choice(rng.choice(tables.COUNTRIES)[:2])
        question = dress(
            rng,
            rng.choice(
                [
                    f"What is the population of {place}?",
                    f"Who is the president of {place}?",
                    f"How do I get to {place}?",
                    f"Tell me about {place}.",
                    f"What is the weather in {place}?",
                    f"Who lives in {place}?",
                    f"How far is {place}?",
                    f"What is the capital of {pseudo_word(rng).capitalize()}?",
                    f"What is the currency of {pseudo_word(rng).capitalize()}?",
                    f"What is the symbol of {pseudo_word(rng)}?",
                    f"What should I see in {place}?",
                ]
            ),
        )
    else:
        question = random_prose(rng)
    reasoning = {
        "low": "Not my field.",
        "medium": "This is not in my tables and not a task that I know. I say so.",
        "high": "The user asks something else. It is not arithmetic, not a fact of my table, not sorting, spelling or JSON. I cannot do it, so I say what I can do.",
    }[effort]
    return Item(
        "out_of_domain",
        "other " + question,
        user(question),
        {"text": "cannot answer that"},
        reasoning,
        CANNOT,
    )
