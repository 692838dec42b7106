"""How the facts of the built-in tables are asked for and told."""

# subject: (its row of the table, [(topic, field that is the value, sentence, questions)]), where a
# {name} stands for a field of the subject (fact_tasks.py: _subjects)
WORDINGS = {
    "country": (
        "{name}: capital {capital}, continent {continent}, currency {currency}, "
        "language {language}",
        [
            (
                "Capital of {name}",
                "capital",
                "The capital of {name} is {capital}.",
                [
                    "What is the capital of {name}?",
                    "Which city is the capital of {name}?",
                    "Name the capital of {name}.",
                    "{name}'s capital?",
                    "Capital of {name}?",
                    "What's the capital city of {name}?",
                    "Do you know the capital of {name}?",
                ],
            ),
            (
                "Continent of {name}",
                "continent",
                "{name} is in {continent}.",
                [
                    "On which continent is {name}?",
                    "Which continent is {name} in?",
                    "What continent is {name} on?",
                    "Where is {name}?",
                    "In which part of the world is {name}?",
                    "Name the continent of {name}.",
                ],
            ),
            (
                "Currency of {name}",
                "currency",
                "The currency of {name} is the {currency}.",
                [
                    "What is the currency of {name}?",
                    "Which currency does {name} use?",
                    "What money is used in {name}?",
                    "Name the currency of {name}.",
                    "Currency of {name}?",
                    "How do people pay in {name}?",
                ],
            ),
            (
                "Language of {name}",
                "language",
                "People in {name} speak {language}.",
                [
                    "Which language is spoken in {name}?",
                    "What language do people speak in {name}?",
                    "What is the language of {name}?",
                    "Language of {name}?",
                    "Name the main language of {name}.",
                    "What do people speak in {name}?",
                ],
            ),
            (
                "Country of {capital}",
                "name",
                "{capital} is the capital of {name}.",
                [
                    "{capital} is the capital of which country?",
                    "Which country has the capital {capital}?",
                    "What country is {capital} the capital of?",
                    "Of which country is {capital} the capital?",
                    "Where is {capital}?",
                    "In which country is {capital}?",
                ],
            ),
        ],
    ),
    "element": (
        "{name}: symbol {symbol}, atomic number {number}",
        [
            (
                "Symbol of {name}",
                "symbol",
                "The symbol of {name} is {symbol}.",
                [
                    "What is the chemical symbol of {name}?",
                    "What is the symbol for {name}?",
                    "Symbol of {name}?",
                    "Which symbol does {name} have?",
                    "How is {name} written in chemistry?",
                    "Name the symbol of the element {name}.",
                ],
            ),
            (
                "Atomic number of {name}",
                "number",
                "The atomic number of {name} is {number}.",
                [
                    "What is the atomic number of {name}?",
                    "Which atomic number does {name} have?",
                    "Atomic number of {name}?",
                    "How many protons does {name} have?",
                    "Name the atomic number of {name}.",
                ],
            ),
            (
                "Element {symbol} {number}",
                "name",
                "That element is {name}.",
                [
                    "Which element has the symbol {symbol}?",
                    "What element is {symbol}?",
                    "Name the element with the symbol {symbol}.",
                    "Which element has the atomic number {number}?",
                    "What is element number {number}?",
                ],
            ),
        ],
    ),
    "animal": (
        "{name}: young {young}, group {group}",
        [
            (
                "Young of {name}",
                "young",
                "A young {name} is called {young}.",
                [
                    "What is a young {name} called?",
                    "What do you call a baby {name}?",
                    "Name the young of a {name}.",
                    "How is a baby {name} called?",
                ],
            ),
            (
                "Group of {name}",
                "group",
                "A {name} is in the group: {group}.",
                [
                    "What kind of animal is a {name}?",
                    "Which group of animals does the {name} belong to?",
                    "Is a {name} a mammal, a bird or something else?",
                ],
            ),
        ],
    ),
    "month": (
        "{name}: month {number}, {days} days, then {after}",
        [
            (
                "Days of {name}",
                "days",
                "{name} has {days} days.",
                [
                    "How many days does {name} have?",
                    "How many days are in {name}?",
                    "How long is {name} in days?",
                    "Days in {name}?",
                ],
            ),
            (
                "Month after {name}",
                "after",
                "{after} comes after {name}.",
                [
                    "Which month comes after {name}?",
                    "What month follows {name}?",
                    "What is the month after {name}?",
                ],
            ),
            (
                "Number of {name}",
                "number",
                "{name} is month {number}.",
                [
                    "Which number does the month {name} have?",
                    "What number is {name} in the year?",
                    "{name} is which month of the year, as a number?",
                ],
            ),
        ],
    ),
    "day": (
        "{name}: after {before}, before {after}",
        [
            (
                "Day after {name}",
                "after",
                "{after} comes after {name}.",
                [
                    "Which day comes after {name}?",
                    "What day follows {name}?",
                    "What is the day after {name}?",
                ],
            ),
            (
                "Day before {name}",
                "before",
                "{before} comes before {name}.",
                [
                    "Which day comes before {name}?",
                    "What is the day before {name}?",
                ],
            ),
        ],
    ),
    "list": (
        "{name}: {things}",
        [
            (
                "List of {name}",
                "things",
                "{things}.",
                [
                    "Name the {name}.",
                    "List the {name}.",
                    "What are the {name}?",
                    "Tell me the {name}.",
                ],
            ),
        ],
    ),
    "planet": (
        "{name}: planet {number} from the sun",
        [
            (
                "Planet {number}",
                "name",
                "The {word} planet is {name}.",
                [
                    "Which planet is the {word} from the sun?",
                    "What is the {word} planet?",
                    "Name the {word} planet of the solar system.",
                ],
            ),
        ],
    ),
}
