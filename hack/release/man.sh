#!/usr/bin/env bash
# Prints the manual page coracle(1), made from the program's help: hack/release/man.sh PROGRAM VERSION DATE.
set -euo pipefail
text() { sed 's/\\/\\e/g; s/-/\\-/g; s/^\([.'"'"']\)/\\\&\1/'; }
cat <<END
.TH CORACLE 1 "$(date -u -d "$3" +%Y-%m-%d)" "coracle $2" "User Commands"
.SH NAME
coracle \- Kubernetes small enough to carry
.SH SYNOPSIS
.B coracle
.I COMMAND
.RI [ OPTION ...]
.SH DESCRIPTION
.nf
$("$1" --help | text)
.fi
.SH FILES
.TP
.I /etc/coracle/config.yaml
options of the server and the agent; \fBcoracle help options\fR lists them
.TP
.I /var/lib/coracle
the cluster's data
.TP
.I ~/.kube/config
where \fBcoracle start\fR adds a context
.SH SEE ALSO
The program contains the whole manual: \fBcoracle help topics\fR.
END
