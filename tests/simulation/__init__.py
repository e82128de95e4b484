"""The real services, all six in one process, over real PostgreSQL, with everything else simulated from one seed.

What runs is the shipped code from the gRPC stub to the SQL file: SDK, interceptors, servicers, verbs, stores, relays, elections.
What is replaced are its four ways to the outside: event-loop time (`loop`), gRPC's transport (`wire`), HTTP's transport
(`provider`) and etcd's server (`etcd`), beside the operating system's randomness, /proc and the object store (`seeded`).
Statements go to a real PostgreSQL, one at a time, in an order that the seed decides (`gate`).

Authoritative for nothing. Can go wrong: a simulation that hides a fault by being kinder than the world; the page in the handbook
says where it is.
"""
