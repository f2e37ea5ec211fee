"""What people ask of a cluster and do to it: functions over its database, for commands and clients alike. Nothing here unpickles anything."""
