"""What an agent must remember across its own death, and what it does at its next start. No network here."""
