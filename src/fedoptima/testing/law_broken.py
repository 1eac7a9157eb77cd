"""What is raised where a law does not hold."""

from __future__ import annotations


class LawBroken(AssertionError):
    def __init__(self, law: str, text: str) -> None:
        super().__init__(f"{law}: {text}")
        self.law = law
        self.text = text

    def __reduce__(self) -> tuple[type[LawBroken], tuple[str, str]]:
        return LawBroken, (self.law, self.text)  # it may come from another process
