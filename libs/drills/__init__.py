"""Drills: traffic beside one fault, on real processes → a recorded history → the checker → a report.

Authoritative for nothing that ships on the hot path; `runway drill` starts it as a child. Can go wrong: a drill that proves
nothing because nothing worked. So every drill also asserts a minimum of successful work before, during and after its fault.
"""
