"""Turns probes into one read-only POSIX sh program, and the program's framed output back into replies.

Refuses to trust anything outside its frames: banners, prompts and half a frame are dropped, never guessed at.
"""

from __future__ import annotations

import base64
import binascii
import re
import shlex
from typing import TYPE_CHECKING

from hostsetup.model import Reply

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from hostsetup.model import Probe

MAX_BYTES = 4 << 20  # of each stream of each probe; what is more is cut off

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
_MARK = re.compile(r"[A-Za-z0-9]{8,64}")
_PLAIN = re.compile(r"[A-Za-z0-9_./ -]+")  # one command and its words: a restricted sudoers may allow exactly this

_HEAD = re.compile(rb" (?P<name>[a-z0-9][a-z0-9-]{0,63}) (?P<rc>\d{1,3}) (?P<how>base64|hex)")
_END = re.compile(rb"\.end(\n|$)")

# Why files and polling instead of `timeout` and `wait`: `timeout` may be missing, and neither returns while a process
# sits in uninterruptible sleep. A probe that will not die is left behind. setsid gives each probe a process group to kill.
# Only a shell's own kill ends the group: /bin/kill of procps-ng 4.0 takes `kill -KILL -1234` for -1, every process there is.
_PROLOGUE = """\
printf '\\n%s now %s\\n' "$mark" "$(date +%s.%N)"
umask 077
unset ENV BASH_ENV CDPATH SUDO_ASKPASS
export LC_ALL=C LANG=C TERM=dumb COLUMNS=200
export PATH="$PATH:/usr/local/sbin:/usr/local/bin:/usr/sbin:/sbin"
d=$(mktemp -d 2>/dev/null || mktemp -d /dev/shm/muster.XXXXXX 2>/dev/null || mktemp -d "${XDG_RUNTIME_DIR:-/run}/muster.XXXXXX") || {
  echo "muster: no directory for temporary files is writable" >&2
  exit 70
}
exec 2>/dev/null  # bash reports every job that was killed
pid=
sudo=
end() {
  $sudo sh -c 'kill -KILL "-$1"' sh "$pid" 2>/dev/null || kill -KILL "$pid" 2>/dev/null
  pid=
}
trap '[ -z "$pid" ] || end; rm -rf "$d"' EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 141' PIPE  # without it dash dies of a launcher that has gone and cleans nothing up
trap 'exit 143' TERM
cd /
setsid=
command -v setsid >/dev/null 2>&1 && setsid=setsid
if sleep 0.01 2>/dev/null; then short=0.01 long=0.2 per_s=5; else short=1 long=1 per_s=1; fi
if printf x | base64 >/dev/null 2>&1; then
  how=base64
  encode() { base64 <"$1"; }
else
  how=hex
  encode() { od -An -v -tx1 <"$1"; }
fi
n=0
# run SECONDS COMMAND: leaves $out and $err and sets $rc. Each run has files of its own: what is left behind writes on
# into its own. No file outgrows the limit, whoever writes.
run() {
  n=$((n + 1)) rc=
  out=$d/$n.out err=$d/$n.err
  (
    ulimit -f @BLOCKS@
    exec $setsid sh -c 'sh -c "$2" >"$1.out" 2>"$1.err" </dev/null; echo "$?" >"$1.rc"' sh "$d/$n" "$2"
  ) </dev/null >/dev/null 2>&1 &
  pid=$!
  i=0
  while [ ! -s "$d/$n.rc" ]; do
    if [ "$i" -lt 10 ]; then sleep "$short"; else sleep "$long"; fi
    i=$((i + 1))
    if [ "$i" -gt $((9 + $1 * per_s)) ]; then
      end
      rc=124
      # a process that is left behind still writes: what it had written until now is the answer
      for file in "$out" "$err"; do : >>"$file"; cat "$file" >"$file.cut"; done
      out=$out.cut err=$err.cut
      return
    fi
  done
  read -r rc <"$d/$n.rc"
  wait "$pid" 2>/dev/null
  pid=
}
send() {
  printf '\\n%s %s %s %s\\n' "$mark" "$1" "$rc" "$how"
  [ ! -s "$out" ] || encode "$out"
  printf '\\n%s.err\\n' "$mark"
  [ ! -s "$err" ] || encode "$err"
  printf '\\n%s.end\\n' "$mark"
}
probe() { run "$2" "$3"; send "$1"; }
# probe_root NAME SECONDS COMMAND [COMMAND when only that is allowed]
probe_root() {
  if [ "$root" = yes ]; then
    probe "$1" "$2" "$3"
  elif [ -n "$sudo" ]; then
    probe "$1" "$2" "sudo -n env LC_ALL=C LANG=C TERM=dumb COLUMNS=200 PATH=\\"\\$PATH\\" sh -c $4"
  else
    if [ -n "$5" ] && [ "$sudo_there" = yes ]; then
      run "$2" "$5"
      if [ "$rc" = 0 ]; then send "$1"; return; fi
    fi
    probe "$1" "$2" "$3"
  fi
}
# hung TOOL: whether a probe has waited for that tool in vain; then the others of it are not asked
hung() { case " $late_tools " in *" $1 "*) return 0 ;; *) return 1 ;; esac }
unasked() {
  out=$d/none err=$d/why rc=124
  : >"$out"; echo "muster: not asked, for $2 had given no answer in time" >"$err"
  send "$1"
}
late_tools=
root=no sudo_there=no
if [ "$(id -u)" = 0 ]; then
  root=yes
elif command -v sudo >/dev/null 2>&1; then
  sudo_there=yes
  run 10 'sudo -n env sh -c :'
  [ "$rc" = 0 ] && sudo='sudo -n'
fi
"""


def build(probes: Iterable[Probe], mark: str) -> str:
    """Return the program that asks `probes` in order and frames each reply by `mark` (8 to 64 letters and digits).

    The mark must be random and used once. Raises ValueError on a bad mark, and on a bad or repeated probe name.
    """
    if not _MARK.fullmatch(mark):
        raise ValueError("the mark must be 8 to 64 letters and digits")
    lines = [f"main() {{\nmark={mark}\n", _PROLOGUE.replace("@BLOCKS@", str(MAX_BYTES // 512))]
    seen = set[str]()
    for probe in probes:
        if not _NAME.fullmatch(probe.name) or probe.name in seen:
            raise ValueError(f"bad or repeated probe name: {probe.name!r}")
        seen.add(probe.name)
        lines.append(_call(probe) if not probe.tool else _behind(probe.name, probe.tool, _call(probe)))
    return "".join((*lines, "}\nmain\n"))


def _behind(name: str, tool: str, call: str) -> str:
    if not _NAME.fullmatch(tool):
        raise ValueError(f"bad name of a tool: {tool!r}")
    return f'if hung {tool}; then unasked {name} {tool}; else {call.rstrip()}; case $rc in 124) late_tools="$late_tools {tool}" ;; esac; fi\n'


def _call(probe: Probe) -> str:
    head = f"{probe.name} {int(probe.timeout_s)} {shlex.quote(probe.command)}"
    if not probe.root:
        return f"probe {head}\n"
    alone = f"sudo -n {probe.command}" if _PLAIN.fullmatch(probe.command) else ""
    return f"probe_root {head} {shlex.quote(shlex.quote(probe.command))} {shlex.quote(alone)}\n"


def parse(stream: bytes, mark: str) -> Mapping[str, Reply]:
    """Return the replies whose frames are whole; of a probe that answers twice, the first."""
    replies: dict[str, Reply] = {}
    # no frame holds the mark inside, so half a frame never swallows the next one
    parts = stream.replace(b"\r\n", b"\n").split(b"\n" + mark.encode())
    for head, middle, end in zip(parts, parts[1:], parts[2:], strict=False):
        begun, line, out = head.partition(b"\n")
        found = _HEAD.fullmatch(begun)
        if not (found and line and middle.startswith(b".err\n") and _END.match(end)):
            continue
        try:
            out, err = (_decode(body, found["how"])[:MAX_BYTES] for body in (out, middle[5:]))
        except ValueError:
            continue
        replies.setdefault(found["name"].decode(), Reply(out, err, int(found["rc"])))
    return replies


def parse_now(stream: bytes, mark: str) -> str:
    """Return what the host's clock showed when the program began, in seconds since 1970; empty: it did not say.

    busybox and other small dates know no fractions: what they print instead stands behind the dot.
    """
    found = re.search(
        rb"^%b now (\d{1,12}(?:\.(?:\d{1,9}|%%?N))?)\r?$" % re.escape(mark.encode()), stream, re.MULTILINE
    )
    return found[1].decode() if found else ""


def _decode(body: bytes, how: bytes) -> bytes:
    packed = b"".join(body.split())
    if how == b"hex":
        return bytes.fromhex(packed.decode("ascii"))
    try:
        return base64.b64decode(packed, validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from error
