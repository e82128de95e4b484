"""`python -m services.gateway`: this service alone in a process."""

from services.gateway.main import run

if __name__ == "__main__":
    run()
