"""What handles and sessions of a client share: records of futures, options, how threads wait for each other. The ground of the client."""
