"""The file that `glowplug serve --keys` names: who may call, one API key a line.

# KEY                TENANT     what it may do beside calling functions
sk-3f9c...           team-a
sk-71d0...           operations admin
"""

from pathlib import Path

from glowplug.errors import GlowplugError

MAX_BYTES = 4 * 2**20
LEAST_KEY_CHARACTERS = 16


def read_keys(path: Path) -> dict[str, tuple[str, bool]]:
    """Key → (tenant, whether it may use the control API).

    Raises:
        GlowplugError: the file cannot be read, or a line is wrong; it names file and line.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise GlowplugError(f"--keys {path}: {error.strerror}") from None
    if len(data) > MAX_BYTES:
        raise GlowplugError(f"--keys {path}: more than {MAX_BYTES >> 20} MiB")
    keys: dict[str, tuple[str, bool]] = {}
    for number, line in enumerate(data.decode(errors="replace").splitlines(), start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) not in (2, 3) or words[2:] not in ([], ["admin"]):
            problem = "write KEY TENANT, or KEY TENANT admin"
        elif not words[0].isascii() or len(words[0]) < LEAST_KEY_CHARACTERS:
            problem = f"a key has {LEAST_KEY_CHARACTERS} ASCII characters or more"
        elif words[0] in keys:
            problem = "this key is there twice"
        else:
            keys[words[0]] = (words[1], bool(words[2:]))
            continue
        raise GlowplugError(f"--keys {path}, line {number}: {problem}")
    if not keys:
        raise GlowplugError(f"--keys {path}: no key in it, so nobody could call")
    return keys
