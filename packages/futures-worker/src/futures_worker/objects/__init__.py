"""Results that are too large for the database: kept in memory or spilled by workers, served and fetched."""
