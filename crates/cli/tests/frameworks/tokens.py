# The users of the tokens in a header, in all the ways in which services take a token out of it.
import os
import re

import jwt


def readings(value):
    words = value.split()
    yield value
    yield value.strip()
    yield value[7:]
    yield value.partition(" ")[2]
    yield from words[1:2]
    yield from words[-1:]
    yield from value.split(" ")[1:2]
    yield value.removeprefix("Bearer ")
    yield value.replace("Bearer ", "")
    yield value.replace("Bearer", "").strip()
    yield value.split(",")[-1].strip().split(" ")[-1]
    yield from re.findall(r"(?i)bearer[\s:]+(\S+)", value)
    yield from re.findall(r'"(.*)"', value)


def users(value):
    found = set()
    for token in readings(value):
        try:
            options = {"verify_exp": False, "verify_nbf": False}
            found.add(jwt.decode(token, os.environ["TOKEN_SECRET"], ["HS256"], options)["sub"])
        except (jwt.InvalidTokenError, ValueError):
            pass
    return sorted(found)
