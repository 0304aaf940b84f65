"""Creates one object of each kind in a controller, and writes their names for schemathesis, whose
requests would otherwise mostly miss.

    api-check.py URL PASSWORD ROADWEAVE FOLDER     prints the secret of an owner's API key
"""

import base64
import hashlib
import http.cookiejar
import json
import pathlib
import ssl
import subprocess
import sys
import urllib.error
import urllib.request

# Number of objects of a kind of which a request uses one up.
MANY = 30


class Api:
    """Requests of one user, or with one API key."""

    def __init__(self, url):
        self.url = url + "/api/v1"
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        jar = urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar())
        https = urllib.request.HTTPSHandler(context=context)
        self.opener = urllib.request.build_opener(jar, https)
        self.headers = {"content-type": "application/json"}

    def ask(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.url + path, data=data, headers=self.headers, method=method
        )
        try:
            with self.opener.open(request, timeout=30) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            sys.exit(f"{method} {path}: {error.code} {error.read().decode()}")
        return json.loads(text) if text else None

    def post(self, path, body):
        return self.ask("POST", "/tenants/home" + path, body)


def key(name):
    """A different key for each name."""
    return base64.b64encode(hashlib.sha256(name.encode()).digest()).decode()


def several(name):
    return [f"{name}-{number}" for number in range(MANY)]


def log_in(url, password):
    person = Api(url)
    person.ask("POST", "/sessions", {"tenant": "home", "user": "admin", "password": password})
    # An API key, since requests to log out would end this session.
    body = {"id": "check", "settings": {"role": "owner"}}
    secret = person.post("/api-keys", body)["secret"]
    api = Api(url)
    api.headers["authorization"] = f"Bearer {secret}"
    return api, secret


def joined(api, roadweave, folder, name, settings, is_let_in=True):
    """Joins a box with a token, like a vehicle."""
    token = api.post("/tokens", {"settings": settings})["join"]
    state = pathlib.Path(folder, name)
    words = [roadweave, "join", token, "--name", name, "--state-directory", state]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    if (done.returncode == 0) != is_let_in:
        sys.exit(f"{words}: {done.stdout} {done.stderr}")


def seed(api, roadweave, folder):
    api.post("/pools", {"id": "fra", "settings": {"site": "fra"}})
    for name in several("pool"):
        api.post("/pools", {"id": name, "settings": {}})
    for role, name in [("proxy", "fra-1"), ("anchor", "site-1"), ("proxy", "stolen-proxy")]:
        settings = {"role": role, "public_key": key(name), "addresses": ["192.0.2.1:4433"]}
        api.post("/proxies", {"id": name, "settings": settings})
    joined(api, roadweave, folder, "bus-1", {"uses": 1})
    joined(api, roadweave, folder, "bus-2", {"uses": 1, "approval": True}, is_let_in=False)
    for name in ["stolen-bus", "lost-bus"]:
        api.post("/devices", {"id": name, "public_key": key(name)})
    api.post("/devices/lost-bus/revoke", {"reason": "lost"})
    api.post("/configs", {"scope": "tenant", "body": {"lanes": []}})
    for name in several("rollout"):
        api.post("/rollouts", {"id": name, "settings": {"config": "tenant-1", "waves": [100]}})
    api.post("/tokens", {"id": "kept", "settings": {"uses": 3}})
    for name in several("token"):
        api.post("/tokens", {"id": name, "settings": {}})
    for name in [*several("staff"), *several("person")]:
        body = {"id": name, "password": "a long password", "settings": {"role": "viewer"}}
        api.post("/users", body)
    for name in several("tenant"):
        body = {"id": name, "owner": "admin", "password": "a long password"}
        api.ask("POST", "/tenants", body)


def config():
    """The object of each operation; objects that requests use up exist several times."""
    dictionaries = {
        "names": several("made"),
        "keys": [key(name) for name in several("made")],
        "addresses": ["192.0.2.9:4433", "[2001:db8::9]:4433"],
        "pools": ["fra"],
        "configs": ["tenant-1"],
        "shares": [100],
        "passwords": ["another long password"],
        "reasons": ["sold"],
        "titles": ["Line 12"],
        "tags": ["tram", "night"],
        "prefixes": ["10.20.0.0/24", "fd20::/64"],
        "tenants": several("tenant")[1:],
        "staff": several("staff"),
        "leaving-pools": several("pool"),
        "leaving-tokens": several("token"),
        "leaving-people": several("person"),
        "rollouts": several("rollout"),
    }
    lines = []
    for name, values in dictionaries.items():
        lines += [f"[dictionaries.{name}]", f"values = {json.dumps(values)}"]
    lines.append("[parameters]")
    common = {"path.tenant": "home", "path.device": "bus-1", "path.serial": 1}
    common["header.If-Match"] = "*"
    lines += [f"{json.dumps(name)} = {json.dumps(value)}" for name, value in common.items()]
    bodies = {
        "body.id": "names",
        "body.public_key": "keys",
        "body.password": "passwords",
        "body.reason": "reasons",
        "body.settings.public_key": "keys",
        "body.settings.addresses[*]": "addresses",
        "body.settings.pool": "pools",
        "body.settings.config": "configs",
        "body.settings.waves[*]": "shares",
        "body.addresses[*]": "addresses",
        "body.config": "configs",
        "body.waves[*]": "shares",
        "body.pool": "pools",
        "body.owner": "names",
    }
    for name, of in [("title", "titles"), ("tags[*]", "tags"), ("prefixes[*]", "prefixes")]:
        bodies[f"body.{name}"] = bodies[f"body.settings.{name}"] = of
    bound = "{ dictionary = %s, probability = 0.8 }"
    lines += [f"{json.dumps(name)} = {bound % json.dumps(of)}" for name, of in bodies.items()]
    fixed = {
        "getApiKey": ("path.id", "check"),
        "getConfig": ("path.id", "tenant-1"),
        "getApproval": ("path.id", "tenant-1"),
        "approveConfig": ("path.id", "tenant-1"),
        "getPool": ("path.id", "fra"),
        "replacePool": ("path.id", "fra"),
        "getProxy": ("path.id", "fra-1"),
        "drainProxy": ("path.id", "fra-1"),
        "replaceProxy": ("path.id", "site-1"),
        "revokeProxy": ("path.id", "stolen-proxy"),
        "getRollout": ("path.id", "rollout-0"),
        "getToken": ("path.id", "kept"),
        "approveDevice": ("path.device", "bus-2"),
        "revokeDevice": ("path.device", "stolen-bus"),
        "replaceTenant": ("path.tenant", "tenant-0"),
    }
    # A request may delete an object that an earlier answer contained.
    used_up = {
        "getUser": ("path.id", "staff"),
        "replaceUser": ("path.id", "staff"),
        "setPassword": ("path.id", "staff"),
        "deletePool": ("path.id", "leaving-pools"),
        "deleteToken": ("path.id", "leaving-tokens"),
        "deleteUser": ("path.id", "leaving-people"),
        "replaceRollout": ("path.id", "rollouts"),
        "deleteTenant": ("path.tenant", "tenants"),
    }
    values = {name: (path, json.dumps(value)) for name, (path, value) in fixed.items()}
    for name, (path, of) in used_up.items():
        values[name] = (path, "{ dictionary = %s }" % json.dumps(of))
    for name, (path, value) in values.items():
        lines += ["[[operations]]", f"include-operation-id = {json.dumps(name)}"]
        lines.append(f"parameters = {{ {json.dumps(path)} = {value} }}")
    return "\n".join(lines) + "\n"


def main():
    url, password, roadweave, folder = sys.argv[1:]
    api, secret = log_in(url, password)
    seed(api, roadweave, folder)
    pathlib.Path(folder, "schemathesis.toml").write_text(config())
    print(secret)


main()
