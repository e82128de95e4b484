"""Authoritative for the commands of `runway`. Each command imports what it needs when it runs, so that `--help` is quick."""

import typer

from libs.cli.commands import (
    again,
    approvals,
    buckets,
    children,
    control,
    install,
    keys,
    replay,
    revoking,
    runs,
    scopes,
    shares,
    things,
    waits,
)
from libs.cli.commands.crash import crash
from libs.cli.commands.demo import demo
from libs.cli.commands.explain import explain

app = typer.Typer(
    name="runway",
    help="Runway Control: keep agents moving, fence every effect. Finds an installation by RUNWAY_ADDRESS and RUNWAY_API_KEY, "
    "else by the profile of a `runway dev` in this folder or above. Exit codes: 0 done, 1 refused or failed, 2 usage, "
    "3 unavailable.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
)
app.command()(install.dev)
app.command()(install.doctor)
app.command()(demo)
app.command()(explain)
app.command()(crash)
app.command()(install.drill)
waits.register(runs.app)
children.register(runs.app)
again.register(runs.app)
revoking.register(runs.app)
app.add_typer(runs.app, name="run")
app.add_typer(things.workflow_app, name="workflow")
app.add_typer(things.effect_app, name="effect")
app.add_typer(things.case_app, name="case")
app.add_typer(things.shard_app, name="shard")
app.add_typer(things.worker_app, name="worker")
control.queue_app.command("record")(replay.record)
control.queue_app.command(
    "simulate", context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
)(replay.simulate)
app.add_typer(control.queue_app, name="queue")
app.add_typer(control.hold_app, name="hold")
app.add_typer(shares.share_app, name="share")
app.add_typer(buckets.bucket_app, name="bucket")
app.add_typer(scopes.scope_app, name="scope")
app.add_typer(approvals.approval_app, name="approval")
app.add_typer(children.budget_app, name="budget")
app.add_typer(keys.key_app, name="key")
app.add_typer(keys.project_app, name="project")


def run() -> None:
    """The console script."""
    app()


if __name__ == "__main__":
    run()
