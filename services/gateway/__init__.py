"""The gateway: every effect on the outside, fenced where it is committed, remembered by its slot."""
