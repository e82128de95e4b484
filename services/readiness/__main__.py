"""`python -m services.readiness`: this service alone in a process."""

from services.readiness.main import run

if __name__ == "__main__":
    run()
