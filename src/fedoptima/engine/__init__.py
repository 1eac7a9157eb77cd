"""All tensor code that trains. Engines execute jobs; they never decide what comes next."""
