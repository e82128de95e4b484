"""Upkeep of a git repository: inspect it, audit it three ways side by side, mend what can be mended, publish a branch.

The repository is read by cloning; nothing but a new branch on the configured remote is ever written. The commit is a function
of the commit it starts from, so every attempt makes the same one.
"""

import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from pydantic import BaseModel

from runway_sdk import ApprovalRule, Retry, StepFailed, SyncContext, step, workflow

MAX_FILE_BYTES = 1_000_000
MAX_FINDINGS = 2_000
REPORT = "UPKEEP.md"
_LINK = re.compile(r"\[[^\]\n]*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
_FENCE = re.compile(r"^\s*(```|~~~)")


class Upkeep(BaseModel):
    """The run's input: where to clone from, which configured remote to push to, and the branch to make.

    `summarize`: have the gateway's model `summary` write a paragraph for the report.
    """

    repository: str
    remote: str
    branch: str
    summarize: bool = False


class Facts(BaseModel):
    """What was found at a glance; `commit` is what every later step works on."""

    commit: str
    files: int
    text_files: int
    markdown_files: int
    bytes: int


class Finding(BaseModel):
    """One thing to mend, or to know."""

    path: str
    line: int
    problem: str
    mendable: bool


class Findings(BaseModel):
    """What one audit found; `checked` files were read."""

    checked: int
    found: list[Finding]


class Assembled(BaseModel):
    """The mended branch: its commit, and the artifacts that carry it and its report."""

    commit: str
    parent: str
    bundle: str
    report: str
    mended_files: int
    findings: int


class Published(BaseModel):
    """What is at the remote now; `replayed` where an earlier attempt had pushed."""

    branch: str
    commit: str
    state: str
    replayed: bool


def git(folder: Path, *arguments: str, at: str = "") -> str:
    """Runs git without anybody's configuration; `at` fixes author and committer time."""
    environ = {
        "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
        "HOME": str(folder),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_AUTHOR_NAME": "Runway upkeep",
        "GIT_AUTHOR_EMAIL": "upkeep@runway.invalid",
        "GIT_COMMITTER_NAME": "Runway upkeep",
        "GIT_COMMITTER_EMAIL": "upkeep@runway.invalid",
        "LC_ALL": "C",
    }
    if at:
        environ |= {"GIT_AUTHOR_DATE": at, "GIT_COMMITTER_DATE": at}
    command = ["git", "-c", "core.autocrlf=false", "-c", "safe.directory=*", "-c", "protocol.file.allow=always", *arguments]
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, timeout=300, check=False)
    if done.returncode:
        raise StepFailed(f"git {arguments[0]}: {done.stderr.decode(errors='replace').strip()[:500]}", "transient", "GitError")
    return done.stdout.decode(errors="replace").strip()


@contextmanager
def clone(repository: str, commit: str = "") -> Iterator[Path]:
    """A throw-away clone, at a commit if one is named."""
    with tempfile.TemporaryDirectory(prefix="runway-upkeep-") as scratch:
        folder = Path(scratch) / "clone"
        git(Path(scratch), "clone", "--quiet", "--no-hardlinks", "--", repository, str(folder))
        if commit:
            git(folder, "checkout", "--quiet", "--detach", commit)
        yield folder


def tracked(folder: Path) -> list[Path]:
    """Regular files that git tracks."""
    names = git(folder, "ls-files", "-z").split("\0")
    return [folder / name for name in names if name and (folder / name).is_file() and not (folder / name).is_symlink()]


def read_text(path: Path) -> str | None:
    """A file's text; None for what is binary, not UTF-8 or too large."""
    if path.stat().st_size > MAX_FILE_BYTES:
        return None
    raw = path.read_bytes()
    if b"\0" in raw:
        return None
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None


def audit(run: Upkeep, facts: Facts, check: Callable[[Path, Path, str], Iterator[Finding]]) -> Findings:
    """Reads every text file of the pinned commit through one check."""
    found: list[Finding] = []
    checked = 0
    with clone(run.repository, facts.commit) as folder:
        for path in tracked(folder):
            text = read_text(path)
            if text is not None:
                checked += 1
                found.extend(check(folder, path, text))
    return Findings(checked=checked, found=found[:MAX_FINDINGS])


@step(timeout=timedelta(minutes=5))
def inspect(run: Upkeep) -> Facts:
    """Pins the commit to work on, and counts."""
    with clone(run.repository) as folder:
        files = tracked(folder)
        texts = [path for path in files if read_text(path) is not None]
        return Facts(
            commit=git(folder, "rev-parse", "HEAD"),
            files=len(files),
            text_files=len(texts),
            markdown_files=sum(path.suffix.lower() == ".md" for path in texts),
            bytes=sum(path.stat().st_size for path in files),
        )


def dead_links(folder: Path, path: Path, text: str) -> Iterator[Finding]:
    """Relative links of Markdown that lead to no file."""
    if path.suffix.lower() != ".md":
        return
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if _FENCE.match(line):
            fenced = not fenced
        if fenced:
            continue
        for target in _LINK.findall(re.sub(r"`[^`]*`", "", line)):
            name = target.split("#", 1)[0].split("?", 1)[0]
            if not name or re.match(r"^[a-zA-Z][a-zA-Z0-9+.-]*:", target) or target.startswith("//"):
                continue
            place = folder / name.lstrip("/") if name.startswith("/") else path.parent / name
            if not place.exists():
                yield Finding(path=str(path.relative_to(folder)), line=number, problem=f"dead link: {target}", mendable=False)


def whitespace(folder: Path, path: Path, text: str) -> Iterator[Finding]:
    """Trailing blanks, mixed line endings, a missing last newline."""
    name = str(path.relative_to(folder))
    crlf, lone = text.count("\r\n"), text.count("\n") - text.count("\r\n")
    if crlf and lone:
        yield Finding(path=name, line=1, problem=f"mixed line endings: {crlf} CRLF, {lone} LF", mendable=True)
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), 1):
        if line != mended_line(path, line):
            yield Finding(path=name, line=number, problem="trailing whitespace", mendable=True)
    if text and not text.endswith("\n"):
        yield Finding(path=name, line=text.count("\n") + 1, problem="no newline at the end", mendable=True)


def scripts(folder: Path, path: Path, text: str) -> Iterator[Finding]:
    """Scripts that cannot be run, and executables that are none."""
    name = str(path.relative_to(folder))
    executable = bool(path.stat().st_mode & 0o100)
    if text.startswith("#!") and not executable and path.suffix in ("", ".sh", ".py", ".pl", ".rb"):
        yield Finding(path=name, line=1, problem="has a shebang and is not executable", mendable=True)
    if executable and not text.startswith("#!"):
        yield Finding(path=name, line=1, problem="is executable and has no shebang", mendable=False)


def mended_line(path: Path, line: str) -> str:
    """A line without trailing blanks; two blanks that break a line of Markdown stay."""
    bare = line.rstrip(" \t")
    if path.suffix.lower() == ".md" and bare and line == bare + "  ":
        return line
    return bare


@step(key="audit-links", timeout=timedelta(minutes=5))
def audit_links(run: Upkeep, inspect: Facts) -> Findings:
    """Relative links of Markdown that lead nowhere."""
    return audit(run, inspect, dead_links)


@step(key="audit-whitespace", timeout=timedelta(minutes=5))
def audit_whitespace(run: Upkeep, inspect: Facts) -> Findings:
    """Trailing blanks, mixed line endings, missing last newlines."""
    return audit(run, inspect, whitespace)


@step(key="audit-scripts", timeout=timedelta(minutes=5))
def audit_scripts(run: Upkeep, inspect: Facts) -> Findings:
    """Shebangs and executable bits that disagree."""
    return audit(run, inspect, scripts)


def mend(folder: Path) -> int:
    """Mends what can be mended without judgement; how many files."""
    mended = 0
    for path in tracked(folder):
        text = read_text(path)
        if text is None:
            continue
        changed = False
        if any(finding.mendable for finding in whitespace(folder, path, text)):
            crlf, lone = text.count("\r\n"), text.count("\n") - text.count("\r\n")
            end = "\r\n" if crlf > lone else "\n"
            lines = [mended_line(path, line) for line in text.replace("\r\n", "\n").split("\n")]
            whole = "\n".join(lines)
            whole = whole if whole.endswith("\n") or not whole else whole + "\n"
            path.write_bytes(whole.replace("\n", end).encode())
            changed = True
        if any(finding.mendable for finding in scripts(folder, path, text)):
            path.chmod(path.stat().st_mode | 0o111)
            changed = True
        mended += changed
    return mended


def report_of(facts: Facts, audits: dict[str, Findings], mended: int) -> str:
    """The report in Markdown."""
    lines = [
        "# Upkeep",
        "",
        f"Of commit `{facts.commit}`: {facts.files} files, {facts.text_files} of them text, {facts.bytes} bytes.",
        f"{mended} files are mended on this branch.",
    ]
    for name, findings in audits.items():
        lines += ["", f"## {name}: {len(findings.found)} in {findings.checked} files", ""]
        for finding in findings.found[:200]:
            text = finding.problem.replace("`", "'")
            lines.append(f"- `{finding.path}:{finding.line}` {text}" + (" (mended)" if finding.mendable else ""))
        if len(findings.found) > 200:
            lines.append(f"- … and {len(findings.found) - 200} more")
    return "\n".join(lines) + "\n"


def summary_of(ctx: SyncContext, audits: dict[str, Findings]) -> str:
    """A paragraph by the model `summary`, once whatever happens to the attempt."""
    counts = ", ".join(f"{name}: {len(findings.found)}" for name, findings in audits.items())
    problems = sorted({finding.problem.split(":")[0] for findings in audits.values() for finding in findings.found})
    kinds = ", ".join(problems) or "none"
    question = f"Audits of a repository found {counts}. Kinds: {kinds}. Say in two sentences what to mend first."
    answer = ctx.model("summary", {"messages": [{"role": "user", "content": question}], "max_tokens": 200}, slot="summary")
    return str(answer.value["choices"][0]["message"]["content"]).strip()


@step(checkpoints=True, models=["summary"], timeout=timedelta(minutes=10))
def assemble(
    ctx: SyncContext, run: Upkeep, inspect: Facts, audit_links: Findings, audit_whitespace: Findings, audit_scripts: Findings
) -> Assembled:
    """Joins the audits, mends in an isolated clone, and keeps commit and report as artifacts behind a checkpoint."""
    audits = {"links": audit_links, "whitespace": audit_whitespace, "scripts": audit_scripts}
    with clone(run.repository, inspect.commit) as folder:
        when = git(folder, "show", "-s", "--format=%cI", inspect.commit)
        git(folder, "checkout", "--quiet", "-b", run.branch)
        mended = mend(folder)
        report = report_of(inspect, audits, mended)
        if run.summarize:
            report += f"\n## In short\n\n{summary_of(ctx, audits)}\n"
        (folder / REPORT).write_text(report)
        git(folder, "add", "--all")
        git(folder, "commit", "--quiet", "--no-gpg-sign", "-m", f"Upkeep: mend {mended} files", at=when)
        commit = git(folder, "rev-parse", "HEAD")
        packed = folder.parent / "upkeep.bundle"
        git(folder, "bundle", "create", "--quiet", str(packed), f"{inspect.commit}..{run.branch}")
        bundle = ctx.artifact("upkeep.bundle", packed, media_type="application/x-git-bundle")
        stored = ctx.artifact("upkeep-report.md", report, media_type="text/markdown")
    total = sum(len(findings.found) for findings in audits.values())
    made = Assembled(
        commit=commit, parent=inspect.commit, bundle=bundle.digest, report=stored.digest, mended_files=mended, findings=total
    )
    ctx.checkpoint(made.model_dump(), boundary="assembled", artifacts=[bundle, stored])
    return made


@step(
    tools=["git.push"],
    checkpoints=True,
    lease_ttl=timedelta(seconds=3),
    retry=Retry(max_attempts=5, initial=timedelta(milliseconds=100)),
    timeout=timedelta(minutes=5),
)
def publish(ctx: SyncContext, run: Upkeep, assemble: Assembled) -> Published:
    """Pushes the branch once, whatever happens to the attempt that does it."""
    pushed = ctx.tool(
        "git.push",
        {
            "remote": run.remote,
            "branch": run.branch,
            "bundle": assemble.bundle,
            "commit": assemble.commit,
            "expected_old": "",
        },
        slot="push",
    )
    published = Published(branch=run.branch, commit=str(pushed.value["commit"]), state=pushed.state, replayed=pushed.replayed)
    ctx.checkpoint(published.model_dump(), boundary="published")
    return published


_steps = [inspect, audit_links, audit_whitespace, audit_scripts, assemble]
flow = workflow(
    "upkeep",
    steps=[*_steps, publish],
    input=Upkeep,
    output=publish,
    deadline=timedelta(hours=1),
    description="Audits a git repository, mends what can be mended, and publishes a branch.",
)

reviewed = workflow(
    "upkeep-reviewed",
    steps=[*_steps, replace(publish, approvals=[ApprovalRule(["git.push"], expires_in=timedelta(hours=1))])],
    input=Upkeep,
    output=publish,
    deadline=timedelta(hours=2),
    description="The same, and somebody else than who launches it approves the push.",
)
