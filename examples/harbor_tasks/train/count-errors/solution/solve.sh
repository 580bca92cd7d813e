#!/bin/bash

awk '$3 == "ERROR" {n[$4]++} {seen[$4] = 1} END {for (s in seen) print s, n[s] + 0}' logs/*.log | sort > /tmp/errors

awk '{ms = 0; if (match($0, /[0-9]+ ms/)) ms = substr($0, RSTART, RLENGTH - 3) + 0}
     {if (ms > most[$4] + 0) most[$4] = ms; seen[$4] = 1} END {for (s in seen) print s, most[s] + 0}' logs/*.log | sort > /tmp/slowest

echo service,errors,slowest_ms > report.csv

join /tmp/errors /tmp/slowest | tr ' ' ',' >> report.csv
