"""Why a party believes what another one says: enclaves, enrolment and the log."""
