"""Word problems with made-up people and numbers, for prompts: written from templates of our own.

The numbers are chosen so that the problems have an answer; it is not computed, the target's own answer is what counts.
"""

from __future__ import annotations

import random

from ddbench.train import prompt_words as words
from ddbench.train.prompt_words import listed

TEMPLATES = listed("""
{A} has {m} {things}. {B} gives {A} {n} more. How many {things} does {A} have now?; {A} buys {n} {things} at
${p} each and pays with a ${q} bill. How much change does {A} get?; A shop sells {things} in packs of {n}. {A}
needs {m} {things}. How many packs must {A} buy, and how many are left over?; {A} reads {n} pages every day. A
book has {m} pages. After how many days has {A} finished it?; {A} and {B} share {m} {things} in the ratio {i}
to {j}. How many does each of them get?; {A} drives at {s} km per hour for {i} hours, then at {r} km per hour
for {j} hours. How far does {A} get in all?; A train leaves at {i} o'clock and travels {m} km at {s} km per
hour. When does it arrive?; {A} earns ${p} per hour and works {i} hours a day, {j} days a week. How much does
{A} earn in {k} weeks?; There are {m} {things} in {i} boxes. Each box holds the same number. {A} takes {j}
boxes home. How many {things} is that?; {A} is {n} years older than {B}. In {i} years the sum of their ages
will be {m}. How old is {A} today?; A rectangle is {n} cm long and {i} cm wide. What are its area and its
perimeter?; {A} saves ${p} in the first week and twice as much in every following week. How much has {A} saved
after {i} weeks?; A jacket costs ${q}. It is reduced by {c} percent, then by another {d} percent. What does it
cost now?; {A} bakes {m} {things} and sells {c} percent of them for ${j} each. How much money does {A} take
in?; A tank holds {m} litres. {i} litres flow in every minute and {j} litres flow out. How long until {n}
litres are in it?; {A} has {m} {things}. {A} gives a third of the rest to {B} after losing {i}. How many are
left?; The average of {n}, {m} and a third number is {s}. What is the third number?; Solve for x: {i}x + {n} =
{m}.; Solve for x and y: x + y = {m} and x - y = {i}.; What is {n} percent of {m}? Explain how you got it.;
Compute {m} + {n} * {i} - {j}.; Simplify the fraction {n}/{m}.; What is the greatest common divisor of {m} and
{n}?; A bag holds {i} red, {j} blue and {k} green {things}. What is the probability of drawing a blue one?;
{A} runs {i} km on Monday and {j} km more on every following day. How far does {A} run from Monday to Friday?;
In a class of {n} students, {c} percent play an instrument and half of those sing too. How many do both?; {A}
cuts a rope of {m} cm into {i} equal pieces and a rest of {j} cm. How long is each piece?; A recipe for {i}
people needs {n} grams of flour. How much flour do {A} and {j} friends need?; A phone plan costs ${p} a month
plus ${i} for every gigabyte over {j}. {A} used {n} gigabytes. What is the bill?; {A} plants {i} rows of {j}
trees. {k} trees die, and {A} plants {n} more. How many trees are there?; The sum of three consecutive numbers
is {t}. What are the numbers?; {A} walks {n} steps per minute, and {B} walks {i} steps more per minute. How
many more steps has {B} after {j} minutes?; If {i} workers need {n} days to build a wall, how many days do {j}
workers need?; Find the next three numbers: {i}, {a1}, {a2}, {a3}. Explain the rule.; {A} spends half of ${q}
on {things}, ${i} on lunch and a quarter of what is left on a book. How much is left?; A car uses {i} litres
of fuel per 100 km. Fuel costs ${j} per litre. What does a trip of {m} km cost?; {A} scored {s}, {r} and {n}
points in three games. How many points does {A} need in the fourth for an average of {c}?; Convert {n} hours
and {i} minutes to seconds.; A square garden has a fence of {t} metres around it. {A} wants to plant {j}
{things} per square metre. How many in all?; {A} has ${q} in coins of {i} and {j} dollars, {k} coins of the
first kind. How many are there of the second?
""")
FOLLOW_UPS = (
    "", "", "", "", " Show your work.", " Explain each step.", " Check your answer.",
    " {B} has twice as many as {A}. How many do they have together?",
    " What would the answer be if every number were doubled?",
)  # fmt: skip


def math_message(rng: random.Random) -> str:
    """A problem with names, things and numbers filled in."""
    first, second = rng.sample(words.NAMES, 2)
    step = rng.randint(2, 12)
    start = rng.randint(2, 9)
    values: dict[str, object] = {
        "A": first, "B": second, "things": rng.choice(words.THINGS),
        "m": rng.randint(20, 480), "n": rng.randint(6, 60), "t": 12 * rng.randint(2, 30),
        "i": start, "j": rng.randint(2, 9), "k": rng.randint(2, 9), "p": rng.randint(2, 25),
        "q": rng.choice((20, 50, 60, 80, 100, 120, 200)), "s": rng.randint(40, 95), "r": rng.randint(30, 90),
        "c": 5 * rng.randint(2, 16), "d": 5 * rng.randint(1, 6),
        "a1": start + step, "a2": start + 2 * step, "a3": start + 3 * step,
    }  # fmt: skip
    return (rng.choice(TEMPLATES) + rng.choice(FOLLOW_UPS)).format(**values)
