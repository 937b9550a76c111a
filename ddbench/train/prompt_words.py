"""What made prompts are filled with: names, things, topics, forms of text. Written for this lab, no set's wording.

Read by `chat_prompts.py` and `math_prompts.py` only.
"""

from __future__ import annotations


def listed(text: str) -> tuple[str, ...]:
    """Entries with semicolons between them; lines are broken anywhere."""
    return tuple(" ".join(part.split()) for part in text.split(";") if part.strip())


NAMES = listed("""
Amara; Ben; Chiara; Dmitri; Elif; Farid; Greta; Hana; Ivo; Joana; Kofi; Lena; Marek; Nadia; Oscar; Priya;
Quentin; Rosa; Samir; Tuuli; Ulrich; Vera; Wendell; Ximena; Yusuf; Zoe; Anton; Bianca; Celeste; Dario; Esther;
Finn; Gloria; Hector; Ingrid; Jasper; Keiko; Lorenzo; Mina; Noor; Otto; Paula; Rafael; Signe; Thabo; Ursula;
Viktor; Wanda
""")

THINGS = listed("""
apples; notebooks; marbles; stickers; bottles of juice; cupcakes; pencils; postcards; seashells; tickets;
balloons; bricks; candles; coins; cookies; crayons; eggs; envelopes; flowers; lemons; magnets; mugs; oranges;
paintings; pebbles; photos; plates; potatoes; puzzles; ribbons; scarves; seeds; shirts; stamps; tomatoes; toy
cars; trading cards
""")

PLACES = listed("""
a small harbour town; a mountain village; a space station; an old library; a night train; a desert outpost; a
school in the rain; a busy kitchen; an abandoned theatre; a lighthouse; a market square; a research ship; a
castle; a suburban garden; a hospital corridor; a quiet farm; a city rooftop; a museum after closing time; a
snowed-in cabin
""")

PEOPLE = listed("""
a beekeeper; a retired teacher; a young inventor; two sisters; a lost traveller; a baker; a robot; a nurse; a
shy detective; a sailor; a violinist; a taxi driver; an astronomer; a gardener; a king without a crown; a
translator
""")

TOPICS = listed("""
photosynthesis; plate tectonics; black holes; the water cycle; gravity; vaccines; antibiotics; DNA; evolution;
the human heart; the immune system; sleep; memory; nutrition; vitamins; inflation; supply and demand; compound
interest; taxes; insurance; the stock market; mortgages; the French Revolution; the Roman Empire; the Silk
Road; the Cold War; the Industrial Revolution; the Renaissance; ancient Egypt; the Ottoman Empire; the Mongol
Empire; the Black Death; democracy; constitutional law; human rights; federalism; the United Nations;
renewable energy; nuclear power; solar panels; wind turbines; electric cars; batteries; climate change;
recycling; biodiversity; coral reefs; rainforests; deserts; glaciers; volcanoes; earthquakes; hurricanes;
tides; the seasons; the Moon; Mars; comets; telescopes; satellites; rockets; the internet; encryption;
passwords; databases; compilers; operating systems; machine learning; neural networks; search engines; cloud
computing; version control; unit testing; recursion; sorting algorithms; hash tables; linked lists; binary
trees; graphs; regular expressions; HTTP; SQL joins; Docker; web accessibility; probability; statistics; prime
numbers; fractions; algebra; calculus; geometry; the Pythagorean theorem; logarithms; matrices; game theory;
logic puzzles; philosophy; ethics; stoicism; utilitarianism; free will; logical fallacies; poetry; the novel;
Shakespeare; fairy tales; mythology; jazz; classical music; opera; painting; impressionism; photography;
architecture; bridges; sculpture; theatre; film editing; cooking; baking bread; coffee; tea; cheese;
chocolate; gardening; composting; houseplants; bees; birds; whales; wolves; cats; dogs; horses; insects;
fungi; trees; bacteria; viruses; chess; football; running; swimming; yoga; cycling; hiking; camping; first
aid; stress; time management; public speaking; job interviews; negotiation; teamwork; leadership; remote work;
writing a resume; learning a language; note taking; study habits; procrastination; budgeting; saving money;
travel planning; public transport; city planning; agriculture; irrigation; steel; glass; paper; plastics;
semiconductors; lasers; magnets; sound; light; colour; heat; pressure; acids and bases; the periodic table;
chemical bonds; catalysts; crystals; alloys; the atom; radioactivity; relativity; quantum mechanics;
thermodynamics; electricity; circuits; radio; the telephone; the printing press; the steam engine; the wheel;
the compass; maps; calendars; clocks; money; trade; migration; cities; languages; writing systems; education;
museums; newspapers; advertising; marketing; customer service; small businesses; startups; patents; copyright
""")

ASKS = listed("""
Explain {t} in simple terms.; What is {t}?; Why does {t} matter?; Give me a short introduction to {t}.; How
would you explain {t} to a ten year old?; List five facts about {t}.; What are the main ideas behind {t}?;
What are common misconceptions about {t}?; Write a short essay about {t}.; Describe the history of {t}.; What
are the advantages and disadvantages of {t}?; Write three quiz questions about {t} and answer them.; Summarize
what everyone should know about {t}.; Can you help me understand {t}? I am a beginner.; How does {t} affect
everyday life?; Write a blog post about {t} with an introduction, three sections and a conclusion.; Compare
{t} and {u}.; What do {t} and {u} have in common?; Which is harder to learn about, {t} or {u}? Explain why.;
Write a dialogue between two students about {t}.; Give me a step by step plan to learn about {t}.; What
questions should I ask an expert on {t}?; Write a short poem about {t}.; Make a table of key terms about {t}.;
Write an email to a friend in which you recommend a book about {t}.; What might the future of {t} look like?;
Describe {t} in two paragraphs, then give an example.; Imagine you are a teacher. Prepare a lesson about {t}.;
Pretend you are a museum guide and tell visitors about {t}.; Act as a critic of {t} and state your case.;
Write a speech about {t} for a school assembly.; Tell me a joke about {t} and explain it.; Name ten words
related to {t}.; What are three experiments or activities that show {t}?; Give arguments for and against
teaching {t} in schools.; Write a product description for a course about {t}.; How did {t} change over the
last hundred years?; Explain how {t} relates to {u}.; Write a news report about a discovery concerning {t}.;
What is the most surprising thing about {t}?; Answer briefly: what is {t} and who needs it?
""")

STORIES = listed("""
Write a short story about {p} in {w}.; Write the opening paragraph of a novel set in {w}.; Describe {w} as
seen by {p}.; Write a diary entry of {p}.; Write a letter from {p} to an old friend, sent from {w}.; Tell a
bedtime story about {p} who learns to {v}.; Write a scene in which {p} and {q} meet in {w}.; You are {p}.
Introduce yourself and tell me about your day.; Write a poem set in {w}.; Write a dialogue between {p} and {q}
about how to {v}.; Invent a legend about {w}.; Write a mystery that begins in {w}.
""")

VERBS = listed("""
forgive; be patient; tell the truth; share; ask for help; listen; be brave; cook; swim; read the stars; say
no; fix a clock; grow tomatoes; trust a stranger; save money; keep a secret; speak in public; paint; wait;
start again
""")

EMAILS = listed("""
asking for a day off; apologizing for a late delivery; inviting colleagues to a workshop; thanking a host;
complaining about a broken product; asking a professor for feedback; announcing a new feature; declining an
offer politely; following up after a job interview; reminding a customer of an unpaid invoice; proposing a
meeting; resigning from a club; asking a neighbour to keep the noise down; recommending a former student;
reporting a software bug; planning a birthday
""")

TASKS = listed("""
reverses a string; counts the vowels in a text; finds the largest number in a list; checks whether a word is a
palindrome; merges two sorted lists; removes duplicates from a list but keeps the order; computes the n-th
Fibonacci number; checks whether a number is prime; returns all divisors of a number; converts Celsius to
Fahrenheit; flattens a nested list; groups words by their first letter; counts how often each word occurs;
transposes a matrix; rotates a list by k places; validates an email address; parses a CSV line; formats a
number with thousands separators; computes the median of a list; finds two numbers that add up to a target;
checks whether brackets are balanced; computes the greatest common divisor; converts a number to binary;
decodes a run-length encoded text; generates all permutations of a list; finds the longest common prefix of
several words; implements binary search; implements bubble sort; implements quicksort; implements a stack with
a list; implements a queue with two stacks; computes a moving average; reads a JSON file and prints its keys;
downloads a page and counts its links; simulates rolling two dice; plays tic-tac-toe; shuffles a deck of
cards; computes the distance between two points; sums the digits of a number; checks whether two words are
anagrams; finds the missing number in a sequence; capitalizes every word; replaces every second letter; sorts
a dictionary by its values; splits a list into chunks of size n; computes compound interest; finds the most
common element; converts Roman numerals to integers; adds two matrices; draws a triangle of stars; caches the
results of another function; measures how long a call takes; retries a call three times; logs its arguments;
walks a folder and lists all text files; counts the lines of a file; computes a checksum; encrypts a text with
a Caesar cipher; finds the shortest path in a grid; topologically sorts a graph; inverts a dictionary;
interleaves two lists; clamps a number
""")

LANGUAGES = listed("""
Python; Python; Python; Python; JavaScript; Java; C; C++; Go; Rust; SQL; Bash; TypeScript; Ruby
""")
