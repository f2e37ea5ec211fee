"""Tasks triggered by writes, no faster than a cadence: a heap on S3 and a sysdb on FoundationDB."""
