"""Posteriors with known answers: closed forms, the gallery's models with long references, those of posteriordb."""
