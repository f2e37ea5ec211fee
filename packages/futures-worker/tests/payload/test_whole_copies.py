"""A function by value does on a worker what it does here, and what it makes of a script's classes comes back as that."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import msgpack
import pytest

from futures_worker import payload

ELSEWHERE = """
import sys, msgpack
from futures_worker import payload
(code,) = msgpack.unpackb(sys.stdin.buffer.read())
sys.stdout.buffer.write(payload.dump_result(payload.load_code(code)()).to_bytes())
"""
ONE_AFTER_THE_OTHER = """
import sys, msgpack
from futures_worker import payload
print([payload.load_code(code)() for code in msgpack.unpackb(sys.stdin.buffer.read())])
"""
SCRIPTS = {
    "a variable of two functions": (
        "def made():\n    n = 0\n    def inc():\n        nonlocal n\n        n += 1\n    def get():\n        return n\n"
        "    return inc, get\ninc, get = made()\ndef f():\n    inc(); inc()\n    return get()"
    ),
    "a function in its own variable": (
        "def made():\n    def fact(n):\n        return 1 if n < 2 else n * fact(n - 1)\n    return fact\ng = made()\n"
        "def f():\n    return g(10)"
    ),
    "globals of the body of a class within": (
        "X = 1\nY = 2\ndef deco(kind):\n    kind.z = 3\n    return kind\nclass Base:\n    pass\nlock = __import__('threading').Lock()\n"
        "def f():\n    @deco\n    class A(Base):\n        X = X\n        lock = 7\n        y = [X, lock]\n"
        "        class B:\n            y = Y\n    return A.X, A.y, A.B.y, A.z, A.__mro__[1] is Base"
    ),
    "a variable without a value": "def made():\n    def g():\n        return late\n    if 0:\n        late = 1\n    return g\ng = made()\n"
    "def f():\n    try:\n        return g()\n    except NameError:\n        return 'none'",
    "the class of a method": (
        "class A:\n    def kind(self):\n        return __class__\nclass B(A):\n    def kind(self):\n        return super().kind()\n"
        "def f():\n    return B().kind() is A"
    ),
    "slots": (
        "class A:\n    __slots__ = ('x', '__y')\n    def __init__(self):\n        self.x = 1\n        self.__y = 2\n"
        "    def total(self):\n        return self.x + self.__y\nclass B(A):\n    __slots__ = 'z'\n"
        "def f():\n    return A().total(), hasattr(A(), '__dict__'), hasattr(B(), '__dict__')"
    ),
    "a name within a class": "class A:\n    class B:\n        pass\ndef f():\n    return A.B.__qualname__, repr(A.B())[:14]",
    "subclasses that are told": (
        "TOLD = []\nclass A:\n    def __init_subclass__(cls, *, tag):\n        cls.tag = tag\n        TOLD.append(tag)\n"
        "class B(A, tag='b'):\n    pass\nclass C(B, tag='c'):\n    pass\ndef f():\n    return TOLD, B.tag, C.tag"
    ),
    "metaclasses": (
        "import abc\nTOLD = []\nclass Meta(abc.ABCMeta):\n    def __new__(meta, name, bases, body, *, tag):\n        TOLD.append(tag)\n"
        "        made = super().__new__(meta, name, bases, body)\n        made.tag = tag\n        return made\n"
        "    def __init__(cls, *_, tag):\n        TOLD.append(cls.tag)\n    def __call__(cls, *args):\n        return super().__call__(*args), 1\n"
        "    def __len__(cls):\n        return 7\nclass A(metaclass=Meta, tag='a'):\n    pass\nclass B(A, tag='b'):\n    pass\n"
        "def f():\n    return TOLD, B.tag, len(B), isinstance(B()[0], A), B()[1]"
    ),
    "enumerations": (
        "import enum\nclass Planet(enum.Enum):\n    EARTH = (5, 6)\n    HOME = EARTH\n    MARS = (6, 3)\n"
        "    def __init__(self, mass, radius):\n        self.mass, self.radius = mass, radius\n"
        "class Place(bytes, enum.Enum):\n    def __new__(cls, value, label):\n        made = bytes.__new__(cls, [value])\n"
        "        made._value_, made.label = value, label\n        return made\n    X = (3, 'x')\n"
        "class Auto(enum.Enum):\n    def __new__(cls):\n        made = object.__new__(cls)\n        made._value_ = len(cls.__members__)\n"
        "        return made\nclass Number(Auto):\n    NONE = ()\n    ONE = ()\n"
        "class Meta(enum.EnumMeta):\n    def __contains__(cls, _):\n        return True\nclass Any(tuple, enum.Enum, metaclass=Meta):\n    A = (1, 2)\n"
        "class Mode(enum.Flag):\n    N = 0\n    R = 1\n    W = 2\n    RW = 3\n"
        "def f():\n    return (list(Planet.__members__), Planet['HOME'], Planet.MARS.radius, Planet((5, 6)), Place.X[0], Place.X.label, Place(3).name,\n"
        "        Number(1), Number.ONE.value, 9 in Any, Any.A[1], list(Mode), Mode['RW'], ~Mode.R, Mode.R | Mode.W is Mode.RW, Mode.N)"
    ),
    "names of types": (
        "import typing\nId = typing.NewType('Id', int)\nP = typing.ParamSpec('P')\nTs = typing.TypeVarTuple('Ts')\n"
        "def g(x: Id, *, f: typing.Callable[P, tuple[typing.Unpack[Ts]]]) -> Id:\n    return Id(x + 1)\n"
        "def f():\n    return g(1, f=None), Id, P, Ts, g.__annotations__, g.__annotations__['x'] is Id"
    ),
    "typing": (
        "import typing\nT = typing.TypeVar('T')\nclass A(typing.Generic[T]):\n    pass\nclass B(A[int]):\n    pass\n"
        "class N(typing.NamedTuple):\n    z: int\n    a: int = 1\nclass D(typing.TypedDict):\n    z: int\n    a: int\n"
        "def f():\n    return typing.get_args(B.__orig_bases__[0]), N(1), list(D.__annotations__)"
    ),
    "singledispatch": (
        "import functools\n@functools.singledispatch\ndef g(x):\n    'some'\n    return 'some'\n@g.register\ndef _(x: int):\n"
        "    return 'int'\n@g.register\ndef _(x: list):\n    return [g(one) for one in x]\ng.more = 5\nclass A:\n"
        "    @functools.singledispatchmethod\n    def m(self, x):\n        return 'some'\n    @m.register\n    def _(self, x: int):\n"
        "        return 'int'\ndef f():\n    return g([1, ['a']]), g.more, g.__name__, g.__doc__, A().m(1), A().m('')"
    ),
    "functools": (
        "import functools\n@functools.lru_cache(maxsize=7)\ndef fib(n):\n    return n if n < 2 else fib(n - 1) + fib(n - 2)\n"
        "class A:\n    @functools.cached_property\n    def x(self):\n        return object()\n"
        "def f():\n    a = A()\n    return fib(20), fib.cache_parameters(), a.x is a.x"
    ),
}
BACK = """
import dataclasses, enum
class Base:
    known = {}
    def __init_subclass__(cls):
        Base.known[cls.__name__] = cls
class Sub(Base):
    pass
@dataclasses.dataclass(slots=True)
class Row:
    z: int
    a: int = 2
class Colour(enum.Enum):
    RED = 1
def f():
    return Sub(), Row(1), Colour.RED
"""


def elsewhere(function: Any) -> Any:
    """What another process makes of a function by value, as its result comes here."""
    return payload.load_result(in_another_process(ELSEWHERE, payload.CodeCache().dump(function).data))


def in_another_process(program: str, *codes: bytes) -> bytes:
    sent = msgpack.packb(codes)
    ran = subprocess.run([sys.executable, "-c", program], input=sent, capture_output=True, check=False, timeout=120)
    assert ran.returncode == 0, ran.stderr.decode()
    return ran.stdout


def made(source: str) -> dict[str, Any]:
    space: dict[str, Any] = {"__name__": "__main__"}
    exec(source, space)
    return space


@pytest.mark.parametrize("what", SCRIPTS)
def test_a_function_does_there_what_it_does_here(what: str) -> None:
    there = elsewhere(made(SCRIPTS[what])["f"])
    assert repr(there) == repr(made(SCRIPTS[what])["f"]())


def test_what_comes_back_is_of_the_very_classes_and_registers_no_others() -> None:
    space = made(BACK)
    for _ in range(2):
        sub, row, colour = elsewhere(space["f"])
        assert (type(sub), type(row), colour) == (space["Sub"], space["Row"], space["Colour"].RED)
        assert row == space["Row"](1, 2)
        assert space["Base"].known == {"Sub": space["Sub"]}


def test_a_class_whose_bases_or_name_change_is_another_one_from_then_on() -> None:
    space = made(
        "class A:\n    def who(self): return 1\nclass B:\n    def who(self): return 2\nclass C(A):\n    pass\nclass D(C):\n    pass\n"
        "def f():\n    return D().who(), C.__name__, C.__qualname__"
    )
    codes, expected = [], []
    for name, value in (
        ("__bases__", (space["B"],)),
        ("__name__", "N"),
        ("__qualname__", "Q.N"),
        ("__bases__", (space["A"],)),
    ):
        codes.append(payload.CodeCache().dump(space["f"]).data)
        expected.append(space["f"]())
        setattr(space["C"], name, value)
    assert in_another_process(ONE_AFTER_THE_OTHER, *codes, *codes).decode().strip() == repr(expected * 2)
