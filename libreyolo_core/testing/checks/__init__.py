"""The checks of the contract by subject. Each is a function ``check(context) -> str`` that returns a line about what it
found; it raises ``Failed`` when the contract is broken and ``NotRun`` when it cannot be judged here."""
