"""`layerrope COMMAND ...`: a table of commands, each a typed dataclass with `run()` in its own module."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import io
import os
import re
import sys
from collections.abc import Callable
from typing import Any

from layerrope.errors import InputError, one_of

COMMANDS: dict[str, str] = {
    "compare": "train depth schemes side by side and show who wins, by how much, and how sure that is",
    "report": "draw the report of a comparison or a study again from its runs",
    "study": "train one of the studies (ladder, depth, lr, ablation ...), or say what it would cost",
    "fit": "fit scaling laws to a table or a study and say how much compute a scheme saves",
    "train": "train one model under one scheme, resumable",
    "vision": "train Vision Transformers under several schemes on images and compare them",
    "account": "count parameters, FLOPs and memory of a shape under several schemes",
    "probe": "show what each layer of trained models does to the stream, by depth",
    "bench": "time training steps in paired repetitions",
    "export": "fold a run's gains and write a stock model folder, proved equal",
    "eval": "score a model on the tasks of lm-evaluation-harness",
    "sample": "continue a prompt with a trained model",
    "inspect": "read what a checkpoint's norm gains say about depth, without downloading it",
    "lab": "write one HTML page that explains depth by sliders, with your runs in it",
}


def parse(command: type, name: str, argv: list[str]) -> Any:
    """An instance of the dataclass `command` from `argv`.

    Raises InputError (one line, nearest flag named) where the arguments do not fit.
    """
    import tyro

    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(command, prog=f"layerrope {name}", args=argv)
    except SystemExit as stop:
        if not stop.code:  # --help
            raise
    raise InputError(_unknown_flag(command, name, argv) or _in_one_line(said.getvalue(), name))


def _unknown_flag(command: type, name: str, argv: list[str]) -> str | None:
    """What is wrong with the first word that looks like a flag and is none, or None."""
    flags = set(re.findall(r"--[A-Za-z][\w-]*", help_text(command, name)))
    for word in argv:
        flag = word.split("=")[0]
        if re.fullmatch(r"--[A-Za-z][\w-]*", flag) and flag.replace("_", "-") not in flags:
            near = difflib.get_close_matches(flag, sorted(flags), n=3, cutoff=0.5)
            return f"unknown flag {flag}: " + (
                f"did you mean {' or '.join(near)}?" if near else f"see layerrope {name} --help"
            )
    return None


def _in_one_line(said: str, name: str) -> str:
    """tyro's boxed message without its box."""
    words = re.sub(r"\x1b\[[0-9;]*m|[│╭╮╰╯─┌┐└┘|]+|\+?-{3,}\+?", " ", said)  # the box of any encoding
    title = r"^(Parsing error|Required options|Unrecognized options|Value error|Missing argument)\s*"
    text = re.sub(title, "", " ".join(words.split()))
    text = re.sub(r"^Error parsing (?:(--\S+)|\w+:\s*)", r"\1", text)  # names a flag, or our own dataclass
    text = re.split(r"Argument helptext|For full helptext", text)[0].strip()
    return f"{text or 'arguments not understood'} (see layerrope {name} --help)"


def help_text(command: type, name: str) -> str:
    """What `layerrope NAME --help` prints."""
    import tyro

    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        tyro.cli(command, prog=f"layerrope {name}", args=["--help"])
    return said.getvalue()


def usage() -> str:
    """The text of `layerrope --help`."""
    width = max(map(len, COMMANDS))
    rows = "\n".join(f"  {name:<{width}}  {gloss}" for name, gloss in COMMANDS.items())
    return f"usage: layerrope COMMAND ...\n\nDepth in Transformers.\n\n{rows}\n\nlayerrope COMMAND --help explains one."


def _complain(message: str) -> None:
    print(message, file=sys.stderr)


def main(argv: list[str] | None = None, say: Callable[[str], None] = _complain) -> int:
    """Run one command; returns the exit code (0 done, 1 a check failed, 2 bad input, 130 interrupted).

    `say` prints what is wrong: on stderr, or, among the ranks of one run, there once.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal that cannot show a character shows its code
    try:
        code = _run(words)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        say("interrupted; train, compare and study continue when the same command runs again")
        return 130
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 2
    except BrokenPipeError:  # the reader of our output has gone: nothing is wrong, and nothing is left to say
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except InputError as error:
        return _refuse(str(error), say)
    except OSError as error:
        where = f"{error.filename}: " if error.filename is not None else ""
        return _refuse(f"{where}{error.strerror or error}: check the path, its rights and the space left", say)
    except (MemoryError, OverflowError) as error:
        return _refuse(
            f"a number is too large for this machine ({str(error) or 'out of memory'}): choose a smaller one", say
        )
    except RuntimeError as error:  # of torch's allocators, which have no other kind in common
        if not any(words in str(error) for words in ("can't allocate memory", "out of memory")):
            raise
        return _refuse("the model or its batch does not fit into memory: choose a smaller one, or fewer at once", say)


def _open_closed_streams() -> None:
    """Where the shell closed a standard stream (`>&-`), use the null device: the next file must not get its number."""
    while (number := os.open(os.devnull, os.O_RDWR)) < 3:
        pass
    os.close(number)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115


def _run(words: list[str]) -> int:
    if not words or words[0] in {"-h", "--help", "help"}:
        print(usage())
        return 0
    if words[0] in {"--version", "version"}:
        import layerrope

        print(layerrope.__version__)
        return 0
    name = one_of("command", words[0], COMMANDS)
    module = importlib.import_module(f"layerrope.commands.{name}")
    return int(parse(module.Command, name, words[1:]).run() or 0)


def _refuse(message: str, say: Callable[[str], None]) -> int:
    """Say on one line what is wrong, with control characters escaped; the exit code."""
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in message)
    say(f"error: {line}")
    return 2


if __name__ == "__main__":
    raise SystemExit(main())
