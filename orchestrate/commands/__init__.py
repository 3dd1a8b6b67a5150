"""One thin file per verb: parse options, call one function, hand the result to report. Does no work of its own."""
