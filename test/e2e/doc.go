// Package e2e runs the real binary in network namespaces, with the commands that users run.
package e2e
