"""Enrolment: tokens that say "one device, this round" and link to nothing; docs/enrolment.md has the protocol."""
