"""Scripts that define one callable `f`, in as many ways as Python has, with constants to be drawn: `edits` of one another.

Run as a program it prints the key of each: `drawn_functions.py SEED`, one hexadecimal key a line.
"""

from __future__ import annotations

import random
import sys
from typing import Any

SCRIPTS: dict[str, str] = {
    "function": "def f(x):\n    return x * {n} + {m}",
    "operator": "def f(x):\n    return x {op} 3",
    "branch": "def f(x):\n    if x > {n}:\n        return {m}\n    return -x",
    "annotated with a docstring": 'def f(x: int) -> int:\n    """Says {n}."""\n    return x + {n}',
    "attribute of an argument": "def f(x):\n    return x.{attribute}",
    "defaults": "def f(x, k={n}, *, m={m}):\n    return (x, k, m)",
    "kinds of parameters": "def f(x, {kind}):\n    return (x, k)",
    "exception table": "def f(x):\n    try:\n        x += {n}\n        return 1 / (x - x)\n    except {error}:\n        return {m}",
    "lambda": "f = lambda x: x + {n}",
    "comprehension": "f = lambda x: [c + '{s}' for c in str(x)]",
    "inner function": "def f(x):\n    def g(y):\n        return '{s}' + str(y)\n    return g(x)",
    "constants of inner code": "def f(x):\n    return [(lambda y: (y, '{s}', {n}))(x) for _ in range(2)]",
    "set constant": "def f(x):\n    return x in {{{n}, '{s}', 'always', 'a', 'b'}}",
    "closure": "def make(k):\n    def f(x):\n        return x * k\n    return f\nf = make({n})",
    "closure over containers": "def make(k):\n    return lambda x: (x, sorted(k.items()))\nf = make({{'a': [{n}], '{s}': {{1, {m}}}}})",
    "order of equal closures": (
        "def affine(k, c):\n    return lambda x: k * x + c\n"
        "def after(g, h):\n    return lambda x: g(h(x))\n"
        "one, two = affine({n}, 1), affine(3, {m})\nf = after({pair})"
    ),
    "closure over itself": "def make():\n    def f(x):\n        return 1 if x < 2 else {n} * f(x - 1)\n    return f\nf = make()",
    "global": "K = {n}\ndef f(x):\n    return x + K",
    "global containers": "K = {{'a': ({n}, [{m}])}}\ndef f(x):\n    return (x, K['a'])",
    "order of a global": "STEPS = {{{steps}}}\ndef f(x):\n    return (x, list(STEPS))",
    "order within a class": "class Table:\n    steps = [{{{steps}}}]\ndef f(x):\n    return (x, Table.steps)",
    "order of a dict of a subclass": (
        "import collections\nSTEPS = collections.Counter({{{steps}}})\ndef f(x):\n    return (x, list(STEPS))"
    ),
    "helper of a helper": (
        "def h(x):\n    return x - {n}\ndef g(x):\n    return h(x) * {m}\ndef f(x):\n    return g(x)"
    ),
    "mutual recursion": (
        "def even(x):\n    return {n} if x < 1 else odd(x - 1)\n"
        "def odd(x):\n    return {m} if x < 1 else even(x - 1)\ndef f(x):\n    return even(x)"
    ),
    "table of functions": (
        "def a(x):\n    return x + {n}\ndef b(x):\n    return len(TABLE) + {m}\nTABLE = {{a: 1, b: 2}}\n"
        "def f(x):\n    return [g(x) for g in TABLE]"
    ),
    "decorated": (
        "import functools\ndef times(k):\n    def around(g):\n        @functools.wraps(g)\n        def wrapper(*args):\n"
        "            return k * g(*args)\n        return wrapper\n    return around\n"
        "@times({n})\ndef f(x):\n    return x + {m}"
    ),
    "decorated in some order": (
        "import functools\ndef twice(g):\n    @functools.wraps(g)\n    def w(x):\n        return 2 * g(x)\n    return w\n"
        "def more(g):\n    @functools.wraps(g)\n    def w(x):\n        return {n} + g(x)\n    return w\n"
        "@{decorators[0]}\n@{decorators[1]}\ndef f(x):\n    return x"
    ),
    "decorated without wraps": (
        "def add(g):\n    def wrapper(x):\n        return g(x) + {n}\n    return wrapper\n@add\ndef f(x):\n    return x * {m}"
    ),
    "lru_cache": "import functools\n@functools.lru_cache\ndef f(x):\n    return x + {n}",
    "partial": "import functools\ndef g(k, x):\n    return k * x + {m}\nf = functools.partial(g, {n})",
    "itemgetter": "import operator\nG = operator.itemgetter({n})\ndef f(x):\n    return G(x)",
    "function attributes": "def f(x):\n    return x + f.k\nf.k = {n}",
    "method": (
        "class Model:\n    def __init__(self, k):\n        self.k = k\n    def scaled(self, x):\n"
        "        return self.k * x + {m}\nf = Model({n}).scaled"
    ),
    "one of two wrapped methods": (
        "def w(g):\n    def wrapper(self, x):\n        return g(self, x)\n    return wrapper\nclass Model:\n"
        "    @w\n    def a(self, x):\n        return x + 1\n    @w\n    def b(self, x):\n        return x - 1\nf = Model().{method}"
    ),
    "inherited method": (
        "class Base:\n    def g(self, x):\n        return x + {n}\nclass Model(Base):\n    def f(self, x):\n"
        "        return super().g(x) * {m}\nf = Model().f"
    ),
    "class method": "class Model:\n    K = {n}\n    @classmethod\n    def f(cls, x):\n        return x * cls.K + {m}\nf = Model.f",
    "static method": "class Model:\n    @staticmethod\n    def f(x):\n        return x * {n}\nf = Model.f",
    "property": (
        "class Model:\n    @property\n    def k(self):\n        return {n}\n    def f(self, x):\n        return x + self.k\n"
        "f = Model().f"
    ),
    "cached property": (
        "import functools\nclass Model:\n    @functools.cached_property\n    def k(self):\n        return {n}\n"
        "    def __call__(self, x):\n        return x + Model().k\nf = Model()"
    ),
    "callable object": (
        "class Model:\n    def __init__(self, k):\n        self.k = k\n    def __call__(self, x):\n        return x * self.k + {m}\n"
        "f = Model({n})"
    ),
    "dataclass": (
        "from dataclasses import dataclass, field\n@dataclass\nclass Model:\n    k: int = {m}\n"
        "    more: list = field(default_factory=lambda: [{n}], metadata={{'unit': 's'}})\n"
        "    def __call__(self, x):\n        return (x, self.k, self.more)\nf = Model()"
    ),
    "what it makes": (
        "from dataclasses import dataclass\n@dataclass(frozen=True, slots=True)\nclass Model:\n    k: int\n"
        "    def __repr__(self):\n        return '{s}' + str(self.k)\ndef f(x):\n    return Model(x + {n})"
    ),
    "named tuple": (
        "from typing import NamedTuple\nclass Pair(NamedTuple):\n    a: int\n    b: int = {n}\ndef f(x):\n    return Pair(x).b + {m}"
    ),
    "enumeration": (
        "import enum\nclass Colour(enum.Enum):\n    RED = {n}\n    BLUE = {m} + 100\ndef f(x):\n    return (x, Colour.{colour}.value)"
    ),
    "abstract class": (
        "import abc\nclass Base(abc.ABC):\n    @abc.abstractmethod\n    def k(self): ...\n    def f(self, x):\n"
        "        return x + self.k()\nclass Model(Base):\n    def k(self):\n        return {n}\nf = Model().f"
    ),
    "what is registered with an abstract class": (
        "import abc\nclass Base(abc.ABC):\n    pass\nBase.register({kind_of})\ndef f(x):\n    return isinstance(x, Base)"
    ),
    "what is registered with a function": (
        "import functools\n@functools.singledispatch\ndef g(x):\n    return {n}\n@g.register\ndef _(x: {kind_of}):\n"
        "    return {m}\ndef f(x):\n    return g(x)"
    ),
    "what is registered with a method": (
        "import functools\nclass Model:\n    @functools.singledispatchmethod\n    def g(self, x):\n        return {n}\n"
        "    @g.register\n    def _(self, x: {kind_of}):\n        return {m}\ndef f(x):\n    return Model().g(x)"
    ),
    "order of a class's body": (
        "class Steps:\n    {decorators[0]} = 1\n    {decorators[1]} = 1\ndef f(x):\n    return [n for n in vars(Steps) if n[0] != '_']"
    ),
    "order of a class's annotations": (
        "class Row:\n    {decorators[0]}: int\n    {decorators[1]}: int\ndef f(x):\n    return list(Row.__annotations__)"
    ),
    "compiled pattern": "import re\nP = re.compile('{s}|{n}')\ndef f(x):\n    return P.sub('-', str(x))",
    "annotations": (
        "def coerced(g):\n    return lambda x: g.__annotations__['x'](g(x))\n@coerced\ndef f(x: {kind_of}):\n    return x"
    ),
    "annotations of a class that has no name elsewhere": (
        "import typing\nclass Unit:\n    K = {n}\n    lock = __import__('threading').Lock\n"
        "def g(x: typing.Optional[Unit]): ...\ndef f(x):\n    return typing.get_args(g.__annotations__['x'])[0].K"
    ),
    "new type": "import typing\nUserId = typing.NewType('UserId', int)\ndef f(x: UserId) -> UserId:\n    return UserId(x) + {n}",
    "what a type variable stands for": (
        "import typing\nT = typing.TypeVar('T', {variable})\ndef f(x):\n    return (T.__bound__, T.__constraints__)"
    ),
    "slots": "class Model:\n    __slots__ = ('k',)\n    def __call__(self, x):\n        return x + self.k\nf = Model()\nf.k = {n}",
    "metaclass": (
        "class Meta(type):\n    def __call__(cls, x):\n        return x * {n}\nclass Model(metaclass=Meta):\n    pass\n"
        "def f(x):\n    return Model(x)"
    ),
}
if sys.version_info >= (3, 12):
    SCRIPTS["type alias"] = "type K = {kind_of}\ndef f(x):\n    return K.__value__"
    SCRIPTS["type parameter"] = "def f[T: {kind_of}](x: T):\n    return f.__type_params__[0].__bound__"


def edits(seed: int, each: int = 8) -> list[tuple[str, str]]:
    """(kind, source): `each` of every kind, with constants drawn from few, so that some are equal."""
    draw = random.Random(seed)
    found = []
    for kind, script in SCRIPTS.items():
        for _ in range(each):
            constants = {
                "n": draw.choice([0, 1, 2, 7]),
                "m": draw.choice([3, 4]),
                "s": draw.choice(["a", "b", "cd"]),
                "op": draw.choice(["+", "-", "*", "//", "<"]),
                "attribute": draw.choice(["real", "imag", "numerator", "denominator"]),
                "kind": draw.choice(["k=1", "*k", "*, k=1", "/, k=1", "**k"]),
                "error": draw.choice(["ZeroDivisionError", "ArithmeticError", "Exception"]),
                "pair": draw.choice(["one, two", "two, one", "one, one"]),
                "decorators": draw.sample(["twice", "more"], 2),
                "method": draw.choice(["a", "b"]),
                "kind_of": draw.choice(["int", "float", "str"]),
                "variable": draw.choice(["bound=int", "bound='int'", "bound=list[int]", "int, str", "int, float"]),
                "colour": draw.choice(["RED", "BLUE"]),
                "steps": draw.choice(["'b': 1, 'a': 2", "'a': 2, 'b': 1"]),
            }
            # Where it stands in its file makes no difference.
            found.append((kind, "\n" * draw.randrange(3) + script.format(**constants)))
    return found


def made(source: str) -> Any:
    """The callable that a script defines."""
    space: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(source, "<drawn>", "exec"), space)
    return space["f"]


def key_of(source: str) -> str:
    from lease_locks.memo.functions import bind

    return bind("drawn", made(source), ((1, 2, 3, 4, 5, 6, 7, 8),), {}).memo.digest.hex()


if __name__ == "__main__":
    for _, drawn in edits(int(sys.argv[1])):
        print(key_of(drawn))
