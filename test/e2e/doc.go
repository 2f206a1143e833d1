// Package e2e runs the real binary in network namespaces and uses it as users do.
package e2e
