"""Flags and names of every command, and what the environment says."""

from __future__ import annotations

from tests.bad_inputs.cases import Case, command, make_folder, run, write
from tests.bad_inputs.world import SMALL

_NOBODY = "http://127.0.0.1:9"
_PROTOCOLS = tuple(SMALL)
_WORDS_COMMANDS = ("run", "inspect", "sweep", "submit")


def _everywhere() -> list[Case]:
    """Return what every command refuses alike."""
    made = []
    for name in ("list", "run", "sweep", "submit", "fetch", "doctor", "compare", "report", "plan", "inspect", "predict",
                 "export", "serve", "audit", "new", "data", "completion", "site", "federation", "relay"):  # fmt: skip
        made.append(command([name, "--no-such-flag"], "--help"))
        if name != "completion":
            made.append(command([name, "--format", "yaml"], "--format", "'yaml'"))
    more_words = "run sweep submit fetch compare report plan inspect predict export serve audit new data completion site federation"
    made += [command([name], f"fedactors {name} --help") for name in more_words.split()]
    for name in ("run", "inspect", "sweep", "plan", "submit"):
        more = ("--profile", "x.toml") if name == "plan" else ("--address", _NOBODY) if name == "submit" else ()
        unknown = ("no-such-protocol", "", "..", "pubsub_vf", "os", "a b", "é")
        made += [command([name, given, *more], "protocol", repr(given)) for given in unknown]
    return made


def _words() -> list[Case]:
    """Return words that are no settings, for each command that takes some."""
    made = []
    for which in _WORDS_COMMANDS:
        more = ("--address", _NOBODY) if which == "submit" else ()
        for protocol in _PROTOCOLS:
            for word in ("learning_rate", "=3", "no_such_key=3", "Learning_rate=1", "num_rounds =3"):
                named = word.partition("=")[0] or word
                made.append(command([which, protocol, word, *more], named))
            made.append(command([which, protocol, "a=1", "a=2", *more], "a"))
    return made


def _run_flags() -> list[Case]:
    made = []
    for protocol in _PROTOCOLS:
        made += [
            run(protocol, "", "--smoke", "--paper", flags=["--smoke", "--paper"]),
            run(protocol, "", "data", "'no-such-set'", flags=["--data", "no-such-set"]),
            run(protocol, "", "--data", "nowhere.toml", flags=["--data", "nowhere.toml"]),
            run(protocol, "", "--data", flags=["--data", ""]),
            run(protocol, "", "--data", flags=["--data", " "]),
            run(protocol, "", "--data", flags=["--data", "x\0.toml"]),
            run(
                protocol,
                "",
                "--data",
                "folder.toml",
                flags=["--data", "folder.toml"],
                change=make_folder("folder.toml"),
            ),
            run(protocol, "", "no such run folder", flags=["--resume", "nowhere"]),
            run(protocol, "", "not a run folder", flags=["--resume", "."]),
            run(protocol, "", "--resume", flags=["--resume", ""]),
        ]
    mtcd = "mtcd"
    for flag, value in (
        ("--seed", "-1"), ("--seed", "1.5"), ("--seed", "x"), ("--seed", ""), ("--seed", "99999999999999999999999"),
        ("--seed", "²"), ("--seeds", "1,1"), ("--seeds", ""), ("--seeds", "1,,2"), ("--seeds", "1,x"),
        ("--seeds", "0,-1"), ("--runtime", "slurm"), ("--runtime", ""), ("--pool", "-1"), ("--pool", "x"),
        ("--pool", "1.5"), ("--pool", "100000"), ("--emulate", "0"), ("--emulate", "-1"), ("--emulate", "nan"),
        ("--emulate", "inf"), ("--emulate", "x"), ("--heartbeat-timeout", "0"), ("--heartbeat-timeout", "nan"), ("--heartbeat-timeout", "inf"),
        ("--placement", "bank"), ("--placement", "=x"), ("--placement", "bank="), ("--placement", ""), ("--checkpoint-dir", "bank"), ("--checkpoint-dir", "=x"), ("--checkpoint-key", "bank"), ("--checkpoint-key", "bank="), ("--spread", "wide"),
        ("--track", "no-such-tracker"), ("--track", "tensorboard,no-such"),
    ):  # fmt: skip
        made.append(run(mtcd, "", flag, flags=[flag, value]))
    made += [
        run(mtcd, "", "--address", flags=["--address", "auto"]),
        run(mtcd, "", "--placement", flags=["--placement", "bank=x"]),
        run(mtcd, "", "--spread", flags=["--spread", "pack"]),
        run(mtcd, "", "--emulate", flags=["--emulate", "0.5"]),
        run(mtcd, "", "--heartbeat-timeout", flags=["--heartbeat-timeout", "5"]),
        run(mtcd, "", "--seed", flags=["--seed", "1", "--seeds", "2,3"]),
        command(["run", mtcd, "--runtime", "ray", "--pool", "2", "--quiet"], "--pool"),
        command(["run", mtcd, "--out", "", "--quiet", "--runtime", "simulated"], "--out"),
        command(["run", mtcd, "--out", "  ", "--quiet", "--runtime", "simulated"], "--out"),
        command(
            ["run", mtcd, *SMALL[mtcd].split(), "--out", "file", "--quiet", "--runtime", "simulated"],
            "--out",
            change=write("file", "x"),
        ),
        command(
            ["run", mtcd, *SMALL[mtcd].split(), "--out", "/proc/none", "--quiet", "--runtime", "simulated"], "--out"
        ),
        command(["run", mtcd, *SMALL[mtcd].split(), "--out", "x\0y", "--quiet", "--runtime", "simulated"], "--out"),
        command(
            ["run", mtcd, *SMALL[mtcd].split(), "--out", "nosuch://bucket/x", "--quiet", "--runtime", "simulated"],
            "nosuch",
        ),
        command(["run", mtcd, *SMALL[mtcd].split(), "--out", "a" * 300, "--quiet", "--runtime", "simulated"], "--out"),
        *(
            command(["run", mtcd, "--quiet", "--address", address], "address")
            for address in (
                "ray://127.0.0.1:10001",
                "127.0.0.1",
                "127.0.0.1:9",
                "127.0.0.1:x",
                "127.0.0.1:99999",
                ":6379",
                "a b:1",
                "http://127.0.0.1:9",
                "x\0:1",
                "[::1:5",
                "-",
                "127.0.0.1:0",
            )
        ),
        command(["run", mtcd, "--quiet", "--address", ""], "--address"),
        command(["run", mtcd, "--quiet"], "RAY_ADDRESS", environ={"RAY_ADDRESS": "127.0.0.1:9"}),
        command(["run", mtcd, "--quiet"], "RAY_ADDRESS: ", "unset RAY_ADDRESS", environ={"RAY_ADDRESS": "nonsense"}),
    ]
    return made


_SWEEP = ["sweep", "mtcd", "--out", "out", "--quiet"]
_COMMANDS = [
    command("walk", "'walk'"),
    command("", "COMMAND"),
    command("ruin mtcd", "'ruin'"),
    command("--no-such-flag", "--help"),
    # audit
    command("audit nowhere", "nowhere"),
    command("audit .", "run folder"),
    command(["audit", ""], "run folder"),
    command(["audit", "x\0y"], "run folder"),
    command("audit nowhere --neighbours x", "--neighbours"),
    command("audit nowhere --neighbours", "--neighbours"),
    # new
    *(command(["new", "protocol", name], "name", repr(name)[:100]) for name in
      ("", "..", "a/b", "A", "1x", "class", "a b", "mtcd", "fedactors", "é", "a--b", "x" * 300, "a.b", "_x", "x\0")),
    *(command(["new", "scenario", name], "name", repr(name)) for name in ("", "..", "a/b", "X", "import", "glasu")),
    command("new something mine", "'something'"),
    command("new scenario mine --protocol no-such", "'no-such'"),
    command("new protocol mine --output file", "--output", change=write("file", "x")),
    command(["new", "protocol", "mine", "--output", ""], "--output"),
    command(["new", "protocol", "mine", "--output", "a\0b"], "--output"),
    command("new protocol mine --output s3://bucket", "--output"),
    command("new protocol mine --output /proc/none", "--output"),
    command("new protocol mine", "already exists", change=make_folder("mine")),
    command("new scenario mine", "already exists", change=write("mine.py", "x")),
    # data, list, completion
    command("data walk", "'walk'"),
    command("data list bank", "bank"),
    command("data fetch", "data fetch"),
    *(command(["data", "fetch", name], "data", name) for name in
      ("no-such", "", "..", "../bank", "a/b", "blocks:x", "http://x/y")),
    command("list me", "me"),
    command("completion csh", "'csh'"),
    command("completion bash more", "more"),
    # doctor, fetch, submit
    *(command(["doctor", "--address", address], "--address") for address in
      ("", "127.0.0.1:8265", "ftp://x", "http://", "http://[::1", "nonsense", "x\0y", "http://h:99999", "http://h:x")),
    *(command(["fetch", "job", "--address", address], "--address") for address in
      ("", "127.0.0.1:8265", "ftp://x", _NOBODY, "http://[::1", "http://h:99999", "http://h:x", "nonsense")),
    command("fetch job", "--address"),
    command(["fetch", "job", "--address", _NOBODY, "--out", ""], "--out"),
    command(["fetch", "job", "--address", _NOBODY, "--out", "s3://x"], "--out"),
    *(command(["submit", "mtcd", "--address", address], "--address") for address in
      ("", "127.0.0.1:8265", "ftp://x", _NOBODY, "http://[::1", "http://h:99999")),
    command("submit mtcd", "--address"),
    command("submit mtcd", "RAY_ADDRESS", environ={"RAY_ADDRESS": "127.0.0.1:9"}),
    command("submit nowhere.py", "nowhere.py"),
    command("submit .py", ".py"),
    command("submit folder.py", "folder.py", change=make_folder("folder.py")),
    command("submit mtcd --runtime-env nowhere", "--runtime-env", "nowhere"),
    command("submit mtcd --working-dir nowhere", "--working-dir", "'nowhere'"),
    command(["submit", "mtcd", "--working-dir", "file"], "--working-dir", change=write("file", "")),
    command(["submit", "mtcd", "--out", ""], "--out"),
    command(["submit", "mtcd", "--smoke", "--paper", "--address", _NOBODY], "--smoke"),
    command(["submit", "mtcd", "--seeds", "1,1", "--address", _NOBODY], "--seeds"),
    command(["submit", "mtcd", "--track", "no-such", "--address", _NOBODY], "--track"),
    command(["submit", "mtcd", "--runtime", "simulated", "--heartbeat-timeout", "3", "--address", _NOBODY], "--heartbeat-timeout"),
    # plan
    command("plan mtcd --profile x.toml", "x.toml"),
    command("plan glasu --profile x.toml", "glasu"),
    command("plan mtcd problem=network", "problem", "network"),
    command("plan mtcd mode=overlapping", "mode", "overlapping"),
    command("plan pubsub-vfl", "--profile"),
    command("plan pubsub-vfl --profile nowhere.toml", "--profile", "'nowhere.toml'"),
    command("plan pubsub-vfl --measure --profile p.toml", "--measure", change=write("p.toml", "x = 1")),
    command("plan mtcd --measure", "--measure", "mtcd"),
    command("plan pubsub-vfl --data bank", "--data", "--profile", "--measure"),
    command("plan pubsub-vfl --measure --time-limit 0", "--time-limit"),
    command("plan pubsub-vfl --measure --aim price", "--aim", "target", "epoch"),
    command("plan mtcd --aim epoch", "--aim", "epoch"),
    command("plan pubsub-vfl --measure --runtime simulated --data nowhere", "data", "nowhere"),
    command("plan pubsub-vfl --measure --runtime simulated --address a:1", "--address"),
    command("plan pubsub-vfl --profile .", "--profile"),
    *(command(["plan", "pubsub-vfl", "--profile", "p.toml"], "--profile", change=write("p.toml", text)) for text in
      ("not toml [", b"\xff\xfe\x00", "[[[", "x = 1e400 ]")),
    *(command(["plan", "pubsub-vfl", "--profile", "p.json"], "--profile", change=write("p.json", text)) for text in
      ("", "[1]", "3", "null", "{", "[" * 5000, b"\xff")),
    *(command(["plan", "pubsub-vfl", "--profile", "p.toml", "q.toml"], "profile",
              change=(write("p.toml", text), write("q.toml", text))) for text in
      ("", "x = 1", "role = 1", 'role = "king"', 'role = "active"\ncores = -1', 'role = "active"\ncores = "many"')),
    # sweep
    command([*_SWEEP, "--jobs", "0"], "--jobs"),
    command([*_SWEEP, "--jobs", "x"], "--jobs"),
    command([*_SWEEP, "--draws", "0", "learning_rate=uniform(0,1)"], "--draws"),
    command([*_SWEEP, "--draws", "3"], "--draws"),
    command([*_SWEEP, "--draw-seed", "-1"], "--draw-seed"),
    command([*_SWEEP, "--seeds", "1,1"], "--seeds"),
    command([*_SWEEP, "--runtime", "slurm"], "--runtime"),
    command([*_SWEEP, "--address", "a:1", "--jobs", "2"], "--jobs"),
    command([*_SWEEP, "--address", "a:1", "--runtime", "ray"], "--address"),
    command([*_SWEEP, *SMALL["mtcd"].split(), "--address", "127.0.0.1:9"], "address"),
    command([*_SWEEP, "--smoke", "--paper"], "--smoke"),
    command([*_SWEEP, "--name", "a/b"], "--name"),
    command([*_SWEEP, "--name", ".."], "--name"),
    command([*_SWEEP, "--name", ""], "--name"),
    command([*_SWEEP, "--name", "x\0"], "--name"),
    command([*_SWEEP, "--name", "n" * 300], "--name"),
    command([*_SWEEP, "--choose", "loss"], "--choose"),
    command([*_SWEEP, "--choose", "loss:most"], "--choose"),
    command([*_SWEEP, "--choose", ":min"], "--choose"),
    command([*_SWEEP, "--choose", ""], "--choose"),
    command([*_SWEEP, "--data", "no-such"], "no-such"),
    command([*_SWEEP, "--data", ""], "--data"),
    command([*_SWEEP, "--data", "x.toml"], "--data"),
    command([*_SWEEP, "--data", "cora"], "cora"),
    command(["sweep", "mtcd", "--quiet", "--out", ""], "--out"),
    command(["sweep", "mtcd", "--quiet", "--out", "s3://b"], "--out"),
    command(["sweep", "mtcd", *SMALL["mtcd"].split(), "--quiet", "--out", "file"], "--out", change=write("file", "x")),
    command(["sweep", "mtcd", "--quiet", "--out", "x\0y"], "--out"),
    *(command([*_SWEEP, word, "--draws", "2"], "learning_rate") for word in
      ("learning_rate=uniform(1,0)", "learning_rate=uniform(0)", "learning_rate=uniform(a,b)", "learning_rate=normal(0,1)",
       "learning_rate=loguniform(0,1)", "learning_rate=uniform(nan,1)", "learning_rate=uniform(0,inf)",
       "learning_rate=integer(0.5,2)", "learning_rate=choice()", "learning_rate=uniform(-2,-1)")),
    command([*_SWEEP, "learning_rate=uniform(0,1)"], "learning_rate", "--draws"),
    command([*_SWEEP, "num_rounds=1,x"], "num_rounds"),
    command([*_SWEEP, "num_rounds="], "num_rounds"),
    command([*_SWEEP, "num_rounds=1,,2"], "num_rounds"),
    command([*_SWEEP, "clusters=[[0,1"], "clusters"),
    command([*_SWEEP, "--settings", "nowhere.toml"], "--settings"),
    *(command([*_SWEEP, "--settings", "s.toml"], "--settings", change=write("s.toml", text)) for text in
      ("", "settings = 3", "[settings]\na = 1", "not [", b"\xff\xff", "settings = [1]")),
    *(command([*_SWEEP, "--settings", "s.json"], "--settings", change=write("s.json", text)) for text in
      ("[]", "{}", "[1]", "{", "null", "[" * 5000)),
    command([*_SWEEP, "--settings", "s.json"], "num_rounds", change=write("s.json", '[{"num_rounds": "x"}]')),
    command([*_SWEEP, "--settings", "s.json"], "nope", change=write("s.json", '[{"nope": 1}]')),
    command([*_SWEEP, "--settings", "s.json"], "num_rounds", change=write("s.json", '[{"num_rounds": []}]')),
    command([*_SWEEP, "--settings", "s.json"], "num_rounds", change=write("s.json", '[{"num_rounds": {"a": 1}}]')),
    command([*_SWEEP, "--settings", "s.json"], "learning_rate", change=write("s.json", '[{"learning_rate": NaN}]')),
    command([*_SWEEP, "num_rounds=2", "--settings", "s.json"], "num_rounds", change=write("s.json", '[{"num_rounds": 1}]')),
    # organisations that share no cluster
    *(command(["site", "init", name, "--listen", "127.0.0.1:1"], "site", repr(name)) for name in
      ("a b", "..", "driver", "a/b", "n" * 80)),
    *(command(["site", "init", "bank", "--listen", given], "--listen") for given in ("nowhere", "h:99999", ":1", "")),
    command(["site", "init", "bank"], "--listen"),
    command(["site", "init", "bank", "--listen", "h:1", "--folder", "file/in"], "--folder", change=write("file", "x")),
    *(command(["site", "init", "bank", "--listen", given], "--listen") for given in
      ("h:0", "a b:1", 'h"\n:1', '"\n[data]:1', "h\x1b[2J:1")),
    command(["site", "init", "bank", "--listen", "h:1", "--why", "x"], "--why"),
    command(["site", "check", "--listen", "h:1"], "--listen"),
    command(["site", "start", "extra"], "'extra'"),
    command(["federation", "init", "f", "more"], "'more'"),
    command(["federation", "init", "f", "--host", "x"], "--host"),
    command(["run", "mtcd", "--allow-import", "::"], "--allow-import", "'::'"),
    command(["run", "mtcd", "--allow-import", "os:system"], "--allow-import"),
    command(["run", "mtcd", "--resume", "a", "--resume", "b"], "--resume"),
    *(command(["site", action], "--folder", "site.toml") for action in
      ("start", "pending", "runs", "show", "approve", "reject", "budget")),
    command(["site", "start", "--folder", "x\0"], "--folder"),
    command(["site", "start"], "name", change=write("site.toml", "name = 3")),
    command(["site", "start"], "site.toml", change=write("site.toml", "not [")),
    command(["site", "fly"], "action", "'fly'"),
    command(["federation", "init"], "FOLDER"),
    command(["federation", "init", "file/in"], "FOLDER", change=write("file", "x")),
    command(["federation", "init", "a b"], "'a b'"),
    command(["federation", "admit", "nowhere", "x.csr", "--address", "h:1"], "nowhere"),
    command(["federation", "admit"], "FOLDER"),
    command(["federation", "admit", ".", "x.csr"], "federation.toml", change=write("federation.toml", "[")),
    command(["federation", "demo", "file"], "FOLDER", change=write("file", "x")),
    command(["federation", "demo", "file/in"], "FOLDER", change=write("file", "x")),
    command(["run", "pubsub-vfl", "--quiet", "--federation", "nowhere.toml", "--data", "a=b"], "nowhere.toml"),
    command(["run", "pubsub-vfl", "--quiet", "--federation", "", "--data", "a=b"], "--federation"),
    command(["run", "pubsub-vfl", "--quiet", "--queue-timeout", "9"], "--queue-timeout: needs --federation"),
    *(command(["run", "pubsub-vfl", "--quiet", "--federation", "f", "--data", "a=b", "--queue-timeout", text],
              f"--queue-timeout: '{text}' is not allowed: a number above 0") for text in ("0", "-1", "soon", "inf", "nan")),
    *(command(["run", "pubsub-vfl", "--federation", "f", "--data", "a=b", "--return-timeout", given], "--return-timeout",
              repr(given)) for given in ("0", "-1", "soon", "inf", "nan", "")),
]  # fmt: skip
CASES = [*_everywhere(), *_words(), *_run_flags(), *_COMMANDS]
