"""A modem behind a pseudo terminal: LINK leads to it, and SCRIPT says how it behaves.

SCRIPT is JSON: "mode" (ok, silent, flood, held), "answers" by command, "before" and "after" each
answer. It is read anew at each command.
"""

import fcntl
import json
import os
import pty
import select
import sys
import termios
import time
import tty

link, script = sys.argv[1:]
master, slave = pty.openpty()
tty.setraw(slave)
os.symlink(os.ttyname(slave), link)


def behaviour():
    with open(script, encoding="utf-8") as file:
        return json.load(file)


def answer(command, now):
    mode = now["mode"]
    if mode == "silent":
        return
    if mode == "flood":
        os.set_blocking(master, False)
        end = time.monotonic() + 1
        while time.monotonic() < end:
            try:
                os.write(master, os.urandom(512))
            except BlockingIOError:
                time.sleep(0.01)
        os.set_blocking(master, True)
        return
    said = now.get("answers", {})
    text = command + "\r\r\n" + now.get("before", "")
    if command == "AT":
        text += "\r\nOK\r\n"
    elif command in said:
        text += "".join("\r\n" + line + "\r\n" for line in said[command])
        text += now.get("after", "") + "\r\nOK\r\n"
    else:
        text += "\r\n+CME ERROR: 4\r\n"
    # In pieces, as it comes over USB.
    data = text.encode()
    for start in range(0, len(data), 7):
        os.write(master, data[start : start + 7])


held = False
pending = b""
while True:
    now = behaviour()
    if (now["mode"] == "held") != held:
        held = not held
        fcntl.ioctl(slave, termios.TIOCEXCL if held else termios.TIOCNXCL)
    if not select.select([master], [], [], 0.1)[0]:
        continue
    pending += os.read(master, 4096)
    while b"\r" in pending:
        command, pending = pending.split(b"\r", 1)
        print(command.decode(), flush=True)
        answer(command.decode(), behaviour())
