"""Authoritative for how a relay behaves by default; each number says why it is what it is."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RelaySettings:
    """Numbers of a relay."""

    batch_events: int = 500
    """More than this gains nothing measurable and makes one slow commit hold up more."""
    batch_bytes: int = 1_000_000
    """Well below gRPC's limit of 4 MB a message. A larger event goes alone."""
    in_flight: int = 2
    """Per receiver and lane: one commits there while the next gathers. Four was worse."""
    spacing_ms: int = 20
    """Least time between the starts of two batches of a lane under load. A lonely event never waits …"""
    worth_events: int = 100
    """… nor do so many: more of them would cost hardly less each, and those that have come wait for nothing."""
    patience_ms: int = 200
    """The same for events that nothing waits for: a run's go together then, and cost their receiver one write of it, not many.
    An event of the same run that somebody waits for takes them along."""
    lone_patience_ms: int = 25
    """How long such an event waits that has no company: longer than a short run takes on an idle machine, so that what nobody
    waits for is written after what somebody does. An event of the same run that somebody waits for takes it along too."""
    send_timeout_ms: int = 10_000
    """A receiver that is silent for longer is taken for away; sending twice is harmless."""
    retry_first_ms: int = 50
    """First pause after a failure, doubled each time …"""
    retry_longest_ms: int = 5_000
    """… up to this, so that a receiver that is back is noticed in seconds."""
    acknowledge_every_ms: int = 20
    """Delivered ids gather this long before one statement deletes them."""
    sweep_every_ms: int = 5_000
    """How often the table is read for rows that nobody has in memory."""
    hand_over_ms: int = 2_000
    """Rows younger than this are in the memory of whoever wrote them; a sweep leaves them alone."""
    claim_ms: int = 30_000
    """How long a row that a sweep took is left alone by other relays: longer than a send and its first retries."""
    page_rows: int = 1_000
    """Rows that one sweep statement takes."""
    lane_events: int = 10_000
    """Events of one receiver and lane in memory; beyond it they wait in the table."""
    lane_bytes: int = 64_000_000
    """The same, in bytes."""
    crowd_events: int = 256
    """Events that their receiver does not want now for the same reason: so many stay in memory, the rest is put aside."""
    aside_page: int = 32
    """So many of a crowd are sent again first; while most of them are taken, twice as many, up to `page_rows`."""
    aside_every_ms: int = 1_000
    """How long a crowd of which few were taken is left alone."""
    aside_ms: int = 300_000
    """How long a row that is put aside is left alone by sweeps: its relay asks for it sooner, unless it is gone."""
    aside_events: int = 1_000_000
    """Ids of events put aside in memory; beyond it their rows wait for the sweep."""
    keep_ms: int = 0
    """How long delivered rows are kept: an hour where the receiver's standby may lose commits, 0 where it cannot."""
