"""A ModemManager on a bus of a test: BUS FILE, where FILE has its objects as JSON, read anew for
each question. A text that begins with "/org" is a path of D-Bus, "NaN" and "-Infinity" are numbers.
"""

import json
import math
import sys

import gi

gi.require_version("Gio", "2.0")
from gi.repository import Gio, GLib  # noqa: E402

ROOT = "/org/freedesktop/ModemManager1"
NAME = "org.freedesktop.ModemManager1"


def variant(value):
    if isinstance(value, dict):
        return properties(value)
    if isinstance(value, list):
        return GLib.Variant("ao", value)
    if isinstance(value, bool):
        return GLib.Variant("b", value)
    if isinstance(value, int):
        return GLib.Variant("u", value)
    if isinstance(value, float):
        return GLib.Variant("d", value)
    if value in ("NaN", "-Infinity"):
        return GLib.Variant("d", math.nan if value == "NaN" else -math.inf)
    return GLib.Variant("o" if value.startswith("/org") else "s", value)


def properties(values):
    return GLib.Variant("a{sv}", {name: variant(value) for name, value in values.items()})


def answer(message):
    with open(sys.argv[2], encoding="utf-8") as file:
        objects = json.load(file)
    member, path = message.get_member(), message.get_path()
    if member == "GetManagedObjects":
        modems = {
            path: {name: {key: variant(value) for key, value in its.items()} for name, its in all.items()}
            for path, all in objects.items()
            if "/Modem/" in path
        }
        return GLib.Variant("(a{oa{sa{sv}}})", (modems,))
    if member == "GetAll":
        its = objects.get(path, {}).get(message.get_body()[0], {})
        return GLib.Variant.new_tuple(properties(its))
    print(member, message.get_body()[0], file=sys.stderr, flush=True)
    return None


def on_message(connection, message, incoming):
    is_call = message.get_message_type() == Gio.DBusMessageType.METHOD_CALL
    if not incoming or not is_call or not (message.get_path() or "").startswith(ROOT):
        return message
    reply = message.new_method_reply()
    body = answer(message)
    if body is not None:
        reply.set_body(body)
    connection.send_message(reply, Gio.DBusSendMessageFlags.NONE)
    return None


flags = (
    Gio.DBusConnectionFlags.AUTHENTICATION_CLIENT | Gio.DBusConnectionFlags.MESSAGE_BUS_CONNECTION
)
bus = Gio.DBusConnection.new_for_address_sync(sys.argv[1], flags, None, None)
bus.add_filter(on_message)
bus.call_sync(
    "org.freedesktop.DBus", "/org/freedesktop/DBus", "org.freedesktop.DBus", "RequestName",
    GLib.Variant("(su)", (NAME, 0)), None, Gio.DBusCallFlags.NONE, -1, None,
)
GLib.MainLoop().run()
